package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// keptStore has the sessions of replicas in memory, as the server that they share has.
type keptStore struct {
	mu      sync.Mutex // protects the fields below
	records map[string][]byte
	owners  map[string][8]byte
	events  map[string]map[uint64][]byte // by session and stream
	gone    map[[8]byte]bool
	away    bool
	lost    bool // events are lost on the way
	loads   int
}

// keeperOf is the Keeper of one replica.
type keeperOf struct {
	*keptStore
	self [8]byte
}

var errAway = errors.New("away")

func (k keeperOf) Keep(_ context.Context, session string, record []byte, take bool) ([8]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	owner, ok := k.owners[session]
	switch {
	case k.away:
		return [8]byte{}, errAway
	case take && (!ok || owner == k.self):
		return [8]byte{}, nil
	case ok && owner != k.self && !k.gone[owner]:
		return owner, nil
	}
	k.owners[session], k.records[session] = k.self, record
	return k.self, nil
}

func (k keeperOf) KeepEvent(session, stream string, n uint64, data ...[]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.events[session+" "+stream]
	switch {
	case stream == "":
		delete(k.records, session)
		delete(k.owners, session)
	case data == nil:
		delete(of, n)
	case k.lost:
	case of == nil:
		of = map[uint64][]byte{}
		k.events[session+" "+stream] = of
		fallthrough
	default:
		of[n] = slices.Concat(data...)
	}
}

func (k keeperOf) Load(_ context.Context, session, stream string) (parts [][]byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loads++
	switch record, ok := k.records[session]; {
	case k.away:
		return nil, errAway
	case stream == "" && ok:
		return [][]byte{record}, nil
	}
	of := k.events[session+" "+stream]
	for _, n := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, of[n])
	}
	return parts, nil
}

// do changes the store.
func (k *keptStore) do(with func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	with()
}

// doors are the doors of replicas that keep their sessions in one store.
type doors struct {
	*keptStore
	t     *testing.T
	gates []*fakeGate
	all   []*mcp.Door
	urls  []string
	took  []string // "taken" or "told", of any door
}

func newDoors(t *testing.T, count int, change func(*mcp.Options, *fakeGate)) *doors {
	s := &keptStore{records: map[string][]byte{}, owners: map[string][8]byte{}, events: map[string]map[uint64][]byte{}, gone: map[[8]byte]bool{}}
	ds := &doors{keptStore: s, t: t}
	for n := range count {
		g, self := newGate(), [8]byte{byte(n + 1)}
		srv, d := newServer(t, g, func(o *mcp.Options) {
			o.Replica, o.Keeper = self, keeperOf{s, self}
			o.PassOn = func(w http.ResponseWriter, r *http.Request, body []byte, owner [8]byte) bool {
				w.Header().Set("Passed-To", fmt.Sprint(owner[0]))
				if r.Header.Get("Unreached") != "" {
					return false
				}
				w.WriteHeader(http.StatusTeapot)
				_, _ = w.Write(body)
				return true
			}
			o.TakenOver = func(whole bool) {
				s.do(func() { ds.took = append(ds.took, map[bool]string{true: "taken", false: "told"}[whole]) })
			}
			if change != nil {
				change(o, g)
			}
		})
		ds.gates, ds.all, ds.urls = append(ds.gates, g), append(ds.all, d), append(ds.urls, srv.URL+"/mcp")
	}
	return ds
}

// end makes replica n one that is gone.
func (ds *doors) end(n int) { ds.do(func() { ds.gone[[8]byte{byte(n + 1)}] = true }) }

// at is the client h with its requests at replica n.
func (ds *doors) at(h *far, n int) *far {
	moved := *h
	moved.url = strings.Replace(h.url, strings.TrimSuffix(ds.urls[0], "/mcp"), strings.TrimSuffix(ds.urls[n], "/mcp"), 1)
	return &moved
}

