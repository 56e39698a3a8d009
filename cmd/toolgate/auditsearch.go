package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/plural"
)

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

// eachRecord calls do with the selected records, the oldest first.
func (e *env) eachRecord(ctx context.Context, f *recordFilter, do func(r *audit.Record, line []byte) error) error {
	if err := f.Check(); err != nil {
		return usage(fmt.Errorf("%w\nhint: * stands for anything, ? for one character, [ab] for a or b", err))
	}
	dir, err := e.trail()
	if err != nil {
		return err
	}
	defer e.recordReading(dir)
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

func auditSearch(e *env) *cobra.Command {
	var f recordFilter
	c := command("search [TEXT]", "find records of the trail", func(ctx context.Context, args []string) error {
		f.text = strings.Join(args, "")
		out := &recordPrinter{e: e}
		return out.end(e.eachRecord(ctx, &f, out.record))
	})
	f.bind(c)
	return c
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

// end prints the table, unless reading the records ended with err.
func (p *recordPrinter) end(err error) error {
	if err != nil || p.follow || p.e.Structured() {
		return err
	}
	return p.e.Print("records", p.rows)
}

func auditExport(e *env) *cobra.Command {
	var f recordFilter
	var format string
	c := withForms(command("export", "print records of the trail for another system", func(ctx context.Context, _ []string) error {
		switch format {
		case "jsonl":
			return e.eachRecord(ctx, &f, func(_ *audit.Record, line []byte) error { return e.Write(string(line) + "\n") })
		case "ocsf":
			return e.eachRecord(ctx, &f, func(r *audit.Record, _ []byte) error { return e.writeOCSF(r) })
		case "csv":
			return e.exportCSV(ctx, &f)
		}
		return usage(fmt.Errorf("unknown format %q\nhint: --format jsonl, csv or ocsf", format))
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

// csvColumns are the columns of a CSV export; a column is added at the end.
var csvColumns = []struct {
	name string
	of   func(exported) string
}{
	{"time", func(x exported) string { return x.Time.UTC().Format(time.RFC3339Nano) }},
	{"kind", func(x exported) string { return string(x.Kind) }},
	{"instance", func(x exported) string { return x.Instance }},
	{"seq", func(x exported) string { return strconv.FormatUint(x.Seq, 10) }},
	{"decision_id", func(x exported) string { return x.DecisionID }},
	{"call_id", func(x exported) string { return x.CallID }},
	{"trace_id", func(x exported) string { return x.TraceID }},
	{"subject", func(x exported) string { return x.Principal.Subject }},
	{"roles", func(x exported) string { return strings.Join(x.Principal.Roles, " ") }},
	{"server", func(x exported) string { return x.Server }},
	{"what", exported.What},
	{"result", exported.Result},
	{"effect", func(x exported) string { return x.Policy.Effect }},
	{"rule", func(x exported) string { return x.Policy.Rule }},
	{"stage", func(x exported) string { return x.Stage }},
	{"error", func(x exported) string { return x.Error }},
	{"ticket", func(x exported) string { return x.Ticket }},
	{"source", func(x exported) string {
		if x.Event == nil {
			return ""
		}
		return x.Event.Source
	}},
	{"arguments_sha256", func(x exported) string { return x.ArgumentsSHA256 }},
	{"hash", func(x exported) string { return x.Hash }},
}

// exportCSV prints records as RFC 4180 has them. A cell that a spreadsheet would take for
// a formula begins with an apostrophe: agents choose some of the words.
func (e *env) exportCSV(ctx context.Context, f *recordFilter) error {
	w := csv.NewWriter(e.out)
	row := make([]string, len(csvColumns))
	for i, column := range csvColumns {
		row[i] = column.name
	}
	err := w.Write(row)
	if err == nil {
		err = e.eachRecord(ctx, f, func(r *audit.Record, _ []byte) error {
			for i, column := range csvColumns {
				row[i] = column.of(exported{r})
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

func auditArchive(e *env) *cobra.Command {
	var to string
	at := time.Now().Add(-2160 * time.Hour)
	c := command("archive", "move the oldest records out of the trail, also while toolgate runs", func(_ context.Context, _ []string) error {
		if to == "" {
			return usage(errors.New("name the directory of the archive and the age of the records\nhint: --to DIR --before 2160h"))
		}
		return e.archive(to, at)
	})
	c.Flags().StringVar(&to, "to", "", "`DIR` of the archive; the next archive adds to it")
	c.Flags().Var((*moment)(&at), "before", "archive records from before this `TIME`: RFC 3339, or how long ago (default: 2160h ago)")
	return c
}

// archive moves records of a trail that verifies, and records that it did.
func (e *env) archive(to string, before time.Time) error {
	dir, err := e.trail()
	if err != nil {
		return err
	}
	if inside, err := filepath.Rel(dir, to); err == nil && filepath.IsLocal(inside) {
		return usage(fmt.Errorf("%s is in the trail\nhint: choose a directory elsewhere", to))
	}
	evidence, err := e.evidence(dir, nil)
	if err != nil {
		return err
	}
	rep, err := e.verify(evidence, dir)
	if err != nil {
		return err
	}
	if !rep.OK() {
		return e.verdict(rep)
	}
	trail, err := e.openTrail()
	if err != nil {
		return err
	}
	signing := trail.Signing()
	done, err := audit.Archive(dir, to, before, time.Now(), signing.Ledger.Trail, signing.Signer)
	event := &audit.Event{Name: audit.EventArchived, Reason: fmt.Sprintf("%s from before %s to %s", plural.Count(done.Segments, "segment"), before.UTC().Format(time.RFC3339), to)}
	err = errors.Join(err, trail.Write(audit.KindEvent, &audit.Record{Principal: audit.Principal{Subject: systemUser()}, Event: event}), trail.Close())
	if err != nil {
		return err
	}
	return e.Print("archived", done)
}
