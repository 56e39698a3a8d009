// Package records is the commands of the audit trail, its index and its witness, and of the state: backups,
// another database, and replicas.
package records

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
)

// AuditCommand returns the commands of the audit trail.
func AuditCommand(e *command.Env) *cobra.Command {
	var f recordFilter
	search := command.New("search [TEXT]", "find records of the trail", func(ctx context.Context, args []string) error {
		if f.Text = strings.Join(args, ""); e.Addr != "" {
			return f.searchIndex(ctx, e)
		}
		out := &recordPrinter{e: e}
		return f.each(e, func(dir string) error {
			for r, err := range f.Records(ctx, dir) {
				if err == nil {
					err = out.record(r.Record, r.Line)
				}
				if err != nil {
					return err
				}
			}
			return out.end()
		})
	})
	f.bind(search)
	search.Flags().StringVar(&e.Addr, "addr", "", "`URL` of an admin listener whose index of calls to ask instead")
	return command.Group("audit", "read, verify and archive the audit trail", auditTail(e), search, auditExport(e), auditVerify(e), auditArchive(e), auditWitness(e))
}

func auditTail(e *command.Env) *cobra.Command {
	var n int
	var follow bool
	c := command.New("tail", "print the last records of the trail", func(ctx context.Context, _ []string) error {
		out := &recordPrinter{e: e, follow: follow}
		if e.Addr != "" {
			from := "/v1/audit/tail?n=" + strconv.Itoa(n)
			if follow {
				from += "&follow=1"
			}
			res, err := e.Request(ctx, command.PeopleListener, http.MethodGet, from, nil)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if err := EachLine(ctx, res.Body, out.line); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("reading the trail: %w", err)
			}
			return out.end()
		}
		dir, err := e.Trail()
		if err != nil {
			return err
		}
		defer recordReading(e, dir)
		for line, err := range audit.Tail(ctx, dir, audit.TailOptions{Records: n, Follow: follow}) {
			if errors.Is(err, context.Canceled) {
				break
			}
			if err == nil {
				err = out.line(line)
			}
			if err != nil {
				return command.Missing(err)
			}
		}
		return out.end()
	})
	c.Flags().IntVarP(&n, "lines", "n", 10, "`COUNT` of records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow the trail as records are written")
	c.Flags().StringVar(&e.Addr, "addr", "", "`URL` of an admin listener to ask instead")
	return c
}

// EachLine calls do with each line of r. It returns the first error, which is io.EOF at the
// end, and nil when ctx has ended.
func EachLine(ctx context.Context, r io.Reader, do func(line []byte) error) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the reader was ended with ctx
		}
		if err == nil {
			err = do(line)
		}
		if err != nil {
			return err
		}
	}
}

