package mcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/signal"
)

// digging is a gate whose tool dig begins task t1 of its session and principal, as the real gate does.
type digging struct {
	*fakeGate
	mu    sync.Mutex // protects the fields below
	begun map[string]bool
	asked []string // the IDs of requests about tasks
}

func newDigging() *digging {
	d := &digging{fakeGate: newGate(), begun: map[string]bool{}}
	d.behave["dig"] = func(_ context.Context, _ *fakeGate, in *proxyCall, _ raw) (raw, *proxyFailure) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.begun[in.Session+" "+in.Principal.Subject] = true
		return raw(`{"resultType":"task","taskId":` + string(jsonrpc.Quote(d.shown(in))) + `,"n":1e2}`), nil
	}
	return d
}

func (d *digging) shown(in *proxyCall) string {
	if in.TaskID == nil {
		return "t1"
	}
	return in.TaskID("t1")
}

func (d *digging) Relay(_ context.Context, in *proxy.Call) (*proxy.Reply, *proxy.Failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, _ := in.Message.TextParam("taskId")
	d.asked = append(d.asked, id)
	if id != "t1" || !d.begun[in.Session+" "+in.Principal.Subject] {
		return nil, d.fail(signal.CodeNotFound, "no such task")
	}
	return &proxy.Reply{Result: raw(`{"taskId":` + string(jsonrpc.Quote(d.shown(in))) + `,"status":"working"}`)}, nil
}

func (d *digging) Enumerate(context.Context, *proxy.Call, policy.Principal) (json.RawMessage, *proxy.Failure) {
	return nil, d.fail(signal.CodeEnvelopeMethod, "there is no list")
}

// diggers are replicas, of which the last one is gone.
type diggers struct {
	t      *testing.T
	gates  []*digging
	doors  []*mcp.Door
	passed []string // bodies
	away   bool     // where replicas are cannot be looked up
}

func newDiggers(t *testing.T, change func(*mcp.Options)) *diggers {
	ds := &diggers{t: t}
	for n := range 3 {
		g := newDigging()
		d := newDoor(t, g.fakeGate, func(o *mcp.Options) {
			o.Relayer, o.StateKey, o.Replica = g, bytes.Repeat([]byte{7}, mcp.StateKeyBytes), [8]byte{byte(n + 1)}
			o.PassOn = func(w http.ResponseWriter, r *http.Request, body []byte, owner [8]byte) bool {
				switch ds.passed = append(ds.passed, string(body)); {
				case ds.away:
					http.Error(w, "cannot be looked up: try again", http.StatusServiceUnavailable)
					return true
				case owner[0] < 1 || owner[0] > 2:
					return false
				}
				r = r.Clone(r.Context())
				r.Body = io.NopCloser(bytes.NewReader(body))
				ds.doors[owner[0]-1].ServeHTTP(w, r)
				return true
			}
			if change != nil {
				change(o)
			}
		})
		ds.gates, ds.doors = append(ds.gates, g), append(ds.doors, d)
	}
	return ds
}

// begin begins the task of alice at replica n, and returns its ID for the client.
func (ds *diggers) begin(n int) string {
	ds.t.Helper()
	rec := serve(ds.doors[n], sessionless("alice", "/mcp", "tools/call", `"name":"demo__dig","arguments":{}`))
	var got struct{ Result struct{ TaskID string } }
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || got.Result.TaskID == "" || !strings.Contains(rec.Body.String(), `"n":1e2`) {
		ds.t.Fatalf("%s: %v", rec.Body, err)
	}
	return got.Result.TaskID
}

// about sends a request about a task to replica n, and returns the status and the answer.
func (ds *diggers) about(n int, who, path, method, id string) (int, string) {
	rec := serve(ds.doors[n], sessionless(who, path, method, `"taskId":`+string(jsonrpc.Quote(id))))
	return rec.Code, rec.Body.String()
}

var taskMethods = []string{"tasks/get", "tasks/update", "tasks/cancel"}

