package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
)

// IndexCommand returns the command of the index of calls.
func IndexCommand(e *command.Env) *cobra.Command {
	return command.Group("index", "make the search index of calls again", e.Printing("rebuild", "empty the index of calls and fill it from the trail", func(ctx context.Context, _ []string) (*report.Report, error) {
		return rebuildIndex(ctx, e)
	}))
}

// indexed is the outcome of a rebuild.
type indexed struct {
	Calls   int     `json:"calls"`
	Bytes   int64   `json:"trail_bytes"`
	Seconds float64 `json:"seconds"`
}

// rebuildIndex fills the index of the trail in the state directory again.
func rebuildIndex(ctx context.Context, e *command.Env) (*report.Report, error) {
	dir, err := e.Trail()
	if err != nil {
		return nil, err
	}
	cfg, err := e.StateConfig()
	if err != nil {
		return nil, err
	}
	ledger, err := notary.FindLedger(keys.At(e.KeysDir()).Path(), dir)
	if err == nil && ledger.Trail == "" {
		err = command.Usage(fmt.Errorf("%w: %s\nhint: name the key directory of the trail with --keys", notary.ErrOtherKeys, e.KeysDir()))
	}
	if err != nil {
		return nil, err
	}
	bar, begun, done := e.Progress(true), time.Now(), indexed{Bytes: progress.Size(dir)}
	defer bar.End()
	read := bar.Count("indexing", done.Bytes)
	fill := func(db *store.DB) error {
		done.Calls, err = index.New(trail.Index(cfg, ledger.Trail, db)).Rebuild(ctx, read)
		if errors.Is(err, index.ErrWriting) {
			return command.Usage(fmt.Errorf("%w\nhint: it keeps the index up to date; stop it first", err))
		}
		return err
	}
	if cfg.Store != "" {
		err = e.WithStore(ctx, fill)
	} else {
		err = fill(nil)
	}
	done.Seconds = time.Since(begun).Seconds()
	return report.Of(&done, indexedText), err
}

// searchIndex prints the calls that the index of a running toolgate has of f, the newest first.
func (f *recordFilter) searchIndex(ctx context.Context, e *command.Env) error {
	query := url.Values{}
	for name, values := range map[string][]string{
		"principal": f.Principals, "person": f.Persons, "server": f.Servers, "tool": f.Tools, "outcome": f.Outcomes, "rule": f.Rules, "code": f.Codes, "ticket": f.Tickets,
		"id": {f.ID}, "argument": {f.Argument}, "text": {f.Text},
	} {
		if len(values) > 1 {
			return command.Usage(fmt.Errorf("--%s is there twice\nhint: the index of calls takes one of each; without --addr, search reads the trail", name))
		}
		for _, value := range values {
			if value != "" {
				query.Set(name, value)
			}
		}
	}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			query.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	if len(f.Kinds)+len(f.Roles) > 0 {
		return command.Usage(errors.New("the index has calls, and no kinds of records and no roles\nhint: without --addr, search reads the trail"))
	}
	var rows []index.Call
	found := 0
	for more := true; more; {
		query.Set("limit", strconv.Itoa(index.MaxLimit))
		if left := f.Most - found; f.Most > 0 {
			query.Set("limit", strconv.Itoa(min(left, index.MaxLimit)))
		}
		var page index.Page
		if err := e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/calls?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		found += len(page.Calls)
		if more = page.Next != "" && (f.Most == 0 || found < f.Most); !more {
			fmt.Fprintf(e.Stderr, "toolgate: this is the index, which is no evidence, %s behind the trail\n", time.Duration(page.BehindMS)*time.Millisecond)
		}
		if query.Set("cursor", page.Next); !e.Structured() {
			rows = append(rows, page.Calls...)
			continue
		}
		for _, c := range page.Calls {
			line, err := json.Marshal(c)
			if err == nil {
				err = e.Next(report.Document(json.RawMessage(line)))
			}
			if err != nil {
				return err
			}
		}
	}
	if e.Structured() {
		return nil
	}
	return e.Print(report.Of(rows, callsText))
}
