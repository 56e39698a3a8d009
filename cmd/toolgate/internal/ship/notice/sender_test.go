package notice_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/policy/approval"
)

func (w *world) troubles(s *notice.Sender) []notice.Trouble {
	w.t.Helper()
	found, err := s.Troubles(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// A notice is tried until it is taken, under one id, each try with a time and a
// signature of its own, and not before its pause is over.
func TestTriedAgain(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, status(500, 429))
	s := w.sender(r.channel())
	w.change(s, w.held(`{}`, nil), asked)
	until(t, "the first failure", func() bool { return w.rows("fault <> '' AND dead = 0") == 1 })
	var due int64
	if err := w.db.Read.QueryRow("SELECT due FROM notices").Scan(&due); err != nil {
		t.Fatal(err)
	}
	if wait := time.Unix(0, due).Sub(noon); wait < time.Second || wait > 2*time.Second {
		t.Errorf("the first pause is %v", wait)
	}
	w.pass(time.Unix(0, due).Sub(noon) - time.Nanosecond)
	w.settle(s, r)
	if n := len(r.got()); n != 1 {
		t.Fatalf("%d posts before the pause is over", n)
	}
	w.pass(time.Second)
	r.wait(t, 2)
	until(t, "the second failure", func() bool { return w.count("json:127.0.0.1 failed") == 2 })
	w.pass(notice.LongestWait)
	posts := r.wait(t, 3)
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 })
	for _, p := range posts {
		if p.id() != posts[0].id() || string(p.body) != string(posts[0].body) {
			t.Errorf("a repeat is another notice: %s, %s", p.id(), posts[0].id())
		}
	}
	if posts[0].header.Get("webhook-signature") == posts[2].header.Get("webhook-signature") {
		t.Error("a repeat has the signature of the first try")
	}
	until(t, "its delivery and the barrier's are counted", func() bool { return w.count("json:127.0.0.1 sent") == 2 })
}

// Retry-After lengthens the pause, within bounds.
func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{"60": time.Minute, "99999999": notice.LongestWait} {
		w := newWorld(t)
		r := newReceiver(t, func(_ int, rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Retry-After", header)
			rw.WriteHeader(http.StatusServiceUnavailable)
		})
		w.change(w.sender(r.channel()), w.held(`{}`, nil), asked)
		until(t, "a failure", func() bool { return w.rows("fault <> ''") == 1 })
		var due int64
		if err := w.db.Read.QueryRow("SELECT due FROM notices").Scan(&due); err != nil {
			t.Fatal(err)
		}
		if got := time.Unix(0, due).Sub(noon); got != want {
			t.Errorf("Retry-After %s: %v, want %v", header, got, want)
		}
	}
}

// 410 Gone ends it at once; so does a ticket that has expired.
func TestGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		answer int
		change approval.Change
		pass   time.Duration
		fault  string
	}{
		"gone":              {410, asked, 0, "it answered with status 410: it wants no more notices"},
		"the ticket is old": {500, asked, 15*time.Minute - time.Second, "it answered with status 500"},
		"the news is old":   {500, denied, notice.NewsTime - time.Second, "it answered with status 500"},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t), newReceiver(t, status(slices.Repeat([]int{c.answer}, 100)...))
			s := w.idle(r.channel())
			k := w.held(`{}`, nil)
			w.change(s, k, c.change)
			w.pass(c.pass)
			s.Start()
			until(t, "the end", func() bool { return w.count("json:127.0.0.1 dead") == 1 })
			want := []notice.Trouble{{Channel: "json:127.0.0.1", Dead: 1, Ticket: k.ID, Fault: c.fault}}
			if got := w.troubles(s); !slices.Equal(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
			w.pass(time.Hour)
			w.settle(s, r)
			if n := len(r.got()); n != 1 {
				t.Errorf("%d posts", n)
			}
			w.pass(notice.DeadTime)
			until(t, "it is forgotten", func() bool { return w.rows("TRUE") == 0 })
		})
	}
}

