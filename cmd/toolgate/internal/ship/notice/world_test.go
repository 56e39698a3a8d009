package notice_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func TestMain(m *testing.M) {
	if inChild() {
		child()
	}
	goleak.VerifyTestMain(m)
}

// noon is near the real time: receivers refuse what was signed long ago.
var noon = time.Now().UTC().Truncate(time.Second)

const soon = 30 * time.Second

// world is one store with a clock that only the test moves, and what its
// senders said.
type world struct {
	t       testing.TB
	path    string
	db      *store.DB
	tickets *approval.Tickets
	log     logged

	mu   sync.Mutex // protects the fields below
	now  time.Time
	seen []string // channel and outcome of each try
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, now: noon, path: filepath.Join(t.TempDir(), "state.db")}
	w.db = openStore(t, w.path)
	ring, err := keys.Open(filepath.Join(filepath.Dir(w.path), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if w.tickets, err = approval.New(t.Context(), w.db, approval.Options{Now: w.clock, Keys: ring}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.tickets.Close() })
	return w
}

func openStore(t testing.TB, path string) *store.DB {
	t.Helper()
	db, err := postgres.State(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) observe(channel string, o notice.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, channel+" "+string(o))
}

func (w *world) count(what string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if s == what {
			n++
		}
	}
	return n
}

func (w *world) options(db *store.DB) notice.Options {
	return notice.Options{
		DB: db, Link: func(id string) string { return "https://gate.example/console/approvals/" + id },
		Poll: 20 * time.Millisecond, Now: w.clock, Observe: w.observe,
		Log: hclog.New(&hclog.LoggerOptions{Output: &w.log, Level: hclog.Trace}),
	}
}

// sender starts a sender for channels on the world's store.
func (w *world) sender(channels ...notice.Channel) *notice.Sender {
	w.t.Helper()
	s := w.idle(channels...)
	s.Start()
	return s
}

func (w *world) idle(channels ...notice.Channel) *notice.Sender {
	w.t.Helper()
	s, err := notice.New(w.options(w.db), channels)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// held makes a ticket that waits.
func (w *world) held(arguments string, change func(*approval.Held)) approval.Ticket {
	w.t.Helper()
	h := approval.Held{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{"treasurer"}},
		Server:    "standard", Tool: "manage_wallet", Exposed: "manage_wallet", Fingerprint: "sha256:f", Revision: "r1",
		Arguments: json.RawMessage(arguments), Digest: digest(arguments), Rule: "threshold", Reason: "amount above 100",
		Approval: policy.Approval{Roles: []string{"approver"}},
	}
	if change != nil {
		change(&h)
	}
	c, err := w.tickets.Claim(context.Background(), h)
	if err != nil {
		w.t.Fatal(err)
	}
	return c.Ticket
}

// change leaves the notices of a change of k as approval does: in a transaction.
func (w *world) change(s *notice.Sender, k approval.Ticket, c approval.Change) {
	w.t.Helper()
	tx, err := w.db.Write.BeginTx(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.At.IsZero() {
		c.At = w.clock()
	}
	k.State = c.To
	if err := s.Enqueue(context.Background(), tx, k, c); err != nil {
		w.t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

var (
	asked  = approval.Change{Who: "agent-7", To: approval.StateProposed, Reason: "amount above 100"}
	denied = approval.Change{Who: "ann", From: approval.StateProposed, To: approval.StateDenied, Reason: "not today"}
	done   = approval.Change{Who: "toolgate", From: approval.StateDispatching, To: approval.StateDone, Reason: "the upstream said hunter2"}
)

// rows counts the notices that are in the outbox.
func (w *world) rows(where string) (n int) {
	w.t.Helper()
	if err := w.db.Read.QueryRow("SELECT count(*) FROM notices WHERE " + where).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// until waits for what other goroutines do.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// logged is a log that may be read while it is written.
type logged struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// post is one request that a receiver got.
type post struct {
	header http.Header
	body   []byte
	path   string
}

func (p post) id() string { return p.header.Get("webhook-id") }

func (p post) decode(t testing.TB) (b notice.Body) {
	t.Helper()
	if err := json.Unmarshal(p.body, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// receiver is a webhook on this machine. Its answers are 200, unless answer
// says otherwise for the n-th request, from 1.
type receiver struct {
	*httptest.Server
	answer func(n int, w http.ResponseWriter, r *http.Request)

	mu     sync.Mutex // protects the fields below
	posts  []post
	passed map[string]bool // barriers that came through, by ticket
}

func newReceiver(t testing.TB, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	r := &receiver{answer: answer, passed: map[string]bool{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	var b notice.Body
	if json.Unmarshal(body, &b) == nil && b.Data.Requester == barrier {
		r.passed[b.Data.Ticket] = true
		r.mu.Unlock()
		return
	}
	r.posts = append(r.posts, post{req.Header, body, req.URL.Path})
	n := len(r.posts)
	r.mu.Unlock()
	if r.answer != nil {
		r.answer(n, w, req)
	}
}

func (r *receiver) got() []post {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.posts)
}

// wait gives the first n posts once they are there.
func (r *receiver) wait(t testing.TB, n int) []post {
	t.Helper()
	until(t, fmt.Sprintf("%d posts", n), func() bool { return len(r.got()) >= n })
	return r.got()
}

// barrier is who asks for what only shows that a channel has come this far.
const barrier = "barrier"

// settle returns when the channel of r has delivered everything that is due:
// one more notice, which r does not count, has come through behind it.
func (w *world) settle(s *notice.Sender, r *receiver) {
	w.t.Helper()
	k := w.held(fmt.Sprintf(`{"n":%d}`, time.Now().UnixNano()), func(h *approval.Held) { h.Principal.Subject = barrier })
	w.change(s, k, asked)
	until(w.t, "the barrier", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.passed[k.ID]
	})
}

// channel is the receiver's, signed.
func (r *receiver) channel() notice.Channel {
	return notice.Channel{Webhook: r.URL + "/hook", Secret: secret}
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func status(codes ...int) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= len(codes) {
			w.WriteHeader(codes[n-1])
		}
	}
}