// A request about a task of a client without a session reaches the replica that runs the task.
func TestTaskAtAnotherReplica(t *testing.T) {
	ds := newDiggers(t, nil)
	id := ds.begin(0)
	for _, method := range taskMethods {
		for n := range 2 {
			before := len(ds.passed)
			if status, answer := ds.about(n, "alice", "/mcp", method, id); status != http.StatusOK || !strings.Contains(answer, `"taskId":"`+id+`"`) || len(ds.passed)-before != n {
				t.Errorf("%s at replica %d: %d %s, passed on %v", method, n, status, answer, ds.passed[before:])
			}
		}
	}
	if n := len(ds.gates[0].asked); n != 6 || len(ds.gates[1].asked) != 0 {
		t.Errorf("the replicas were asked for %q and %q", ds.gates[0].asked, ds.gates[1].asked)
	}
	ds.away = true
	if status, answer := ds.about(1, "alice", "/mcp", "tasks/get", id); status != http.StatusServiceUnavailable {
		t.Errorf("while the replica cannot be looked up: %d %s", status, answer)
	}
}

// Threat: a client reaches the task of another principal by way of another replica, or has requests sent to a
// replica with an ID that it made up. The gate is asked for an ID that it does not know.
func TestTaskIDsThatWereNotGiven(t *testing.T) {
	ds := newDiggers(t, nil)
	id := ds.begin(0)
	ending := id[len("t1."):]
	lost := ds.begin(2)
	other, err := base64.RawURLEncoding.DecodeString(ending)
	if err != nil || other[0] != 1 {
		t.Fatalf("%q ends in %v, %v", id, other, err)
	}
	other[0] = 3
	for name, tt := range map[string]struct{ who, id string }{
		"another principal":                        {"bob", id},
		"another principal, the replica is gone":   {"bob", lost},
		"another task":                             {"alice", "t2." + ending},
		"another replica":                          {"alice", "t1." + base64.RawURLEncoding.EncodeToString(other)},
		"another MAC":                              {"alice", id[:len(id)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(id, "A")]},
		"no MAC":                                   {"alice", id[:len(id)-22]},
		"another sign between the two":             {"alice", "t1_" + ending},
		"the ID of a server":                       {"alice", "t1"},
		"the ending alone":                         {"alice", "." + ending},
		"nothing but the ending, a character less": {"alice", ending},
	} {
		for _, method := range taskMethods {
			if status, answer := ds.about(1, tt.who, "/mcp", method, tt.id); status != http.StatusOK || !strings.Contains(answer, "no such task") || len(ds.passed) != 0 {
				t.Errorf("%s, %s: %d %s, passed on %v", name, method, status, answer, ds.passed)
			}
		}
	}
	if rec := serve(ds.doors[1], sessionless("gone", "/mcp", "tasks/get", `"taskId":"`+id+`"`)); rec.Code != http.StatusUnauthorized || len(ds.passed) != 0 {
		t.Errorf("nobody: %d %s, passed on %v", rec.Code, rec.Body, ds.passed)
	}
	// Without the check of the replica that was asked, the one that has the task judges as ever.
	if status, answer := ds.about(0, "bob", "/mcp", "tasks/get", id); status != http.StatusOK || !strings.Contains(answer, "no such task") {
		t.Errorf("another principal at the replica of the task: %d %s", status, answer)
	}
}

// When the replica of a task is gone, the door answers that the task is lost, and does not call the gate.
func TestTaskOfAReplicaThatIsGone(t *testing.T) {
	ds := newDiggers(t, nil)
	id := ds.begin(2)
	for _, method := range taskMethods {
		for _, path := range []string{"/mcp", "/mcp/demo"} {
			status, answer := ds.about(1, "alice", path, method, id)
			if status != http.StatusOK || !strings.Contains(answer, `"error":`) || !strings.Contains(answer, `"code":"TOOL_FAILED"`) ||
				!strings.Contains(answer, "the replica that ran the task is gone, and the task with it; whether the task took effect is unknown") {
				t.Errorf("%s at %s: %d %s", method, path, status, answer)
			}
		}
	}
	if len(ds.gates[1].asked) != 0 || len(ds.gates[1].refusals()) != 6 {
		t.Errorf("the gate was asked for %q, and %q are recorded", ds.gates[1].asked, ds.gates[1].refusals())
	}
}

// Without other replicas, clients get the IDs of servers.
func TestTaskIDsOfOneReplica(t *testing.T) {
	ds := newDiggers(t, func(o *mcp.Options) { o.PassOn = nil })
	if id := ds.begin(0); id != "t1" {
		t.Errorf("the ID is %q", id)
	}
	if status, answer := ds.about(0, "alice", "/mcp", "tasks/get", "t1"); status != http.StatusOK || !strings.Contains(answer, `"taskId":"t1"`) {
		t.Errorf("%d %s", status, answer)
	}
}
