package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/approval"
)

func auditCommand(e *env) *cobra.Command {
	var f recordFilter
	search := command("search [TEXT]", "find records of the trail", func(ctx context.Context, args []string) error {
		f.text = strings.Join(args, "")
		out := &recordPrinter{e: e}
		if err := f.each(ctx, e, out.record); err != nil {
			return err
		}
		return out.end()
	})
	f.bind(search)
	return group("audit", "read, verify and archive the audit trail", auditTail(e), search, auditExport(e), auditVerify(e), auditArchive(e), auditWitness(e))
}

func auditTail(e *env) *cobra.Command {
	var n int
	var follow bool
	c := command("tail", "print the last records of the trail", func(ctx context.Context, _ []string) error {
		out := &recordPrinter{e: e, follow: follow}
		if e.addr != "" {
			path := "/v1/audit/tail?n=" + strconv.Itoa(n)
			if follow {
				path += "&follow=1"
			}
			res, err := e.request(ctx, peopleListener, http.MethodGet, path, nil)
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
	var x audit.Evidence
	var files []string
	var trailOnly bool
	var archive, witnessKey, require string
	c := command("verify [DIR...]", "verify every chain of the trail, its signatures, and the checkpoints that others hold", func(ctx context.Context, args []string) error {
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
		return errors.Join(err, e.Print("verified", v), bad)
	})
	c.Flags().StringArrayVar(&files, "key", nil, "PEM `FILE` of a public key that signs checkpoints (default: those of the key directory); may be repeated")
	c.Flags().StringArrayVar(&x.Anchors, "anchor", nil, "`FILE|DIR` with checkpoints from an anchor; may be repeated")
	c.Flags().StringVar(&witnessKey, "witness-key", "", "`FILE` with the key of a witness; the notes of anchors need its signature")
	c.Flags().StringVar(&archive, "archive", "", "verify the archive in `DIR` instead of the trail")
	c.Flags().StringVar(&require, "require", string(audit.ByContent), "what has to be proved: `content|independence`, the latter in addition to the former")
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
func (e *env) verify(x *audit.Evidence, files []string, dirs ...string) (rep audit.Report, err error) {
	var known []keys.Public
	if x.Directory = len(files) == 0; x.Directory {
		k := keys.At(e.keysDir())
		own, err := k.Publics(keys.Checkpoints)
		elsewhere, failed := k.Publics(keys.External)
		err = errors.Join(err, failed)
		for _, dir := range dirs {
			ledger, unread := audit.FindLedger(k.Path(), dir)
			if err = errors.Join(err, unread); ledger.Trail != "" {
				x.Ledgers = append(x.Ledgers, ledger)
			}
		}
		if err != nil {
			return rep, err
		}
		known = append(own, elsewhere...)
	}
	if x.Keys, err = verifiers(known, files); err != nil {
		return rep, err
	}
	bar := e.progress(false)
	defer bar.End()
	x.Progress = bar.Count("verifying", progress.Size(dirs...))
	rep, err = x.Verify(dirs...)
	if errors.Is(err, audit.ErrOtherKeys) {
		return rep, usage(fmt.Errorf("%w: %s\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key", audit.ErrOtherKeys, e.keysDir()))
	}
	return rep, missing(err)
}

// contradictions compares the tickets of the store, where there is one, with the trails. It
// authenticates them where the key directory is known to be that of the trails.
func contradictions(ctx context.Context, e *env, trails []string, rep audit.Report, x *audit.Evidence) (faults []string, err error) {
	var dir *keys.Dir
	known := len(x.Ledgers) > 0 || slices.ContainsFunc(rep.Chains, func(c audit.Chain) bool { return c.Signed > 0 })
	if k := keys.At(e.keysDir()); x.Directory && known && k.Has(keys.Tickets) {
		dir = k
	}
	err = e.withStore(ctx, func(db *store.DB) error {
		var since time.Time
		if x.Replica && db.Shared() { // the trails of others say how older tickets ended, and the store has removed them
			cfg, err := e.stateConfig()
			if err != nil {
				return err
			}
			since = time.Now().Add(-cfg.Approvals.Keep)
		}
		faults, _, err = approval.Verify(ctx, db, dir, func() (map[string]approval.Word, time.Time, error) { return lastWords(ctx, trails, rep, since) })
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return faults, err
}

// lastWords returns the last change of each ticket in the trails since a time, and the time
// of their first record.
func lastWords(ctx context.Context, trails []string, rep audit.Report, since time.Time) (map[string]approval.Word, time.Time, error) {
	words, oldest := map[string]approval.Word{}, time.Now()
	for _, c := range rep.Chains {
		if c.First.Before(oldest) {
			oldest = c.First
		}
	}
	for _, trail := range trails {
		for r, err := range audit.NewWatch(trail, since, audit.KindTicket).Next(ctx) {
			if errors.Is(err, audit.ErrNoRecord) {
				continue // the trail's own verdict has it
			}
			if err != nil {
				return nil, oldest, err
			}
			if c := r.Change; c != nil && !r.Time.Before(since) && c.Seq >= words[r.Ticket].Seq {
				words[r.Ticket] = approval.Word{Seq: c.Seq, State: approval.State(c.To)}
			}
		}
	}
	return words, oldest, nil
}

// verifiers returns the verifiers of checkpoints that the holders of keys signed: those
// known, and those in PEM files, each once: a note with two verifiers of a key is ambiguous.
func verifiers(known []keys.Public, files []string) (found []note.Verifier, err error) {
	for _, file := range files {
		key, err := keys.ReadPublic(file)
		if err != nil {
			return nil, usage(err)
		}
		known = append(known, key)
	}
	for i, key := range known {
		if slices.ContainsFunc(known[:i], func(k keys.Public) bool { return k.Key.Equal(key.Key) }) {
			continue
		}
		v, err := audit.NewVerifier(key.Key)
		if err != nil {
			return nil, err
		}
		found = append(found, v)
	}
	return found, nil
}

// verified is the outcome of a verification as it is printed.
type verified struct {
	OK    bool     `json:"ok"`              // nothing is broken, and what was required is proved
	State []string `json:"state,omitempty"` // contradictions between trail and store
	audit.Report
}

// Records counts the records of all chains.
func (v verified) Records() (n int) {
	for _, c := range v.Chains {
		n += c.Records
	}
	return n
}

// verdictOn returns the outcome. Its error has the exit code, unless what is required was proved.
func verdictOn(rep audit.Report, require string, faults ...string) (verified, error) {
	var bad error
	switch v := rep.Verdicts; {
	case !rep.OK() || len(faults) > 0:
		bad = &exit{code: exitAudit, err: errors.New("the audit trail does not verify")}
	case v.Content != audit.OK:
		bad = &exit{code: exitUnproven, err: errors.New("the content of the audit trail is not proved\nhint: name the key directory of the trail with --keys, or the public key that signs its checkpoints with --key")}
	case require == string(audit.ByIndependence) && v.Independence != audit.OK:
		bad = &exit{code: exitUnproven, err: errors.New("the independence of the audit trail is not proved\nhint: name checkpoints from an anchor with --anchor, or the key directory of the trail with --keys")}
	}
	return verified{bad == nil, faults, rep}, bad
}

// recordFilter selects records of the trail.
type recordFilter struct {
	audit.Filter
	since, until time.Time
	text         string
	most         int
}

func (f *recordFilter) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.Var((*moment)(&f.since), "since", "`TIME` from which on: RFC 3339, or how long ago, such as 24h (default: everything)")
	flags.Var((*moment)(&f.until), "until", "`TIME` at which to end: RFC 3339, or how long ago (default: now)")
	flags.StringSliceVar(&f.Kinds, "kind", nil, "only records of this `KIND`; may be repeated")
	flags.StringSliceVar(&f.Outcomes, "outcome", nil, "only this `OUTCOME`; may be repeated")
	flags.StringSliceVar(&f.Principals, "principal", nil, "only records of this `SUBJECT`; may be repeated")
	flags.StringSliceVar(&f.Roles, "role", nil, "only records of principals with this `ROLE`; may be repeated")
	flags.StringSliceVar(&f.Tools, "tool", nil, "only this `TOOL` as agents call it, this method or this event; * stands for anything; may be repeated")
	flags.StringSliceVar(&f.Tickets, "ticket", nil, "only records about this `TICKET`; may be repeated")
	flags.StringVar(&f.ID, "id", "", "only records with this decision, call, trace or request `ID`")
	flags.IntVarP(&f.most, "lines", "n", 0, "at most this `COUNT` of records (default: all)")
}

// each calls do with the selected records, the oldest first.
func (f *recordFilter) each(ctx context.Context, e *env, do func(r *audit.Record, line []byte) error) error {
	if err := f.Check(); err != nil {
		return usage(fmt.Errorf("%w\nhint: * stands for anything, ? for one character, [ab] for a or b", err))
	}
	dir, err := e.trail()
	if err != nil {
		return err
	}
	defer recordReading(e, dir)
	found := 0
	for line, err := range audit.Lines(ctx, dir, f.since) {
		if err != nil {
			return err
		}
		r, err := audit.Parse(line)
		if err != nil {
			continue // audit verify reports it
		}
		if !f.until.IsZero() && r.Time.After(f.until) || f.most > 0 && found >= f.most {
			return nil
		}
		if f.Match(r) && bytes.Contains(line, []byte(f.text)) {
			found++
			if err := do(r, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordPrinter prints records: each by itself where they are followed or the output is
// for programs, and otherwise all in one table.
type recordPrinter struct {
	e      *env
	follow bool
	rows   []exported
}

// record prints r, which was read from line.
func (p *recordPrinter) record(r *audit.Record, line []byte) error {
	switch {
	case p.e.Structured():
		return p.e.Next("", json.RawMessage(line)) // as it is in the trail
	case p.follow:
		return p.e.Next("record", exported{r})
	}
	p.rows = append(p.rows, exported{r})
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
	return p.e.Print("records", p.rows)
}

func auditExport(e *env) *cobra.Command {
	var f recordFilter
	var format string
	c := withForms(command("export", "print records of the trail for another system", func(ctx context.Context, _ []string) error {
		switch format {
		case "ocsf":
			return f.each(ctx, e, func(r *audit.Record, _ []byte) error {
				text, err := json.Marshal(ocsfEvent(exported{r}))
				if err != nil {
					return fmt.Errorf("writing record %d of %s: %w", r.Seq, r.Instance, err)
				}
				return e.Write(string(text) + "\n")
			})
		case "csv":
			return exportCSV(ctx, e, &f)
		}
		return f.each(ctx, e, func(_ *audit.Record, line []byte) error { return e.Write(string(line) + "\n") })
	}), noReport)
	f.bind(c)
	c.Flags().StringVar(&format, "format", "jsonl", "form of the records: `jsonl|csv|ocsf`")
	return c
}

// exported is a record in tables.
type exported struct{ *audit.Record }

// What names what the record is about: a tool, a method, an event or a change.
func (x exported) What() string {
	switch {
	case x.Event != nil:
		return x.Event.Name
	case x.Method != "":
		return strings.TrimSpace(x.Method + " " + x.Exposed)
	}
	return x.Exposed
}

// Result names how it ended.
func (x exported) Result() string {
	switch {
	case x.Change != nil:
		return x.Change.From + " → " + x.Change.To
	case x.Event != nil:
		return x.Event.Reason
	case x.Outcome != "":
		return strings.TrimSpace(string(x.Outcome) + " " + x.Code)
	}
	return x.Policy.Effect
}

// columns are the names and values of a CSV export; a column is added at the end.
func (x exported) columns() [][2]string {
	source := ""
	if x.Event != nil {
		source = x.Event.Source
	}
	return [][2]string{
		{"time", x.Time.UTC().Format(time.RFC3339Nano)}, {"kind", string(x.Kind)},
		{"instance", x.Instance}, {"seq", strconv.FormatUint(x.Seq, 10)},
		{"decision_id", x.DecisionID}, {"call_id", x.CallID}, {"trace_id", x.TraceID},
		{"subject", x.Principal.Subject}, {"roles", strings.Join(x.Principal.Roles, " ")},
		{"server", x.Server}, {"what", x.What()}, {"result", x.Result()},
		{"effect", x.Policy.Effect}, {"rule", x.Policy.Rule}, {"stage", x.Stage}, {"error", x.Error},
		{"ticket", x.Ticket}, {"source", source}, {"arguments_sha256", x.ArgumentsSHA256}, {"hash", x.Hash},
	}
}

// exportCSV prints records as RFC 4180 has them. A cell that a spreadsheet would take for
// a formula begins with an apostrophe: agents choose some of the words.
func exportCSV(ctx context.Context, e *env, f *recordFilter) error {
	w := csv.NewWriter(e.out)
	row := textsOf(exported{&audit.Record{}}.columns(), func(column [2]string) string { return column[0] })
	err := w.Write(row)
	if err == nil {
		err = f.each(ctx, e, func(r *audit.Record, _ []byte) error {
			for i, column := range (exported{r}).columns() {
				row[i] = column[1]
				if strings.HasPrefix(strings.TrimLeft(row[i], " \t\r\n"), "=") || strings.IndexAny(row[i], "+-@\t\r") == 0 {
					row[i] = "'" + row[i]
				}
			}
			return w.Write(row)
		})
	}
	w.Flush()
	return errors.Join(err, w.Error())
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
		rep, err := e.verify(&audit.Evidence{}, nil, dir)
		if err != nil {
			return err
		}
		if !rep.OK() {
			v, bad := verdictOn(rep, string(audit.ByContent))
			return errors.Join(e.Print("verified", v), bad)
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
		return e.Print("archived", done)
	})
	c.Flags().StringVar(&to, "to", "", "`DIR` of the archive; the next archive adds to it")
	c.Flags().Var((*moment)(&before), "before", "archive records from before this `TIME`: RFC 3339, or how long ago (default: 2160h ago)")
	return c
}
