package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// desk is where one person decides, over REST.
type desk struct{ admin, token string }

// desk gives carol's.
func (g *gate) desk() desk { return desk{g.Admin, approverToken} }

// verdict is what a vote came to.
type verdict struct {
	status int    // of HTTP
	code   string // of a refusal, "" when the vote counts
	state  string // of the ticket, "" when the vote was refused
}

// try sends a request and reads the answer into it.
func (d desk) try(ctx context.Context, method, path, body string, into any) (status int, err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, d.admin+"/v1/approvals"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return 0, fmt.Errorf("reading %s: %w", text, err)
	}
	return res.StatusCode, nil
}

// vote approves or denies a ticket; body is {} or has a reason or a digest.
// An error means that nobody knows whether the vote was taken.
func (d desk) vote(ctx context.Context, ticket, action, body string) (verdict, error) {
	var said struct{ Code, State string }
	status, err := d.try(ctx, http.MethodPost, "/"+ticket+"/"+action, body, &said)
	return verdict{status, said.Code, said.State}, err
}

// must is a vote that has to count.
func (d desk) must(t testing.TB, ticket, action string) {
	t.Helper()
	v, err := d.vote(t.Context(), ticket, action, `{"reason":"`+noInvoice+`"}`)
	if err != nil || v.status != http.StatusOK {
		t.Fatalf("%s %s: %+v, %v", action, ticket, v, err)
	}
}

// shown is a ticket as people see it.
type shown struct {
	ID, State, Digest string
	Requester, Note   string
	DecidedBy         string `json:"decided_by"`
	Arguments         json.RawMessage
	Created, Expires  time.Time
	Attached          int
	Votes             []struct {
		Subject string
		Approve bool
	}
	History []struct{ From, To, Who string }
}

// ticket reads one ticket.
func (d desk) ticket(t testing.TB, id string) shown {
	t.Helper()
	var s shown
	if status, err := d.try(t.Context(), http.MethodGet, "/"+id, "", &s); err != nil || status != http.StatusOK {
		t.Fatalf("reading %s: %d, %v", id, status, err)
	}
	return s
}

// list gives the tickets in a state, "" for all, newest first, as lists have them.
func (d desk) list(t testing.TB, state string) []shown {
	t.Helper()
	var found struct{ Approvals []shown }
	if status, err := d.try(t.Context(), http.MethodGet, "?state="+state+"&limit=1000", "", &found); err != nil || status != http.StatusOK {
		t.Fatalf("listing tickets: %d, %v", status, err)
	}
	return found.Approvals
}

// all gives every ticket, whole.
func (d desk) all(t testing.TB) (whole []shown) {
	t.Helper()
	for _, k := range d.list(t, "") {
		whole = append(whole, d.ticket(t, k.ID))
	}
	return whole
}

// waiting gives the tickets that nobody has decided on.
func (d desk) waiting(t testing.TB) []shown {
	t.Helper()
	return d.list(t, "proposed")
}

// asked waits until a call with these arguments waits for a person.
func (d desk) asked(t testing.TB, args string) (s shown) {
	t.Helper()
	program.Await(t, "a ticket for "+args, func() bool {
		for _, s = range d.waiting(t) {
			if string(s.Arguments) == args {
				return true
			}
		}
		return false
	})
	return s
}

// runs counts the calls of a recorder by their arguments.
func runs(rec *recorder.Recorder) map[string]int {
	n := map[string]int{}
	for _, c := range rec.Calls() {
		n[string(c.Arguments)]++
	}
	return n
}

// wantRuns wants so many calls with these arguments.
func wantRuns(t testing.TB, rec *recorder.Recorder, args string, want int) {
	t.Helper()
	if got := runs(rec)[args]; got != want {
		t.Errorf("%s was run %d times, want %d", args, got, want)
	}
}

// came is what became of a held call, as its agent sees it: done, replayed,
// pending, running, or the code of a refusal.
func came(t testing.TB, answer []byte) string {
	t.Helper()
	result, failure := parts(answer)
	if failure != nil {
		return readRefusal(t, failure).Data.Code
	}
	if result == nil {
		t.Fatalf("no answer to a held call: %s", answer)
	}
	if status, _ := ticketOf(t, result); status != "" {
		return status
	}
	return "done"
}