// A session of a replica that is gone goes on at another one: who it is, what the client can do, and
// what it wants to hear. Its list of tools may have changed.
func TestTakeOver(t *testing.T) {
	ds := newDoors(t, 3, func(o *mcp.Options, g *fakeGate) { library{g}.serve(o) })
	h := openAt(t, ds.urls[0], "alice")
	if status := h.status(http.MethodPost, `{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"error"}}`); status != http.StatusOK {
		t.Fatal(status)
	}
	h.post(echoCall)
	before := ds.gates[0].last()
	if status := ds.at(h, 1).status(http.MethodPost, echoCall); status != http.StatusTeapot {
		t.Errorf("while its owner is there: %d", status)
	}
	ds.end(0)
	for _, method := range []string{http.MethodPost, http.MethodPost} {
		if status := ds.at(h, 1).status(method, echoCall); status != http.StatusOK {
			t.Fatalf("the session is not taken over: %d", status)
		}
	}
	after := ds.gates[1].last()
	if before.TakenOver || !after.TakenOver {
		t.Errorf("taken over: %t before, %t after", before.TakenOver, after.TakenOver)
	}
	if diff := cmp.Diff([]any{before.Session, before.Era, before.Client, string(before.Capabilities), before.Level, before.Principal},
		[]any{after.Session, after.Era, after.Client, string(after.Capabilities), after.Level, after.Principal}); diff != "" {
		t.Errorf("the session (-before +after):\n%s", diff)
	}
	if got, _ := ds.at(h, 1).flow(ds.at(h, 1).request(http.MethodGet, "")).take(1); len(got) != 1 || !strings.Contains(got[0], "tools/list_changed") {
		t.Errorf("the client hears %s", got)
	}
	// Others know who has it now; when that is gone, it moves again.
	res, body := ds.at(h, 2).post(echoCall)
	if res.StatusCode != http.StatusTeapot || res.Header.Get("Passed-To") != "2" || body != echoCall {
		t.Errorf("%d to %s: %s", res.StatusCode, res.Header.Get("Passed-To"), body)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if status := ds.at(h, 2).status(method, ""); status != http.StatusTeapot {
			t.Errorf("%s: %d", method, status)
		}
	}
	req := ds.at(h, 2).request(http.MethodPost, echoCall)
	req.Header.Set("Unreached", "1")
	if res, _ := h.do(req); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("its owner is there and does not answer: %d", res.StatusCode)
	}
	ds.end(1)
	if status := ds.at(h, 2).status(http.MethodDelete, ""); status != http.StatusNoContent {
		t.Errorf("DELETE: %d", status)
	}
	if len(ds.records)+len(ds.owners) != 0 {
		t.Errorf("after DELETE, %v is kept of %v", ds.records, ds.owners)
	}
	if status := ds.at(h, 2).status(http.MethodPost, echoCall); status != http.StatusNotFound {
		t.Errorf("after DELETE: %d", status)
	}
	if want := []string{"taken", "taken"}; !slices.Equal(ds.took, want) {
		t.Errorf("sessions: %v, want %v", ds.took, want)
	}
}

// Threat: a session is taken over by who is not its principal, on another route, or with a record
// that was made up. That is what a session is that nobody has, and nothing is claimed.
func TestTakeOverRefused(t *testing.T) {
	const at = "/mcp"
	for name, tt := range map[string]struct {
		who, path string
		record    func(record map[string]any)
		body      string
	}{
		"another principal":        {who: "bob"},
		"another server":           {path: "/mcp/demo"},
		"another subject":          {record: func(r map[string]any) { r["subject"] = "bob" }},
		"another tenant":           {record: func(r map[string]any) { r["tenant"] = "t" }},
		"another route":            {record: func(r map[string]any) { r["route"] = "demo" }},
		"a revision of no session": {record: func(r map[string]any) { r["version"] = "2026-07-28" }},
		"the older transport":      {record: func(r map[string]any) { r["version"] = "2024-11-05" }},
		"no key":                   {record: func(r map[string]any) { delete(r, "key") }},
		"an unknown member":        {record: func(r map[string]any) { r["admin"] = true }},
		"capabilities of a kind":   {record: func(r map[string]any) { r["capabilities"] = []int{} }},
		"no record":                {body: `{`},
		"two records":              {body: `{}{}`},
		"nothing":                  {body: ` `},
		"subscriptions":            {record: func(r map[string]any) { r["subscribed"] = true }},
	} {
		t.Run(name, func(t *testing.T) {
			ds := newDoors(t, 2, nil)
			h := openAt(t, ds.urls[0], "alice")
			ds.end(0)
			ds.do(func() {
				var r map[string]any
				if err := json.Unmarshal(ds.records[h.session], &r); err != nil {
					t.Fatal(err)
				}
				if tt.record != nil {
					tt.record(r)
					ds.records[h.session], _ = json.Marshal(r)
				} else if tt.body != "" {
					ds.records[h.session] = []byte(tt.body)
				}
			})
			thief := ds.at(h, 1)
			if tt.who != "" {
				thief.who = tt.who
			}
			thief.url = strings.TrimSuffix(thief.url, at) + max(tt.path, at)
			unknown := *thief
			unknown.session = "nobody's"
			for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
				got, gotBody := thief.do(thief.request(method, echoCall))
				want, wantBody := unknown.do(unknown.request(method, echoCall))
				if got.StatusCode != http.StatusNotFound || got.StatusCode != want.StatusCode || len(gotBody) != len(wantBody) || len(got.Header) != len(want.Header) {
					t.Fatalf("%s: %d %s, want %d %s", method, got.StatusCode, gotBody, want.StatusCode, wantBody)
				}
			}
			if ds.owners[h.session] != [8]byte{1} || ds.gates[1].calls() != 0 {
				t.Errorf("the session is that of %v, and %d calls were made", ds.owners[h.session], ds.gates[1].calls())
			}
		})
	}
}

