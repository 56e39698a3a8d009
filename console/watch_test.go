package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// watching follows the tickets of l as somebody, and gives the lines.
func watching(t *testing.T, l *listener, token, query string) *bufio.Reader {
	t.Helper()
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/approvals/watch"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/jsonl" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	return bufio.NewReader(res.Body)
}

type line struct {
	Seq      int64
	Change   struct{ From, To, Who string }
	Approval struct {
		ID, State string
		May       bool `json:"may_decide"`
	}
}

func next(t *testing.T, r *bufio.Reader) (got line) {
	t.Helper()
	text, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%q, %v", text, err)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return got
}

// A watch tells what its reader may see, as it happens, and goes on where the
// reader was.
func TestWatch(t *testing.T) {
	l := newListener(t, nil)
	l.hold(`{"n":0}`)
	ann := watching(t, l, "t-ann", "")
	other := held(`{"n":1}`)
	other.Approval.Roles = []string{"auditor"}
	if _, err := l.tickets.Claim(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	k := l.hold(`{"n":2}`)
	l.ask("POST", "/v1/approvals/"+k.ID+"/deny", `{"reason":"no"}`, as("t-bob")...)
	first, second := next(t, ann), next(t, ann)
	if first.Approval.ID != k.ID || first.Change.To != "proposed" || first.Change.Who != "agent" {
		t.Errorf("first %+v", first)
	}
	if second.Approval.ID != k.ID || second.Change.From != "proposed" || second.Change.To != "denied" || second.Approval.State != "denied" || second.Approval.May || second.Seq <= first.Seq {
		t.Errorf("second %+v", second)
	}
	again := watching(t, l, "t-ann", "?after="+jsonNumber(first.Seq))
	if got := next(t, again); got != second {
		t.Errorf("after the first: %+v", got)
	}
	l.Console.Close()
	if rest, err := io.ReadAll(again); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

func jsonNumber(n int64) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// Whoever is nobody any more is told nothing more, and sees that something is
// missing.
func TestWatchEndsWithTheToken(t *testing.T) {
	var gone atomic.Bool
	l := newListener(t, func(o *console.Options) {
		o.Identify = func(ctx context.Context, bearer string) (policy.Principal, error) {
			if gone.Load() {
				return policy.Principal{}, errors.New("no such token any more")
			}
			return identify(ctx, bearer)
		}
	})
	ann := watching(t, l, "t-ann", "")
	gone.Store(true)
	l.hold(`{"n":1}`)
	if rest, err := io.ReadAll(ann); err == nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// brokenFeed fails at once.
type brokenFeed struct{}

func (brokenFeed) Follow(context.Context, int64) iter.Seq2[approval.Event, error] {
	return func(yield func(approval.Event, error) bool) { yield(approval.Event{}, errors.New("torn")) }
}

func TestABrokenFeed(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Feed = brokenFeed{} })
	if text, err := io.ReadAll(watching(t, l, "t-ann", "")); err == nil {
		t.Errorf("a whole answer: %q", text)
	}
}

func TestRefusedWatches(t *testing.T) {
	l := newListener(t, nil)
	for _, query := range []string{"after=x", "after=-1", "after=1&after=2", "from=1", "%zz", "after="} {
		refused(t, l.ask("GET", "/v1/approvals/watch?"+query, "", as("t-ann")...), 400, "BAD_REQUEST")
	}
	refused(t, l.ask("GET", "/v1/approvals/watch", "", as("t-none")...), 401, "UNAUTHENTICATED")
}
