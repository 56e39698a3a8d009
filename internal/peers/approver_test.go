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

// approver is one person who decides through the approvals API.
type approver struct{ admin, token string }

// carol returns the approver carol.
func (g *gate) carol() approver { return approver{g.Admin, approverToken} }

// verdict is the answer to a vote.
type verdict struct {
	status int    // HTTP status
	code   string // of a refusal, "" when the vote counts
	state  string // of the ticket, "" when the vote was refused
}

// request sends a request to the approvals API and decodes the answer into into.
func (d approver) request(ctx context.Context, method, path, body string, into any) (status int, err error) {
	return requestJSON(ctx, method, d.admin+"/v1/approvals"+path, d.token, body, into)
}

// requestJSON sends a request with a JSON body and decodes the answer into into.
func requestJSON(ctx context.Context, method, url, token, body string, into any) (status int, err error) {
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
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

// vote approves or denies a ticket; body is {} or has a reason or a digest. After
// an error the vote may have been counted or not.
func (d approver) vote(ctx context.Context, ticket, action, body string) (verdict, error) {
	var answer struct{ Code, State string }
	status, err := d.request(ctx, http.MethodPost, "/"+ticket+"/"+action, body, &answer)
	return verdict{status, answer.Code, answer.State}, err
}

// mustVote votes and fails the test if the vote does not count.
func (d approver) mustVote(t testing.TB, ticket, action string) {
	t.Helper()
	v, err := d.vote(t.Context(), ticket, action, `{"reason":"`+denialReason+`"}`)
	if err != nil || v.status != http.StatusOK {
		t.Fatalf("%s %s: %+v, %v", action, ticket, v, err)
	}
}

// ticketView is a ticket in the approvals API.
type ticketView struct {
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

// ticket returns one ticket.
func (d approver) ticket(t testing.TB, id string) ticketView {
	t.Helper()
	var s ticketView
	if status, err := d.request(t.Context(), http.MethodGet, "/"+id, "", &s); err != nil || status != http.StatusOK {
		t.Fatalf("reading %s: %d, %v", id, status, err)
	}
	return s
}

// list returns the tickets in a state, "" for all, newest first, without history.
func (d approver) list(t testing.TB, state string) []ticketView {
	t.Helper()
	var found struct{ Approvals []ticketView }
	if status, err := d.request(t.Context(), http.MethodGet, "?state="+state+"&limit=1000", "", &found); err != nil || status != http.StatusOK {
		t.Fatalf("listing tickets: %d, %v", status, err)
	}
	return found.Approvals
}

// allTickets returns every ticket with its history.
func (d approver) allTickets(t testing.TB) (whole []ticketView) {
	t.Helper()
	for _, k := range d.list(t, "") {
		whole = append(whole, d.ticket(t, k.ID))
	}
	return whole
}

// proposed returns the tickets without a decision.
func (d approver) proposed(t testing.TB) []ticketView {
	t.Helper()
	return d.list(t, "proposed")
}

// awaitTicket waits until a call with these arguments is held, and returns its ticket.
func (d approver) awaitTicket(t testing.TB, args string) (s ticketView) {
	t.Helper()
	program.Await(t, "a ticket for "+args, func() bool {
		for _, s = range d.proposed(t) {
			if string(s.Arguments) == args {
				return true
			}
		}
		return false
	})
	return s
}

// callCounts counts the calls of a recorder by their arguments.
func callCounts(rec *recorder.Recorder) map[string]int {
	n := map[string]int{}
	for _, c := range rec.Calls() {
		n[string(c.Arguments)]++
	}
	return n
}

// wantRuns checks how often the server received a call with these arguments.
func wantRuns(t testing.TB, rec *recorder.Recorder, args string, want int) {
	t.Helper()
	if got := callCounts(rec)[args]; got != want {
		t.Errorf("%s ran %d times, want %d", args, got, want)
	}
}

// outcome returns the outcome of a held call, as its agent sees it: done, replayed,
// pending, running, or the code of the refusal.
func outcome(t testing.TB, answer []byte) string {
	t.Helper()
	result, failure := splitAnswer(answer)
	if failure != nil {
		return readRefusal(t, failure).Data.Code
	}
	if result == nil {
		t.Fatalf("held call without result or error: %s", answer)
	}
	if status, _ := ticketOf(t, result); status != "" {
		return status
	}
	return "done"
}