// Many requests at once take a session over once.
func TestTakeOverOnce(t *testing.T) {
	ds := newDoors(t, 3, nil)
	h := openAt(t, ds.urls[0], "alice")
	ds.end(0)
	var statuses sync.Map
	var all sync.WaitGroup
	for n := range 24 {
		all.Go(func() {
			status := ds.at(h, 1+n%2).status(http.MethodPost, strings.Replace(echoCall, `"id":1`, fmt.Sprintf(`"id":%d`, n+1), 1))
			statuses.Store(fmt.Sprint(1+n%2, " ", status), true)
		})
	}
	all.Wait()
	for at, other := range map[string]string{"1": "2", "2": "1"} {
		if _, ok := statuses.Load(at + " 200"); ok {
			if _, ok := statuses.Load(other + " 418"); !ok || len(slices.Collect(keysOf(&statuses))) != 2 || len(ds.took) != 1 {
				t.Errorf("%v, taken %v", slices.Collect(keysOf(&statuses)), ds.took)
			}
			return
		}
	}
	t.Errorf("nobody has it: %v", slices.Collect(keysOf(&statuses)))
}

func keysOf(m *sync.Map) func(func(any) bool) {
	return func(yield func(any) bool) { m.Range(func(key, _ any) bool { return yield(key) }) }
}

// A call that its client reads as events goes on at another replica with the events that were kept,
// and then its answer, or the error that nobody knows it.
func TestResumeElsewhere(t *testing.T) {
	unknown := `"whether the request took effect is unknown"`
	for _, era := range []string{"2025-11-25", "2025-06-18"} {
		for _, tt := range []struct {
			what       string
			had        int // messages that the client has
			over, lost bool
			want       []string
			again      bool // the other replica is lost too
		}{
			{what: "in flight", had: 1, want: []string{progressed(2), progressed(3), unknown}},
			{what: "answered", had: 2, over: true, want: []string{progressed(3), progressed(4), reported}},
			{what: "in flight, all had", had: 3, want: []string{unknown}},
			{what: "lost behind", had: 3, lost: true, want: []string{unknown}},
			{what: "lost twice", had: 2, want: []string{progressed(3), unknown}, again: true},
		} {
			t.Run(era+" "+tt.what, func(t *testing.T) {
				ds := newDoors(t, 3, nil)
				reporter(ds.gates[0], 4, 3)
				h := openAs(t, ds.urls[0], "alice", era)
				first := h.reportEvents()
				<-ds.gates[0].started
				_, last := first.take(1)
				if tt.had > 1 {
					_, last = first.take(tt.had - 1)
				}
				if tt.over {
					close(ds.gates[0].release)
					first.take(100)
				} else {
					t.Cleanup(func() { close(ds.gates[0].release) })
				}
				if tt.lost { // but the first, which the client knows
					ds.do(func() {
						for _, of := range ds.events {
							maps.DeleteFunc(of, func(n uint64, _ []byte) bool { return n > 1 })
						}
					})
				}
				ds.do(func() { ds.events = clone(ds.events) }) // as the owner is killed
				ds.end(0)
				at := ds.at(h, 1)
				if tt.again {
					got, _ := at.flow(at.after(last)).take(100)
					wantEvents(t, got, tt.want)
					ds.end(1)
					at = ds.at(h, 2)
				}
				got, end := at.flow(at.after(last)).take(100)
				wantEvents(t, got, tt.want)
				if res, _ := at.do(at.after(end)); res.StatusCode != http.StatusNoContent {
					t.Errorf("after the end: %d", res.StatusCode)
				}
				if tt.want[len(tt.want)-1] == unknown && !strings.Contains(strings.Join(ds.gates[1].refusals(), " "), "T4_TOOL_EXECUTION_FAILED") {
					t.Errorf("not recorded: %s", ds.gates[1].refusals())
				}
			})
		}
	}
}

