package cli

import (
	"bufio"
	"context"
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
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
)

func auditCommand(e *env) *cobra.Command {
	var f recordFilter
	search := command("search [TEXT]", "find records of the trail", func(ctx context.Context, args []string) error {
		if f.Text = strings.Join(args, ""); e.addr != "" {
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
	search.Flags().StringVar(&e.addr, "addr", "", "`URL` of an admin listener whose index of calls to ask instead")
	return group("audit", "read, verify and archive the audit trail", auditTail(e), search, auditExport(e), auditVerify(e), auditArchive(e), auditWitness(e))
}

func auditTail(e *env) *cobra.Command {
	var n int
	var follow bool
	c := command("tail", "print the last records of the trail", func(ctx context.Context, _ []string) error {
		out := &recordPrinter{e: e, follow: follow}
		if e.addr != "" {
			from := "/v1/audit/tail?n=" + strconv.Itoa(n)
			if follow {
				from += "&follow=1"
			}
			res, err := e.request(ctx, peopleListener, http.MethodGet, from, nil)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if err := eachLine(ctx, res.Body, out.line); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("reading the trail: %w", err)
			}
			return out.end()
		}
		dir, err := e.trail()
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
				return missing(err)
			}
		}
		return out.end()
	})
	c.Flags().IntVarP(&n, "lines", "n", 10, "`COUNT` of records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow the trail as records are written")
	c.Flags().StringVar(&e.addr, "addr", "", "`URL` of an admin listener to ask instead")
	return c
}

