package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/records"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// A supportBundle collects what a report of a fault needs. A part that cannot be read is
// missing, with the reason; the others are there.
type supportBundle struct {
	e       *command.Env
	policy  bool   // include the Rego of the policy
	log     string // file with the log, - = stdin, "" = none
	files   *filesCheck
	faulty  error // why files is nil
	redact  func(string) string
	Version string        `json:"version"`
	Created string        `json:"created"`
	File    string        `json:"file,omitempty"` // "" = nothing was written
	Members []supportFile `json:"members"`
}

// supportFile is one file of the bundle.
type supportFile struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Missing string `json:"missing,omitempty"` // why it, or a part, is not there
	text    []byte
}

func supportBundleCommand(e *command.Env) *cobra.Command {
	b := &supportBundle{e: e, Version: command.Version}
	var dry bool
	c := e.Printing("support-bundle [FILE]", "collect what a report of a fault needs, without secrets", func(ctx context.Context, args []string) (*report.Report, error) {
		now := time.Now().UTC()
		file := append(args, "toolgate-support-"+now.Format("20060102T150405Z")+".tar.gz")[0]
		if _, err := os.Lstat(file); err == nil {
			return nil, command.Usage(fmt.Errorf("writing the bundle: %s exists\nhint: name a new file", file))
		}
		b.Created = now.Format(time.RFC3339)
		b.collect(ctx)
		if dry {
			return report.Of(b, supportBundleText), nil
		}
		b.File = file
		if err := b.write(file); err != nil {
			return nil, fmt.Errorf("writing the bundle: %w", err)
		}
		return report.Of(b, supportBundleText), nil
	})
	c.Flags().BoolVar(&dry, "dry-run", false, "collect, print the contents, and write nothing")
	c.Flags().BoolVar(&b.policy, "policy", false, "include the Rego of the policy, but not its data")
	c.Flags().StringVar(&b.log, "log", "", "`FILE` with toolgate's log, or - for stdin, whose last lines are included")
	return c
}

// collect reads every part. The configuration comes first, because it says what the secrets
// are.
func (b *supportBundle) collect(ctx context.Context) {
	document, secrets, err := config.Masked(clients.Options(config.Options{Path: b.e.Config, Overlay: b.e.Overlay, Getenv: b.e.Lookup}))
	if b.e.Token != "" {
		secrets = append(secrets, b.e.Token)
	}
	b.redact = upstream.NewRedactor(secrets)
	b.files, b.faulty = checkFiles(ctx, b.e)
	b.add("config.json", document, err)
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // elsewhere the system's name has to do
	modules := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			modules[m.Path] = m.Version
		}
	}
	b.add("versions.json", map[string]any{"toolgate": command.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(),
		"kernel": strings.TrimSpace(string(kernel)), "modules": modules}, nil)
	if b.faulty != nil {
		b.add("policy.json", nil, b.faulty)
		b.add("doctor.json", command.FailureOf(b.faulty), b.faulty)
	} else {
		b.add("policy.json", map[string]any{"revision": b.files.engine.Revision(), "configuration_sha256": b.files.cfg.SHA256}, nil)
		found, err := examine(ctx, b.e, b.files)
		b.add("doctor.json", found, err)
	}
	for _, part := range []struct {
		name string
		read func(context.Context) (any, error)
	}{
		{"status.json", b.listener("/readyz?verbose")}, {"metrics.txt", b.listener("/metrics")},
		{"tickets.json", func(ctx context.Context) (any, error) { return command.OfStore(ctx, b.e, approval.Counts) }},
		{"audit.json", b.verified}, {"log.txt", b.logLines},
	} {
		content, err := part.read(ctx)
		b.add(part.name, content, err)
	}
	if b.policy && b.faulty == nil {
		modules, err := rego.Modules(b.files.cfg.Policy.Path)
		for _, name := range slices.Sorted(maps.Keys(modules)) {
			b.add(path.Join("policy", name), string(modules[name]), nil)
		}
		if err != nil {
			b.add("policy", nil, err)
		}
	}
}