func clone(events map[string]map[uint64][]byte) map[string]map[uint64][]byte {
	copied := map[string]map[uint64][]byte{}
	for key, of := range events {
		copied[key] = maps.Clone(of)
	}
	return copied
}

// wantEvents compares messages, one of which may be the error that an answer is lost.
func wantEvents(t *testing.T, got, want []string) {
	t.Helper()
	for i, message := range got {
		if strings.Contains(message, "whether the request took effect is unknown") && strings.Contains(message, `"id":1,"error"`) && strings.Contains(message, `"retry_eligible":false`) {
			got[i] = `"whether the request took effect is unknown"`
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The stream of no request goes on too, and under its old name.
func TestResumeListeningElsewhere(t *testing.T) {
	ds := newDoors(t, 2, nil)
	h := openAt(t, ds.urls[0], "alice")
	f := h.flow(h.request(http.MethodGet, ""))
	first, _ := f.next() // its id
	home := h.home(ds.gates[0])
	for n := range 3 {
		home.Tell("notifications/message", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
	}
	f.take(3)
	ds.end(0)
	at := ds.at(h, 1)
	f = at.flow(at.after(first.id))
	at.home(ds.gates[1]).Tell("notifications/message", json.RawMessage(`{"n":3}`))
	var got []string
	for len(got) < 4 {
		e, ok := f.next()
		if !ok {
			t.Fatalf("the stream ends after %s", got)
		}
		if e.data != "" && !strings.Contains(e.data, "list_changed") {
			got = append(got, e.data)
		}
		if e.id != "" && e.id[:26] != first.id[:26] {
			t.Errorf("another stream: %s", e.id)
		}
	}
	for n, message := range got {
		if !strings.Contains(message, fmt.Sprintf(`"n":%d`, n)) {
			t.Errorf("message %d: %s", n, message)
		}
	}
	for _, id := range []string{"x", first.id[:26] + "-18446744073709551615", strings.Repeat("A", 26) + "-0"} {
		if res, _ := at.do(at.after(id)); res.StatusCode != http.StatusBadRequest {
			t.Errorf("Last-Event-ID %s: %d", id, res.StatusCode)
		}
	}
}

// What is answered in one piece is not kept, nor what its client has no more use for, and a closing door
// leaves what it has to others.
func TestWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := &keptStore{records: map[string][]byte{}, owners: map[string][8]byte{}, events: map[string]map[uint64][]byte{}}
		self := [8]byte{1}
		g := newGate()
		d := newDoor(t, g, func(o *mcp.Options) {
			o.Replica, o.Keeper, o.EventLog.Keep = self, keeperOf{ds, self}, time.Minute
		})
		session := record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		kept := func() (n int) {
			ds.do(func() {
				for _, of := range ds.events {
					n += len(of)
				}
			})
			return n
		}
		records := func() (n int) {
			ds.do(func() { n = len(ds.records) })
			return n
		}
		post := func(body, accept string) *httptest.ResponseRecorder {
			req := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(body))
			standardHeaders(req, "alice")
			req.Header.Set("Accept", accept)
			req.Header.Set("Mcp-Session-Id", session)
			return serve(d, req)
		}
		post(echoCall, "application/json, text/event-stream")
		if kept() != 0 || ds.loads != 0 {
			t.Errorf("%d events of a plain answer are kept, %d loads", kept(), ds.loads)
		}
		post(echoCall, "text/event-stream")
		if kept() != 2 {
			t.Errorf("%d events of a stream are kept, want 2", kept())
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if kept() != 0 {
			t.Errorf("%d events are kept that nobody can ask for", kept())
		}
		ds.do(func() { clear(ds.records); clear(ds.owners) }) // the server has lost its data
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if records() != 1 {
			t.Errorf("%d records after the next round", records())
		}
		time.Sleep(40 * time.Minute) // idle for too long
		synctest.Wait()
		if records() != 0 {
			t.Errorf("%d records of a session that is over", records())
		}
		if rec := post(echoCall, "application/json, text/event-stream"); rec.Code != http.StatusNotFound {
			t.Errorf("a session that is over: %d", rec.Code)
		}
		session = record(d, "alice", "", initialize).Header().Get("Mcp-Session-Id")
		post(echoCall, "text/event-stream")
		if err := d.Close(t.Context()); err != nil || records() != 1 || kept() != 2 {
			t.Errorf("a closed door leaves %d records and %d events, %v", records(), kept(), err)
		}
	})
}

// A replica that finds its session taken over ends it, and keeps what is kept of it.
func TestDisplaced(t *testing.T) {
	ds := newDoors(t, 2, nil)
	h := openAt(t, ds.urls[0], "alice")
	h.reportEventsOf(ds.gates[0])
	ds.end(0)
	if status := ds.at(h, 1).status(http.MethodPost, echoCall); status != http.StatusOK {
		t.Fatal(status)
	}
	var kept, left int
	ds.do(func() { kept = len(ds.events) })
	if status := h.status(http.MethodPost, echoCall); status != http.StatusOK {
		t.Errorf("before it knows: %d", status)
	}
	ds.do(func() { clear(ds.gone) })
	ds.all[0].KeepSessions()
	if status := h.status(http.MethodPost, echoCall); status != http.StatusTeapot {
		t.Errorf("when it knows: %d", status)
	}
	ds.do(func() { left = len(ds.events) })
	if ds.owners[h.session] != [8]byte{2} || left != kept || kept == 0 {
		t.Errorf("the session is that of %v, with %d of %d streams", ds.owners[h.session], left, kept)
	}
	program.Await(t, "it has ended", func() bool { return ds.all[0].Sessions()["http"] == 0 })
}

// reportEventsOf makes a call that is answered with events.
func (h *far) reportEventsOf(g *fakeGate) {
	h.t.Helper()
	reporter(g, 1, -1)
	h.reportEvents().take(100)
}

// Without its server a replica serves its own sessions, and says of others that it does not know.
func TestKeeperAway(t *testing.T) {
	ds := newDoors(t, 2, nil)
	ds.do(func() { ds.away = true })
	h := openAt(t, ds.urls[0], "alice")
	if status := h.status(http.MethodPost, echoCall); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	ds.end(0)
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if status := ds.at(h, 1).status(method, echoCall); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", method, status)
		}
	}
	ds.do(func() { ds.away = false; clear(ds.gone) })
	ds.all[0].KeepSessions()
	ds.end(0)
	if status := ds.at(h, 1).status(http.MethodPost, echoCall); status != http.StatusOK {
		t.Errorf("after it is back: %d", status)
	}
}

// A session with subscriptions is not taken over.
func TestSubscribedIsNotTaken(t *testing.T) {
	ds := newDoors(t, 2, func(o *mcp.Options, g *fakeGate) { library{g}.serve(o) })
	h := openAt(t, strings.TrimSuffix(ds.urls[0], "/mcp")+"/mcp/demo", "alice")
	h.post(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"a"}}`)
	ds.end(0)
	if status := ds.at(h, 1).status(http.MethodPost, echoCall); status != http.StatusNotFound || !slices.Equal(ds.took, []string{"told"}) {
		t.Errorf("%d, %v", status, ds.took)
	}
}

// Whatever is kept, it is read back as it was written, or not at all.
func FuzzKept(f *testing.F) {
	f.Add([]byte(`{"subject":"a","version":"2025-11-25","key":"ses_x","began":"2026-01-02T03:04:05Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if again, ok := mcp.RereadRecord(data); ok {
			if third, ok := mcp.RereadRecord(again); !ok || string(third) != string(again) {
				t.Errorf("record %q becomes %q and %q", data, again, third)
			}
		}
	})
}
