package cli

import (
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

func TestMain(m *testing.M) {
	// Where no guardian is embedded, the program of a script is its own, by another name.
	if sandbox.IsGuardian(os.Args[1:]) {
		os.Exit(guardian.Main(os.Args[2:]))
	}
	testscript.Main(guarded{m}, map[string]func(){"toolgate": toolgateMain, "recorder": recorderMain, "sqlite": sqliteMain})
}

// guarded runs tests that must not leave processes behind.
type guarded struct{ m *testing.M }

func (g guarded) Run() int { return program.Guard(func() int { return postgres.Run(g.m) }) }

// toolgateMain is Main, and ends with the test program: one that is killed
// interrupts no script's background commands.
func toolgateMain() {
	completionTime = patience // a shell gives up earlier, and a busy machine would then complete nothing
	if err := program.TetherSelf(); err != nil {
		panic(err)
	}
	Main(command.Version)
}

// recorderMain is an upstream for scripts: recorder CONFIG RECORD plays what the
// file CONFIG says, a recorder.Config, and writes what it receives to RECORD.
func recorderMain() {
	config, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for name, value := range map[string]string{"RECORDER_CONFIG": string(config), "RECORDER_FILE": os.Args[2]} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	recorder.Main(func([]string) bool { return false }, nil)
}

// sqliteMain is a process of the same user that writes to the state: sqlite FILE SCRIPT
// executes the statements of a script.
func sqliteMain() {
	script, err := os.ReadFile(os.Args[2])
	if err == nil {
		var db *sql.DB
		if db, err = sql.Open("sqlite", os.Args[1]); err == nil {
			_, err = db.Exec(string(script))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// repository is the directory of go.mod, seen from this package.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// quickScripts are the scripts of make test; make test-all runs all.
var quickScripts = []string{"approval", "execute", "init", "secrets", "serve", "server", "tickets", "token", "tool", "usage", "v1", "verify"}

func TestScripts(t *testing.T) {
	t.Parallel()
	p := params(t, filepath.Join("testdata", "script"))
	if testing.Short() {
		for _, name := range quickScripts {
			p.Files = append(p.Files, filepath.Join(p.Dir, name+".txtar"))
		}
		p.Dir = ""
	}
	testscript.Run(t, p)
}

// The story that the README shows.
func TestStory(t *testing.T) {
	t.Parallel()
	p := params(t, "")
	p.Dir, p.Files = "", []string{filepath.Join(repository(t), "testdata", "story.txtar")}
	testscript.Run(t, p)
}

func params(t *testing.T, dir string) testscript.Params {
	root := repository(t)
	return testscript.Params{
		Dir: dir, RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Values[authorities{}] = make(map[string]*authority.Authority)
			e.Setenv("ROOT", root)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, ".config")) // the keys of toolgate
			e.Setenv("GORACE", "atexit_sleep_ms=0")                          // else every program takes a second to exit
			for _, name := range []string{"AGENTS", "ADMIN", "SPARE"} {
				e.Setenv(name, program.FreeAddress(t))
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name == "postgres" {
				return postgres.Wanted(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready": cmdReady, "exits": cmdExits, "repeat": cmdRepeat, "ticket": cmdTicket, "tamper": cmdTamper, "forge": cmdForge,
			"replace": cmdReplace, "eventually": cmdEventually, "await": cmdAwait, "get": cmdGet, "signal": cmdSignal, "until": cmdUntil,
			"post": cmdPost, "artifact": cmdArtifact, "keep": cmdKeep, "mistake": cmdMistake, "certify": cmdCertify, "secretless": cmdSecretless,
			"next": cmdNext, "database": cmdDatabase,
		},
	}
}

// cmdDatabase puts the URL of a new PostgreSQL database, with a password that the server
// does not look at, into a variable.
func cmdDatabase(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: database VARIABLE PASSWORD")
	}
	address, err := postgres.New()
	ts.Check(err)
	u, err := url.Parse(address)
	ts.Check(err)
	u.User = url.UserPassword(u.User.Username(), args[1])
	ts.Setenv(args[0], u.String())
}

// cmdReady waits until a toolgate serves and each upstream has answered or
// failed. A toolgate is ready after a second; a slow machine takes longer to
// start a program.
func cmdReady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready ADDRESS")
	}
	poll(ts, "http://"+args[0]+"/readyz?verbose", settled)
}

var starting = regexp.MustCompile(`(?m)^upstream \S+ starting|^degraded without .*(store|upstreams)`)

func settled(status int, body string) bool {
	return status == http.StatusOK && !starting.MatchString(body)
}

// cmdAwait waits until what a URL answers matches, or with ! until it does not.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] await URL PATTERN")
	}
	want, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	poll(ts, args[0], func(status int, body string) bool { return status == http.StatusOK && want.MatchString(body) != neg })
}