// add adds a member: text as it is, and anything else as JSON; in either case without
// secrets.
func (b *supportBundle) add(name string, content any, failed error) {
	m := supportFile{Name: name}
	if failed != nil {
		m.Missing = b.clean(failed.Error())
	}
	text, isText := content.(string)
	if document, err := json.Marshal(content); err == nil && !isText && string(document) != "null" {
		var out bytes.Buffer
		_ = json.Indent(&out, jsonrpc.MapStrings(document, b.clean), "", "  ") // it is JSON
		m.text = append(out.Bytes(), '\n')
	}
	for line := range strings.Lines(text) {
		if json.Valid([]byte(line)) {
			line = string(jsonrpc.MapStrings([]byte(line), b.clean)) + "\n"
		}
		m.text = append(m.text, b.clean(line)...)
	}
	m.Bytes = len(m.text)
	b.Members = append(b.Members, m)
}

// serverStderr matches why a server ended, and what it wrote last on stderr.
var serverStderr = regexp.MustCompile(`(the server ended: (?:signal: )?[^:\n]*): [^\n]*`)

// mailAddress matches addresses of persons, and no version of a package (name@1.2.3).
var mailAddress = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\pL\pN._%+'-]+@(?:[\pL\pN-]+\.)+\pL{2,}`) })

// clean returns a text without secrets, without mail addresses, and without what servers write
// on stderr, of which toolgate does not know whether it is secret.
func (b *supportBundle) clean(text string) string {
	text = serverStderr.ReplaceAllString(text, "$1: (stderr is left out)")
	return mailAddress().ReplaceAllString(b.redact(text), "[mail address]")
}

// listener reads what the admin listener of the running toolgate answers, with any status.
func (b *supportBundle) listener(path string) func(context.Context) (any, error) {
	return func(ctx context.Context) (any, error) {
		res, _, err := b.e.Send(ctx, command.PeopleListener, http.MethodGet, path, nil)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, command.MaxAnswer))
		if json.Valid(text) {
			return json.RawMessage(text), err
		}
		return string(text), err
	}
}

// verified verifies the trail as audit verify does. A report has heads and numbers, and no
// content of records.
func (b *supportBundle) verified(ctx context.Context) (any, error) {
	dir, err := b.e.Trail()
	if err != nil {
		return nil, err
	}
	var x notary.Evidence
	rep, err := records.Verify(b.e, &x, nil, dir)
	if err != nil {
		return nil, err
	}
	faults, err := records.Contradictions(ctx, b.e, []string{dir}, rep, &x)
	v, _ := records.VerdictOn(rep, string(notary.ByContent), faults...)
	return v, err
}

// Bounds of what is read of a log: its end, in bytes, and the lines that are kept.
const (
	logBytes = 4 << 20
	logLines = 2_000
)

// logLevel matches the level of a log line in either form.
var logLevel = regexp.MustCompile(`\[(TRACE|DEBUG|INFO|WARN|ERROR)\s*\]|"@level":"([a-z]+)"`)

// logLines returns the last lines of the log. It omits lines that toolgate did not write, and
// lines of levels at which arguments of calls and the stderr of servers may appear.
func (b *supportBundle) logLines(context.Context) (any, error) {
	in := b.e.Stdin
	switch b.log {
	case "":
		return nil, errors.New("no log was named: --log FILE, or journalctl -u toolgate -o cat | toolgate support-bundle --log -")
	case "-":
	default:
		f, err := os.Open(b.log)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Size() > logBytes {
			_, _ = f.Seek(-logBytes, io.SeekEnd) // a pipe is read whole
		}
		in = f
	}
	text, err := io.ReadAll(in)
	var kept []string
	for line := range strings.Lines(string(text)) {
		level := logLevel.FindStringSubmatch(line)
		if level != nil && slices.Contains([]string{"info", "warn", "error"}, strings.ToLower(level[1]+level[2])) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-logLines):], ""), err
}

// write writes the bundle to a new file that only its owner can read.
func (b *supportBundle) write(file string) (err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			_ = os.Remove(file) // the first error says more
		}
	}()
	index, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(out)
	w := tar.NewWriter(packed)
	for _, m := range append([]supportFile{{Name: "index.json", text: append(index, '\n')}}, b.Members...) {
		if m.text == nil {
			continue
		}
		h := &tar.Header{Name: "toolgate-support/" + m.Name, Mode: 0o600, Size: int64(len(m.text)), ModTime: time.Now()}
		if err = w.WriteHeader(h); err == nil {
			_, err = w.Write(m.text)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), packed.Close(), out.Sync())
}