// A decision is told of after its ticket has expired, a request for one is not.
func TestNewsOutlivesTheTicket(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	s := w.idle(r.channel())
	first := w.held(`{"n":1}`, nil)
	w.change(s, first, asked)
	w.change(s, w.held(`{"n":2}`, nil), denied)
	w.pass(time.Hour)
	s.Start()
	if got := r.wait(t, 1)[0].decode(t); got.Type != notice.Decided {
		t.Errorf("%s", got.Type)
	}
	until(t, "the other is given up", func() bool { return w.rows("dead = 1") == 1 })
	if got := w.troubles(s); len(got) != 1 || got[0].Fault != "it was never tried" || got[0].Ticket != first.ID {
		t.Errorf("%+v", got)
	}
	if len(r.got()) != 1 {
		t.Errorf("%d posts", len(r.got()))
	}
}

// What a channel could not be told yet is told first, ticket by ticket.
func TestOrder(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, status(500))
	s := w.sender(r.channel())
	k, other := w.held(`{"n":1}`, nil), w.held(`{"n":2}`, nil)
	w.change(s, k, asked)
	until(t, "the failure", func() bool { return w.count("json:127.0.0.1 failed") == 1 })
	w.change(s, k, denied)
	w.change(s, other, asked)
	r.wait(t, 2)
	w.settle(s, r)
	w.pass(time.Minute)
	var got []string
	for _, p := range r.wait(t, 4) {
		b := p.decode(t)
		got = append(got, map[string]string{k.ID: "one ", other.ID: "two "}[b.Data.Ticket]+string(b.Data.State))
	}
	if want := []string{"one proposed", "two proposed", "one proposed", "one denied"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A channel with roles is told only of tickets that those may decide.
func TestRoles(t *testing.T) {
	w, all, some := newWorld(t), newReceiver(t, nil), newReceiver(t, nil)
	narrow := some.channel()
	narrow.Roles = []string{"cfo", "auditor"}
	s := w.sender(all.channel(), narrow)
	w.change(s, w.held(`{"n":1}`, nil), asked)
	w.change(s, w.held(`{"n":2}`, func(h *approval.Held) { h.Approval.Roles = []string{"approver", "cfo"} }), asked)
	all.wait(t, 2)
	some.wait(t, 1)
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 })
	if got := some.got(); len(got) != 1 || !slices.Contains(got[0].decode(t).Data.Roles, "cfo") {
		t.Errorf("%d posts", len(got))
	}
}

// A vote that decides nothing is no news.
func TestVote(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	s := w.sender(r.channel())
	w.change(s, w.held(`{}`, nil), approval.Change{Who: "ann", From: approval.StateProposed, To: approval.StateProposed})
	w.settle(s, r)
	if len(r.got()) != 0 {
		t.Errorf("%d posts", len(r.got()))
	}
}

// What is undone leaves no notice.
func TestUndone(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	s := w.sender(r.channel())
	k := w.held(`{}`, nil)
	tx, err := w.db.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Enqueue(t.Context(), tx, k, asked); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	w.settle(s, r)
	if len(r.got()) != 0 {
		t.Error("a change that was undone is told of")
	}
}

// A notice that cannot be written is an error, which undoes its change.
func TestEnqueueFails(t *testing.T) {
	w, r := newWorld(t), newReceiver(t, nil)
	s := w.idle(r.channel())
	k := w.held(`{}`, nil)
	tx, err := w.db.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func(tx *sql.Tx) { _ = tx.Rollback() }(tx)
	if _, err := tx.Exec("DROP TABLE notices"); err != nil {
		t.Fatal(err)
	}
	if err := s.Enqueue(t.Context(), tx, k, asked); err == nil {
		t.Error("no error")
	}
}

// A channel that hangs keeps nothing from the others, and Close ends it.
func TestSlowChannel(t *testing.T) {
	w, quick := newWorld(t), newReceiver(t, nil)
	free := make(chan struct{})
	slow := newReceiver(t, func(int, http.ResponseWriter, *http.Request) { <-free })
	defer close(free)
	s := w.sender(slow.channel(), quick.channel())
	for n := range 20 {
		w.change(s, w.held(fmt.Sprintf(`{"n":%d}`, n), nil), asked)
	}
	until(t, "delivery by the other", func() bool { return w.count("json:127.0.0.1 sent") == 20 })
	s.Close()
	if n := w.rows("due <= " + fmt.Sprint(w.clock().UnixNano())); n != 20 {
		t.Errorf("%d notices are ready for the next sender, want 20", n)
	}
	if n := w.rows("fault <> ''"); n != 0 {
		t.Errorf("%d notices have a fault that is not theirs", n)
	}
}