// poll asks a URL until the answer is good.
func poll(ts *testscript.TestScript, url string, good func(status int, body string) bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var body string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		status, text, err := visit(url, "")
		if err == nil && good(status, text) {
			return
		}
		body = text
	}
	ts.Fatalf("waited for %s in vain; it says at last: %s", url, body)
}

// anyone does not ask whose certificate a server has.
var anyone = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

func visit(url, token string) (status int, body string, err error) {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := anyone.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// cmdGet asks a URL once, wants a status, and leaves the body for stdout.
func cmdGet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: get STATUS URL [TOKEN]")
	}
	status, body, err := visit(args[1], strings.Join(args[2:], ""))
	ts.Check(err)
	fmt.Fprint(ts.Stdout(), body)
	if fmt.Sprint(status) != args[0] {
		ts.Fatalf("status %d, want %s", status, args[0])
	}
}

// cmdPost sends a file as JSON, with a token unless that is -, wants a status,
// and leaves the body for stdout.
func cmdPost(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: post STATUS URL TOKEN FILE")
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, args[1], strings.NewReader(ts.ReadFile(args[3])))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	if args[2] != "-" {
		req.Header.Set("Authorization", "Bearer "+args[2])
	}
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	ts.Check(err)
	fmt.Fprint(ts.Stdout(), string(body))
	if fmt.Sprint(res.StatusCode) != args[0] {
		ts.Fatalf("status %d, want %s: %s", res.StatusCode, args[0], body)
	}
}

// cmdArtifact keeps the id of the first artifact that stdout names in a
// variable.
func cmdArtifact(ts *testscript.TestScript, neg bool, args []string) {
	id := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(ts.ReadFile("stdout"))
	if neg || len(args) != 1 || id == "" {
		ts.Fatalf("usage: artifact VARIABLE, after an answer that names one")
	}
	ts.Setenv(args[0], id)
}

// cmdUntil runs a program with a file as stdin until its stdout matches.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: until PATTERN STDIN program [args...]")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		ts.Check(ts.Exec("sh", append([]string{"-c", `exec "$@" <"$0"`}, args[1:]...)...))
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("stdout never matches %s", args[0])
}

// cmdSignal sends a signal to everything that runs in the background.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	known := map[string]os.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM}
	if neg || len(args) != 1 || known[args[0]] == nil {
		ts.Fatalf("usage: signal HUP|TERM")
	}
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(known[args[0]]))
	}
}

// cmdExits runs a program and wants one exit code. Its output is for stdout
// and stderr, as after exec.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitCode(ts, args[1:]); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// exitCode runs a program and gives its exit code, -1 when it did not run.
func exitCode(ts *testscript.TestScript, args []string) int {
	err, x := ts.Exec(args[0], args[1:]...), (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &x):
		return x.ExitCode()
	}
	return -1
}