func auditVerify(e *command.Env) *cobra.Command {
	var x notary.Evidence
	var files []string
	var trailOnly bool
	var archive, witnessKey, require string
	c := command.New("verify [DIR...]", "verify every chain of the trail, its signatures, and the checkpoints that others hold", func(ctx context.Context, args []string) error {
		if e.Addr != "" {
			v := new(notary.Verified)
			if len(args)+len(files)+len(x.Anchors) > 0 || archive+witnessKey != "" {
				return command.Usage(errors.New("a running toolgate verifies its own trail by its own keys\nhint: leave out --addr to verify something else"))
			}
			if err := e.RunJob(ctx, "/v1/audit/verify", "", nil, v); err != nil {
				return err
			}
			judged, bad := VerdictOn(v.Report, require, v.State...)
			return errors.Join(e.Print(report.Of(judged, verifiedText)), bad)
		}
		dirs, err := trails(e, args, archive)
		if err != nil {
			return err
		}
		x.Archive, x.Replica = archive != "", len(args) == 0
		trailOnly = trailOnly || x.Archive
		if !trailOnly { // the last checkpoint of each chain of the replicas of a store
			if x.Notes, err = command.OfStore(ctx, e, fleet.StoredNotes); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if witnessKey != "" {
			v, err := notary.ReadWitnessKey(witnessKey)
			if err != nil {
				return command.Usage(err)
			}
			x.Cosigners = append(x.Cosigners, v)
		}
		rep, err := Verify(e, &x, files, dirs...)
		if err != nil {
			return err
		}
		var faults []string
		if !trailOnly {
			faults, err = Contradictions(ctx, e, dirs, rep, &x)
		}
		v, bad := VerdictOn(rep, require, faults...)
		return errors.Join(err, e.Print(report.Of(v, verifiedText)), bad)
	})
	c.Flags().StringArrayVar(&files, "key", nil, "PEM `FILE` of a public key that signs checkpoints (default: those of the key directory); may be repeated")
	c.Flags().StringArrayVar(&x.Anchors, "anchor", nil, "`FILE|DIR` with checkpoints from an anchor; may be repeated")
	c.Flags().StringVar(&witnessKey, "witness-key", "", "`FILE` with the key of a witness; the notes of anchors need its signature")
	c.Flags().StringVar(&archive, "archive", "", "verify the archive in `DIR` instead of the trail")
	c.Flags().StringVar(&require, "require", string(notary.ByContent), "what has to be proved: `content|independence`, the latter in addition to the former")
	c.Flags().StringVar(&e.Addr, "addr", "", "`URL` of an admin listener whose toolgate verifies its trail")
	c.Flags().BoolVar(&trailOnly, "trail-only", false, "do not compare the trail with the store")
	return c
}

// trails returns the trails to verify: the archive, those of state directories, or the one
// of this state directory. A directory without a trail in it is one.
func trails(e *command.Env, states []string, archive string) (dirs []string, err error) {
	switch {
	case archive != "" && len(states) > 0:
		return nil, command.Usage(errors.New("an archive is verified alone\nhint: leave out the directories, or --archive"))
	case archive != "":
		return []string{archive}, nil
	case len(states) == 0:
		cfg, err := e.StateConfig()
		if err != nil {
			return nil, err
		}
		return []string{trail.Dir(cfg.State)}, nil
	}
	for _, state := range states {
		dir := trail.Dir(state)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			dir = state
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// Verify verifies the trails in dirs by x, to which it adds public keys and the ledgers of
// the trails. Given files with keys, it uses these and nothing of this machine's key directory.
func Verify(e *command.Env, x *notary.Evidence, files []string, dirs ...string) (rep notary.Report, err error) {
	if x.Directory = len(files) == 0; x.Directory {
		err = trail.AddKeys(x, keys.At(e.KeysDir()), dirs...)
	} else {
		err = addKeyFiles(x, files)
	}
	if err != nil {
		return rep, err
	}
	bar := e.Progress(false)
	defer bar.End()
	x.Progress = bar.Count("verifying", progress.Size(dirs...))
	rep, err = x.Verify(dirs...)
	if errors.Is(err, notary.ErrOtherKeys) {
		return rep, command.Usage(fmt.Errorf("%w: %s\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key", notary.ErrOtherKeys, e.KeysDir()))
	}
	return rep, command.Missing(err)
}

// addKeyFiles adds to x the verifiers of checkpoints whose public keys are in PEM files.
func addKeyFiles(x *notary.Evidence, files []string) error {
	var known []ed25519.PublicKey
	for _, file := range files {
		key, err := keys.ReadPublic(file)
		if err != nil {
			return command.Usage(err)
		}
		known = append(known, key)
	}
	return trail.AddVerifiers(x, known)
}

// Contradictions compares the tickets of the store, where there is one, with the trails.
func Contradictions(ctx context.Context, e *command.Env, trails []string, rep notary.Report, x *notary.Evidence) (faults []string, err error) {
	err = e.WithStore(ctx, func(db *store.DB) error {
		var kept time.Duration
		if x.Replica && db.Shared() {
			cfg, err := e.StateConfig()
			if err != nil {
				return err
			}
			kept = cfg.Approvals.Keep
		}
		faults, err = trail.Contradictions(ctx, db, keys.At(e.KeysDir()), trails, rep, x, kept)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return faults, err
}

// VerdictOn returns the outcome. Its error has the exit code, unless what is required was proved.
func VerdictOn(rep notary.Report, require string, faults ...string) (notary.Verified, error) {
	var bad error
	switch v := rep.Verdicts; {
	case !rep.OK() || len(faults) > 0:
		bad = &command.Exit{Code: command.ExitAudit, Err: errors.New("the audit trail does not verify")}
	case v.Content != notary.OK:
		bad = &command.Exit{Code: command.ExitUnproven, Err: errors.New("the content of the audit trail is not proved\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key")}
	case require == string(notary.ByIndependence) && v.Independence != notary.OK:
		bad = &command.Exit{Code: command.ExitUnproven, Err: errors.New("the independence of the audit trail is not proved\nhint: name checkpoints from an anchor with --anchor, or the key directory of the trail with --keys")}
	}
	return notary.Verified{OK: bad == nil, State: faults, Report: rep}, bad
}

// recordFilter selects records of the trail.
type recordFilter struct{ trail.Selection }

func (f *recordFilter) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.Var((*command.Moment)(&f.Since), "since", "`TIME` from which on: RFC 3339, or how long ago, such as 24h (default: everything)")
	flags.Var((*command.Moment)(&f.Until), "until", "`TIME` at which to end: RFC 3339, or how long ago (default: now)")
	flags.StringSliceVar(&f.Kinds, "kind", nil, "only records of this `KIND`; may be repeated")
	flags.StringSliceVar(&f.Outcomes, "outcome", nil, "only this `OUTCOME`; may be repeated")
	flags.StringSliceVar(&f.Principals, "principal", nil, "only records of this `SUBJECT`; may be repeated")
	flags.StringSliceVar(&f.Persons, "person", nil, "only records of principals of this `PERSON`; may be repeated")
	flags.StringSliceVar(&f.Roles, "role", nil, "only records of principals with this `ROLE`; may be repeated")
	flags.StringSliceVar(&f.Tools, "tool", nil, "only this `TOOL` as agents call it, this method or this event; * stands for anything; may be repeated")
	flags.StringSliceVar(&f.Servers, "server", nil, "only records about this `SERVER`; may be repeated")
	flags.StringSliceVar(&f.Rules, "rule", nil, "only this `RULE` of the policy; may be repeated")
	flags.StringSliceVar(&f.Codes, "code", nil, "only this kernel `CODE` of a refusal; may be repeated")
	flags.StringVar(&f.Argument, "argument", "", "only records whose arguments have this `POINTER=VALUE`: a JSON pointer, and a string's text or another scalar as JSON")
	flags.StringSliceVar(&f.Tickets, "ticket", nil, "only records about this `TICKET`; may be repeated")
	flags.StringVar(&f.ID, "id", "", "only records with this decision, call, trace or request `ID`")
	flags.IntVarP(&f.Most, "lines", "n", 0, "at most this `COUNT` of records (default: all)")
}

// each reads the trail with do. Reading is recorded.
func (f *recordFilter) each(e *command.Env, do func(dir string) error) error {
	if err := f.Check(); errors.Is(err, path.ErrBadPattern) {
		return command.Usage(fmt.Errorf("%w\nhint: * stands for anything, ? for one character, [ab] for a or b", err))
	} else if err != nil {
		return command.Usage(fmt.Errorf("%w\nhint: /to=bob", err))
	}
	dir, err := e.Trail()
	if err != nil {
		return err
	}
	defer recordReading(e, dir)
	return do(dir)
}

// recordPrinter prints records: each by itself where they are followed or the output is
// for programs, and otherwise all in one table.
type recordPrinter struct {
	e      *command.Env
	follow bool
	rows   []trail.Row
}

// record prints r, which was read from line.
func (p *recordPrinter) record(r *audit.Record, line []byte) error {
	switch {
	case p.e.Structured():
		return p.e.Next(report.Document(json.RawMessage(line))) // as it is in the trail
	case p.follow:
		return p.e.Next(report.Of(trail.Row{Record: r}, recordText))
	}
	p.rows = append(p.rows, trail.Row{Record: r})
	return nil
}

// line prints the record of a line.
func (p *recordPrinter) line(line []byte) error {
	r, err := audit.Parse(line)
	if err != nil && !p.e.Structured() {
		return nil // audit verify reports it
	}
	return p.record(r, line)
}

// end prints the table.
func (p *recordPrinter) end() error {
	if p.follow || p.e.Structured() {
		return nil
	}
	return p.e.Print(report.Of(p.rows, recordsText))
}

func auditExport(e *command.Env) *cobra.Command {
	var f recordFilter
	var format string
	c := command.WithForms(command.New("export", "print records of the trail for another system", func(ctx context.Context, _ []string) error {
		return f.each(e, func(dir string) error {
			for line, err := range f.Export(ctx, dir, format) {
				if err == nil {
					err = e.Write(string(line) + "\n")
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}), command.NoReport)
	f.bind(c)
	c.Flags().StringVar(&format, "format", "jsonl", "form of the records: `jsonl|csv|ocsf`")
	return c
}

// auditArchive moves records of a trail that verifies, and removes the chains of which nothing is left.
func auditArchive(e *command.Env) *cobra.Command {
	var to string
	before := time.Now().Add(-2160 * time.Hour)
	c := command.New("archive", "move the oldest records out of the trail, also while toolgate runs", func(ctx context.Context, _ []string) error {
		if to == "" {
			return command.Usage(errors.New("name the directory of the archive and the age of the records\nhint: --to DIR --before 2160h"))
		}
		dir, err := e.Trail()
		if err != nil {
			return err
		}
		if inside, err := filepath.Rel(dir, to); err == nil && filepath.IsLocal(inside) {
			return command.Usage(fmt.Errorf("%s is in the trail\nhint: choose a directory elsewhere", to))
		}
		rep, err := Verify(e, &notary.Evidence{}, nil, dir)
		if err != nil {
			return err
		}
		if !rep.OK() {
			v, bad := VerdictOn(rep, string(notary.ByContent))
			return errors.Join(e.Print(report.Of(v, verifiedText)), bad)
		}
		own, err := e.OpenTrail()
		if err != nil {
			return err
		}
		done, err := trail.Archive(own, rep, dir, to, before, command.SystemUser())
		if err != nil {
			return err
		}
		gone := slices.Concat(rep.Removed, done.Removed) // what an interrupted archiving left is forgotten too
		if len(gone) > 0 {
			err = e.WithStore(ctx, func(db *store.DB) error { return fleet.ForgetChains(ctx, db, gone) })
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return e.Print(report.Of(done, archivedText))
	})
	c.Flags().StringVar(&to, "to", "", "`DIR` of the archive; the next archive adds to it")
	c.Flags().Var((*command.Moment)(&before), "before", "archive records from before this `TIME`: RFC 3339, or how long ago (default: 2160h ago)")
	return c
}

// recordReading records that this command read records from the files of the trail, or
// says that it cannot: on a copy, without the key directory of the trail, or where it
// cannot write. Whoever can read the files can read them without this program.
func recordReading(e *command.Env, trail string) {
	k := keys.At(e.KeysDir())
	ledger, err := notary.FindLedger(k.Path(), trail)
	if err == nil && (ledger.Trail == "" || !k.Has(keys.Checkpoints)) {
		err = notary.ErrOtherKeys
	}
	if err == nil {
		err = e.Record(&audit.Record{Principal: audit.Principal{Subject: command.SystemUser()}, Event: &audit.Event{Name: audit.EventTrailRead, Credential: "files"}})
	}
	if err != nil {
		fmt.Fprintf(e.Stderr, "toolgate: this reading of the trail is not recorded: %s\n", report.Printable(err.Error()))
	}
}