// eachLine calls do with each line of r. It returns the first error, which is io.EOF at the
// end, and nil when ctx has ended.
func eachLine(ctx context.Context, r io.Reader, do func(line []byte) error) error {
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

func auditVerify(e *env) *cobra.Command {
	var x notary.Evidence
	var files []string
	var trailOnly bool
	var archive, witnessKey, require string
	c := command("verify [DIR...]", "verify every chain of the trail, its signatures, and the checkpoints that others hold", func(ctx context.Context, args []string) error {
		if e.addr != "" {
			v := new(notary.Verified)
			if len(args)+len(files)+len(x.Anchors) > 0 || archive+witnessKey != "" {
				return usage(errors.New("a running toolgate verifies its own trail by its own keys\nhint: leave out --addr to verify something else"))
			}
			if err := e.runJob(ctx, "/v1/audit/verify", "", nil, v); err != nil {
				return err
			}
			judged, bad := verdictOn(v.Report, require, v.State...)
			return errors.Join(e.Print(report.Of(judged, verifiedText)), bad)
		}
		dirs, err := trails(e, args, archive)
		if err != nil {
			return err
		}
		x.Archive, x.Replica = archive != "", len(args) == 0
		trailOnly = trailOnly || x.Archive
		if !trailOnly { // the last checkpoint of each chain of the replicas of a store
			if x.Notes, err = ofStore(ctx, e, fleet.StoredNotes); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if witnessKey != "" {
			v, err := notary.ReadWitnessKey(witnessKey)
			if err != nil {
				return usage(err)
			}
			x.Cosigners = append(x.Cosigners, v)
		}
		rep, err := e.verify(&x, files, dirs...)
		if err != nil {
			return err
		}
		var faults []string
		if !trailOnly {
			faults, err = contradictions(ctx, e, dirs, rep, &x)
		}
		v, bad := verdictOn(rep, require, faults...)
		return errors.Join(err, e.Print(report.Of(v, verifiedText)), bad)
	})
	c.Flags().StringArrayVar(&files, "key", nil, "PEM `FILE` of a public key that signs checkpoints (default: those of the key directory); may be repeated")
	c.Flags().StringArrayVar(&x.Anchors, "anchor", nil, "`FILE|DIR` with checkpoints from an anchor; may be repeated")
	c.Flags().StringVar(&witnessKey, "witness-key", "", "`FILE` with the key of a witness; the notes of anchors need its signature")
	c.Flags().StringVar(&archive, "archive", "", "verify the archive in `DIR` instead of the trail")
	c.Flags().StringVar(&require, "require", string(notary.ByContent), "what has to be proved: `content|independence`, the latter in addition to the former")
	c.Flags().StringVar(&e.addr, "addr", "", "`URL` of an admin listener whose toolgate verifies its trail")
	c.Flags().BoolVar(&trailOnly, "trail-only", false, "do not compare the trail with the store")
	return c
}

// trails returns the trails to verify: the archive, those of state directories, or the one
// of this state directory. A directory without a trail in it is one.
func trails(e *env, states []string, archive string) (dirs []string, err error) {
	switch {
	case archive != "" && len(states) > 0:
		return nil, usage(errors.New("an archive is verified alone\nhint: leave out the directories, or --archive"))
	case archive != "":
		return []string{archive}, nil
	case len(states) == 0:
		cfg, err := e.stateConfig()
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

// verify verifies the trails in dirs by x, to which it adds public keys and the ledgers of
// the trails. Given files with keys, it uses these and nothing of this machine's key directory.
func (e *env) verify(x *notary.Evidence, files []string, dirs ...string) (rep notary.Report, err error) {
	if x.Directory = len(files) == 0; x.Directory {
		err = trail.AddKeys(x, keys.At(e.keysDir()), dirs...)
	} else {
		err = addKeyFiles(x, files)
	}
	if err != nil {
		return rep, err
	}
	bar := e.progress(false)
	defer bar.End()
	x.Progress = bar.Count("verifying", progress.Size(dirs...))
	rep, err = x.Verify(dirs...)
	if errors.Is(err, notary.ErrOtherKeys) {
		return rep, usage(fmt.Errorf("%w: %s\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key", notary.ErrOtherKeys, e.keysDir()))
	}
	return rep, missing(err)
}

// addKeyFiles adds to x the verifiers of checkpoints whose public keys are in PEM files.
func addKeyFiles(x *notary.Evidence, files []string) error {
	var known []keys.Public
	for _, file := range files {
		key, err := keys.ReadPublic(file)
		if err != nil {
			return usage(err)
		}
		known = append(known, key)
	}
	return trail.AddVerifiers(x, known)
}

// contradictions compares the tickets of the store, where there is one, with the trails.
func contradictions(ctx context.Context, e *env, trails []string, rep notary.Report, x *notary.Evidence) (faults []string, err error) {
	err = e.withStore(ctx, func(db *store.DB) error {
		var kept time.Duration
		if x.Replica && db.Shared() {
			cfg, err := e.stateConfig()
			if err != nil {
				return err
			}
			kept = cfg.Approvals.Keep
		}
		faults, err = trail.Contradictions(ctx, db, keys.At(e.keysDir()), trails, rep, x, kept)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return faults, err
}

// verdictOn returns the outcome. Its error has the exit code, unless what is required was proved.
func verdictOn(rep notary.Report, require string, faults ...string) (notary.Verified, error) {
	var bad error
	switch v := rep.Verdicts; {
	case !rep.OK() || len(faults) > 0:
		bad = &exit{code: exitAudit, err: errors.New("the audit trail does not verify")}
	case v.Content != notary.OK:
		bad = &exit{code: exitUnproven, err: errors.New("the content of the audit trail is not proved\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key")}
	case require == string(notary.ByIndependence) && v.Independence != notary.OK:
		bad = &exit{code: exitUnproven, err: errors.New("the independence of the audit trail is not proved\nhint: name checkpoints from an anchor with --anchor, or the key directory of the trail with --keys")}
	}
	return notary.Verified{OK: bad == nil, State: faults, Report: rep}, bad
}

// recordFilter selects records of the trail.
type recordFilter struct{ trail.Selection }

func (f *recordFilter) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.Var((*moment)(&f.Since), "since", "`TIME` from which on: RFC 3339, or how long ago, such as 24h (default: everything)")
	flags.Var((*moment)(&f.Until), "until", "`TIME` at which to end: RFC 3339, or how long ago (default: now)")
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
func (f *recordFilter) each(e *env, do func(dir string) error) error {
	if err := f.Check(); errors.Is(err, path.ErrBadPattern) {
		return usage(fmt.Errorf("%w\nhint: * stands for anything, ? for one character, [ab] for a or b", err))
	} else if err != nil {
		return usage(fmt.Errorf("%w\nhint: /to=bob", err))
	}
	dir, err := e.trail()
	if err != nil {
		return err
	}
	defer recordReading(e, dir)
	return do(dir)
}

// recordPrinter prints records: each by itself where they are followed or the output is
// for programs, and otherwise all in one table.
type recordPrinter struct {
	e      *env
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

func auditExport(e *env) *cobra.Command {
	var f recordFilter
	var format string
	c := withForms(command("export", "print records of the trail for another system", func(ctx context.Context, _ []string) error {
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
	}), noReport)
	f.bind(c)
	c.Flags().StringVar(&format, "format", "jsonl", "form of the records: `jsonl|csv|ocsf`")
	return c
}

// auditArchive moves records of a trail that verifies, and removes the chains of which nothing is left.
func auditArchive(e *env) *cobra.Command {
	var to string
	before := time.Now().Add(-2160 * time.Hour)
	c := command("archive", "move the oldest records out of the trail, also while toolgate runs", func(ctx context.Context, _ []string) error {
		if to == "" {
			return usage(errors.New("name the directory of the archive and the age of the records\nhint: --to DIR --before 2160h"))
		}
		dir, err := e.trail()
		if err != nil {
			return err
		}
		if inside, err := filepath.Rel(dir, to); err == nil && filepath.IsLocal(inside) {
			return usage(fmt.Errorf("%s is in the trail\nhint: choose a directory elsewhere", to))
		}
		rep, err := e.verify(&notary.Evidence{}, nil, dir)
		if err != nil {
			return err
		}
		if !rep.OK() {
			v, bad := verdictOn(rep, string(notary.ByContent))
			return errors.Join(e.Print(report.Of(v, verifiedText)), bad)
		}
		own, err := e.openTrail()
		if err != nil {
			return err
		}
		done, err := trail.Archive(own, rep, dir, to, before, systemUser())
		if err != nil {
			return err
		}
		gone := slices.Concat(rep.Removed, done.Removed) // what an interrupted archiving left is forgotten too
		if len(gone) > 0 {
			err = e.withStore(ctx, func(db *store.DB) error { return fleet.ForgetChains(ctx, db, gone) })
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return e.Print(report.Of(done, archivedText))
	})
	c.Flags().StringVar(&to, "to", "", "`DIR` of the archive; the next archive adds to it")
	c.Flags().Var((*moment)(&before), "before", "archive records from before this `TIME`: RFC 3339, or how long ago (default: 2160h ago)")
	return c
}
