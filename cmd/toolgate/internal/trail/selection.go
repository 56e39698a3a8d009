package trail

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
)

// A Selection selects records of a trail. The zero Selection selects all.
type Selection struct {
	audit.Filter
	Since, Until time.Time // zero = from the beginning, to the end
	Text         string    // that the line of a record has in it
	Most         int       // records; 0 = all
}

// Records yields the selected records of the trail in dir and their lines, the oldest first. Lines
// that are no records are left out: audit verify reports them. An error ends the sequence.
func (s *Selection) Records(ctx context.Context, dir string) iter.Seq2[Selected, error] {
	return func(yield func(Selected, error) bool) {
		found := 0
		for line, err := range audit.Lines(ctx, dir, s.Since) {
			if err != nil {
				yield(Selected{}, err)
				return
			}
			r, err := audit.Parse(line)
			if err != nil {
				continue
			}
			if !s.Until.IsZero() && r.Time.After(s.Until) || s.Most > 0 && found >= s.Most {
				return
			}
			if s.Match(r) && bytes.Contains(line, []byte(s.Text)) {
				found++
				if !yield(Selected{Row{r}, line}, nil) {
					return
				}
			}
		}
	}
}

// A Selected is a record and the line that it was read from, which is valid until the next one.
type Selected struct {
	Row
	Line []byte
}

// Export yields the selected records of the trail in dir, a line each without its line feed: jsonl, as
// they are in the trail; ocsf, events of the Open Cybersecurity Schema Framework; csv, as RFC 4180 has
// them, after a line with the names of the columns. A line is valid until the next one.
func (s *Selection) Export(ctx context.Context, dir, format string) iter.Seq2[[]byte, error] {
	form, header := formOf(format)
	return func(yield func([]byte, error) bool) {
		if header != nil && !yield(header, nil) {
			return
		}
		for r, err := range s.Records(ctx, dir) {
			var line []byte
			if err == nil {
				if line, err = form(r); err != nil {
					err = fmt.Errorf("writing record %d of %s: %w", r.Seq, r.Instance, err)
				}
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// formOf returns what writes a record in a format, and the line before the first; nil = none.
func formOf(format string) (form func(Selected) ([]byte, error), header []byte) {
	switch format {
	case "ocsf":
		return func(r Selected) ([]byte, error) { return json.Marshal(ocsfEvent(r.Row)) }, nil
	case "csv":
		var names []string
		for _, c := range (Row{&audit.Record{}}).columns() {
			names = append(names, c[0])
		}
		header, _ = csvLine(names) // no name needs more than itself
		return func(r Selected) ([]byte, error) {
			var cells []string
			for _, c := range r.columns() {
				cells = append(cells, cellOf(c[1]))
			}
			return csvLine(cells)
		}, header
	}
	return func(r Selected) ([]byte, error) { return r.Line, nil }, nil
}

func csvLine(cells []string) ([]byte, error) {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	err := w.Write(cells)
	w.Flush()
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// cellOf returns a value for a spreadsheet. What one would take for a formula begins with an
// apostrophe: agents choose some of the words.
func cellOf(value string) string {
	if strings.HasPrefix(strings.TrimLeft(value, " \t\r\n"), "=") || strings.IndexAny(value, "+-@\t\r") == 0 {
		return "'" + value
	}
	return value
}

// A Row is a record in tables.
type Row struct{ *audit.Record }

// What names what the record is about: a tool, a method, an event or a change.
func (x Row) What() string {
	switch {
	case x.Event != nil:
		return x.Event.Name
	case x.Method != "":
		return strings.TrimSpace(x.Method + " " + x.Exposed)
	}
	return x.Exposed
}

// Result names how it ended.
func (x Row) Result() string {
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
func (x Row) columns() [][2]string {
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