// cmdMistake runs toolgate and wants a refusal: exit 2 or 4, nothing on stdout, an error
// that matches one pattern and a hint that matches the other.
func cmdMistake(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: mistake ERROR HINT [args...]")
	}
	code := exitCode(ts, append([]string{"toolgate"}, args[2:]...))
	_, last, _ := strings.Cut(ts.ReadFile("stderr"), "toolgate: error: ") // lines before it may say where it looked
	said, hint, _ := strings.Cut(last, "\nhint: ")
	switch {
	case code != command.ExitUsage && code != command.ExitUnreachable || ts.ReadFile("stdout") != "":
		ts.Fatalf("exit code %d, stdout %q: that is no refusal", code, ts.ReadFile("stdout"))
	case !regexp.MustCompile(args[0]).MatchString(said):
		ts.Fatalf("the error does not match %q", args[0])
	case !regexp.MustCompile(args[1]).MatchString(hint):
		ts.Fatalf("the hint %q does not match %q", hint, args[1])
	}
}

// cmdRepeat runs a program so many times and wants each to succeed.
func cmdRepeat(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: repeat N program [args...]")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i := range n {
		if err := ts.Exec(args[1], args[2:]...); err != nil {
			ts.Fatalf("run %d of %d: %v", i+1, n, err)
		}
	}
}

// cmdTicket puts the id of the one ticket that waits into a variable.
func cmdTicket(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: ticket VARIABLE [flags of approval list...]")
	}
	ts.Check(ts.Exec("toolgate", append([]string{"approval", "list", "--state", "proposed", "-o", "json"}, args[1:]...)...))
	var found struct{ Approvals []struct{ ID string } }
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &found))
	if len(found.Approvals) != 1 {
		ts.Fatalf("%d tickets wait, want 1", len(found.Approvals))
	}
	ts.Setenv(args[0], found.Approvals[0].ID)
}

// cmdKeep puts what a group matched in the last output into a variable.
func cmdKeep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep VARIABLE PATTERN")
	}
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("%q matches nothing in what was printed", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// authorities is the key of a script's certificate authorities, by their file.
type authorities struct{}

// cmdCertify writes a certificate to PATH.crt, PATH.key and, both together, PATH.pem.
// The authority is made with the file of its certificate.
func cmdCertify(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: certify AUTHORITY.pem PATH DURATION NAME...")
	}
	valid, err := time.ParseDuration(args[2])
	ts.Check(err)
	all := ts.Value(authorities{}).(map[string]*authority.Authority)
	if all[args[0]] == nil {
		all[args[0]], err = authority.New(args[0])
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[0]), all[args[0]].PEM(), 0o600))
	}
	ts.Check(all[args[0]].Write(ts.MkAbs(args[1]), valid, args[3:]...))
}

// cmdTamper changes one byte in the middle of the largest segment of an audit
// trail.
func cmdTamper(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tamper DIRECTORY")
	}
	found, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*", "*.jsonl"))
	ts.Check(err)
	var largest string
	var text []byte
	for _, f := range found {
		b, err := os.ReadFile(f)
		ts.Check(err)
		if len(b) > len(text) {
			largest, text = f, b
		}
	}
	if largest == "" {
		ts.Fatalf("no segments under %s", args[0])
	}
	at := len(text)/2 + strings.Index(string(text[len(text)/2:]), `"principal"`) + len(`"principal":{"subject":"`)
	text[at] ^= 1
	ts.Check(os.WriteFile(largest, text, 0o600))
}

// cmdReplace replaces a text in a file.
func cmdReplace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	text, err := os.ReadFile(path)
	ts.Check(err)
	if !strings.Contains(string(text), args[1]) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(path, []byte(strings.ReplaceAll(string(text), args[1], args[2])), 0o600))
}

// cmdEventually runs a program until it exits with the code wanted.
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually CODE program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var seen []int
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		got := exitCode(ts, args[1:])
		if got == want {
			return
		}
		if !slices.Contains(seen, got) {
			seen = append(seen, got)
		}
	}
	ts.Fatalf("exit codes %v, never %d", seen, want)
}