// Of two senders on one store, one sends each notice.
func TestTwoSenders(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	under := map[string]bool{} // :: id ⇒ being received
	var twice atomic.Int64
	r := newReceiver(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
		id := req.Header.Get("webhook-id")
		mu.Lock()
		if under[id] {
			twice.Add(1)
		}
		under[id] = true
		mu.Unlock()
	})
	first := w.sender(r.channel())
	second, err := notice.New(w.options(openStore(t, w.path)), []notice.Channel{r.channel()})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	second.Start()
	const all = 40
	for n := range all {
		w.change(first, w.held(fmt.Sprintf(`{"n":%d}`, n), func(h *approval.Held) { h.Principal.Subject = fmt.Sprint("agent-", n) }), asked)
	}
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 })
	if n := len(r.got()); n != all || twice.Load() != 0 {
		t.Errorf("%d posts, %d of them repeated, want %d", n, twice.Load(), all)
	}
}

// A try that outlives its lease no longer ends the notice: who took it over does.
func TestLostLease(t *testing.T) {
	for code, outcome := range map[int]string{200: "sent", 410: "dead", 503: "failed"} {
		t.Run(outcome, func(t *testing.T) { lostLease(t, code, "json:127.0.0.1 "+outcome) })
	}
}

func lostLease(t *testing.T, code int, outcome string) {
	w := newWorld(t)
	free := make(chan struct{})
	r := newReceiver(t, func(n int, rw http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-free // the first try sleeps through its lease
			rw.WriteHeader(code)
		} else {
			rw.WriteHeader(http.StatusUnauthorized)
		}
	})
	s := w.sender(r.channel())
	w.change(s, w.held(`{}`, nil), asked)
	r.wait(t, 1)
	w.pass(notice.LeaseTime)
	second, err := notice.New(w.options(openStore(t, w.path)), []notice.Channel{r.channel()})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	second.Start()
	until(t, "the second try fails", func() bool { return w.rows("tries = 2 AND fault <> ''") == 1 })
	until(t, "the second try is counted", func() bool { return w.count("json:127.0.0.1 failed") == 1 })
	before := w.count(outcome)
	close(free)
	until(t, "the first try ends", func() bool { return w.count(outcome) == before+1 })
	if w.rows("tries = 2 AND dead = 0 AND fault = 'it answered with status 401'") != 1 {
		t.Error("the try that had been taken over ended the notice")
	}
}

// Apply exchanges the channels while notices are on their way.
func TestApply(t *testing.T) {
	w, old, fresh := newWorld(t), newReceiver(t, status(500, 500, 500)), newReceiver(t, nil)
	s := w.sender(old.channel())
	w.change(s, w.held(`{"n":1}`, nil), asked)
	until(t, "a failure", func() bool { return w.count("json:127.0.0.1 failed") == 1 })
	if err := s.Apply([]notice.Channel{{Webhook: "ftp://x"}}); err == nil {
		t.Error("a bad channel is taken over")
	}
	if err := s.Apply([]notice.Channel{fresh.channel()}); err != nil {
		t.Fatal(err)
	}
	w.change(s, w.held(`{"n":2}`, nil), asked)
	fresh.wait(t, 1)
	w.pass(time.Minute)
	w.settle(s, fresh)
	if len(old.got()) != 1 || len(fresh.got()) != 1 {
		t.Errorf("%d and %d posts", len(old.got()), len(fresh.got()))
	}
	if got := w.troubles(s); len(got) != 1 || got[0].Channel != "" || got[0].Waiting != 1 {
		t.Errorf("%+v", got)
	}
	if err := s.Apply([]notice.Channel{old.channel()}); err != nil {
		t.Fatal(err)
	}
	old.wait(t, 2)
}
