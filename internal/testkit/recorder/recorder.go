// Package recorder is an MCP server for tests. It stores every byte that it
// receives, so that a test can prove what reached an upstream and that nothing
// did, and it can be told to misbehave in the ways that upstreams do.
//
// Over HTTP it runs in the test's own process:
//
//	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "add"}}})
//	// … an upstream of type "http" at rec.URL …
//	if got := rec.Calls(); len(got) != 0 { … }
//
// Over stdio it is the test binary started again, which has to hand over to it
// first of all:
//
//	func TestMain(m *testing.M) {
//		recorder.Main(upstream.IsChild, upstream.ChildMain)
//		os.Exit(m.Run())
//	}
//
//	rec := recorder.Stdio(t, recorder.Config{…})
//	// … an upstream of type "stdio" with rec.Command, rec.Args and rec.Env …
package recorder

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a tool does when it is called. The zero value is Echo.
const (
	Echo    = ""         // answers with its arguments as structuredContent
	Crash   = "crash"    // reads the call and exits
	Hang    = "hang"     // never answers
	Late    = "late"     // answers after Delay
	Twice   = "twice"    // answers two times
	WrongID = "wrong_id" // answers somebody else
	Both    = "both"     // answers with result and error
	Flood   = "flood"    // sends N notifications, then answers
	Big     = "big"      // answers with N bytes of text
	Garbage = "garbage"  // sends N lines that are no JSON, then answers
	Fail    = "fail"     // answers with Error
	Steps   = "steps"    // sends N progress notifications, then answers
	Ask     = "ask"      // sends a ping, and a request under the call's own id, then answers
	Talk    = "talk"     // does what Lines say, then answers
)

// Tool is one tool of a recorder.
type Tool struct {
	Name string
	// Definition is what tools/list says, nil for a plain one.
	Definition json.RawMessage `json:",omitempty"`
	// Does is one of the constants above.
	Does string
	// N is how many, in the unit that Does has.
	N int
	// Delay is how long a Late answer takes.
	Delay time.Duration
	// Result replaces the result, nil for an echo.
	Result json.RawMessage `json:",omitempty"`
	// Error is the error object of Fail.
	Error json.RawMessage `json:",omitempty"`
	// Lines are what Talk does, one after the other. "await ID" waits for the
	// client's answer to the request with that id, "await cancelled" for a
	// notifications/cancelled that names the call; "apart MESSAGE" sends a
	// message outside the call, over HTTP on the GET stream; anything else is a
	// message to send. In all of them CALL is the id of the call, TOKEN its
	// progress token, ARGS its arguments, and SEQ a number that no other call has.
	Lines []string `json:",omitempty"`
	// Needs hides the tool from clients without this capability, "" from none.
	Needs string `json:",omitempty"`
}

// Config says what a recorder offers and how it misbehaves.
type Config struct {
	Tools []Tool
	// Changed are the tools after ChangeAfter calls; with Notify the change is
	// announced before that call is answered.
	Changed     []Tool
	ChangeAfter int
	Notify      bool
	// Page is how many tools one page of tools/list has, 0 for all.
	Page int
	// RepeatCursor makes the list endless.
	RepeatCursor bool
	// ListResult replaces the result of tools/list.
	ListResult json.RawMessage `json:",omitempty"`
	// Revision is the protocol version that initialize answers, "" for 2025-11-25.
	Revision string
	// HangAtStart answers nothing at all; CrashAtStart exits at once (stdio).
	HangAtStart, CrashAtStart bool
	// IgnoreTERM stays until it is killed: neither the end of stdin nor TERM
	// end it (stdio).
	IgnoreTERM bool
	// Grandchild starts a process in a session of its own that does not end by
	// itself (stdio).
	Grandchild bool
	// Sessions makes HTTP answers carry a session id, and 404 for unknown ones.
	Sessions bool
	// Stream answers calls with an event stream (HTTP).
	Stream bool
	// Deaf stops reading after the first call (stdio).
	Deaf bool
	// Environ answers each call with the environment (stdio).
	Environ bool
	// Offers replaces the capabilities that initialize answers.
	Offers json.RawMessage `json:",omitempty"`
	// Answers are the results of further methods, by name.
	Answers map[string]json.RawMessage `json:",omitempty"`
	// Greets are done as Lines are, apart from any call, when the client has
	// said that it is initialized; over HTTP when it has a GET stream too.
	Greets []string `json:",omitempty"`
	// Modern makes it a server of MCP 2026-07-28, of which the fields above say
	// nothing; nil for one with a handshake.
	Modern *Modern `json:",omitempty"`
	// Silent answers nothing to server/discover, and DiesOfProbe exits of it
	// (stdio).
	Silent, DiesOfProbe bool
}

// Call is one tools/call as it was received.
type Call struct {
	Tool      string
	Arguments json.RawMessage // byte for byte
	Raw       []byte          // the whole message, byte for byte
	At        time.Time
}

// Recorder is a running recorder, or one that will run. It is safe for
// concurrent use.
type Recorder struct {
	// URL is where an HTTP recorder listens.
	URL string
	// Command, Args and Env start a stdio recorder.
	Command string
	Args    []string
	Env     map[string]string

	t    testing.TB
	file string // stdio: where it writes to
	http *httpServer

	mu  sync.Mutex // protects the fields below
	log []event
}

// event is one thing that happened: "in" is a message received, "start",
// "grandchild" and "cancel" speak for themselves.
type event struct {
	at      time.Time
	pid     int
	kind    string
	payload string
}

// String is how an event stands in the file of a stdio recorder.
func (e event) String() string {
	return fmt.Sprintf("%d %d %s %s\n", e.at.UnixNano(), e.pid, e.kind, e.payload)
}

// parseEvent reads String's form.
func parseEvent(line string) (event, bool) {
	parts := strings.SplitN(line, " ", 4)
	if len(parts) != 4 {
		return event{}, false
	}
	at, err1 := strconv.ParseInt(parts[0], 10, 64)
	pid, err2 := strconv.Atoi(parts[1])
	return event{time.Unix(0, at), pid, parts[2], parts[3]}, err1 == nil && err2 == nil
}

// Environment variables that make a test binary a recorder.
const (
	configVar = "RECORDER_CONFIG"
	fileVar   = "RECORDER_FILE"
)

// Stdio prepares a recorder that a proxy can start. Several may run at once;
// all write to one record.
func Stdio(t testing.TB, cfg Config) *Recorder {
	t.Helper()
	var data strings.Builder
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false) // what a test gives to be sent is sent as it is
	if err := enc.Encode(cfg); err != nil {
		t.Fatalf("encoding recorder config: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("finding test binary: %v", err)
	}
	file := filepath.Join(t.TempDir(), "record")
	return &Recorder{
		t: t, file: file, Command: self, Args: []string{},
		// A race-detecting binary otherwise takes a second to exit.
		Env: map[string]string{configVar: data.String(), fileVar: file, "GORACE": "atexit_sleep_ms=0"},
	}
}

// events gives everything that happened so far.
func (r *Recorder) events() []event {
	if r.file == "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		return append([]event(nil), r.log...)
	}
	data, err := os.ReadFile(r.file)
	if err != nil && !os.IsNotExist(err) {
		r.t.Errorf("reading record: %v", err)
	}
	var out []event
	for line := range strings.Lines(string(data)) {
		if e, ok := parseEvent(strings.TrimSuffix(line, "\n")); ok {
			out = append(out, e)
		}
	}
	return out
}

// note adds an event to the record of an HTTP recorder.
func (r *Recorder) note(kind, payload string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, event{time.Now(), os.Getpid(), kind, payload})
}

// ofKind gives the events of one kind.
func (r *Recorder) ofKind(kind string) []event {
	var out []event
	for _, e := range r.events() {
		if e.kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// Messages gives every message received, byte for byte, in order.
func (r *Recorder) Messages() [][]byte {
	var out [][]byte
	for _, e := range r.ofKind("in") {
		out = append(out, []byte(e.payload))
	}
	return out
}

// Bytes gives everything that was received, messages parted by line ends.
func (r *Recorder) Bytes() []byte {
	var out []byte
	for _, m := range r.Messages() {
		out = append(append(out, m...), '\n')
	}
	return out
}

// Methods gives the method of every message received, in order.
func (r *Recorder) Methods() []string {
	var out []string
	for _, m := range r.Messages() {
		var msg message
		if json.Unmarshal(m, &msg) == nil {
			out = append(out, msg.Method)
		}
	}
	return out
}

// Calls gives every tools/call received, in order.
func (r *Recorder) Calls() []Call {
	var out []Call
	for _, e := range r.ofKind("in") {
		var msg message
		var params callParams
		if json.Unmarshal([]byte(e.payload), &msg) != nil || msg.Method != "tools/call" {
			continue
		}
		_ = json.Unmarshal(msg.Params, &params) // what is no object has no arguments
		out = append(out, Call{Tool: params.Name, Arguments: params.Arguments, Raw: []byte(e.payload), At: e.at})
	}
	return out
}

// Violations gives what the client did that MCP 2026-07-28 forbids.
func (r *Recorder) Violations() []string { return r.payloads("violation") }

// Cancelled gives the ids of the calls that a modern recorder saw given up.
func (r *Recorder) Cancelled() []string { return r.payloads("cancel") }

// Listens gives the filters with which clients listen now, in the order in
// which they began.
func (r *Recorder) Listens() []string {
	open := r.payloads("listen")
	for _, over := range r.payloads("unlisten") {
		if i := slices.Index(open, over); i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	return open
}

// payloads gives what events of a kind say.
func (r *Recorder) payloads(kind string) []string {
	var out []string
	for _, e := range r.ofKind(kind) {
		out = append(out, e.payload)
	}
	return out
}

// Starts gives the process id of every start of a stdio recorder.
func (r *Recorder) Starts() []int { return r.pids("start") }

// Grandchildren gives the process ids of what it left behind.
func (r *Recorder) Grandchildren() []int { return r.pids("grandchild") }

// pids gives the numbers that events of a kind carry.
func (r *Recorder) pids(kind string) []int {
	var out []int
	for _, e := range r.ofKind(kind) {
		if pid, err := strconv.Atoi(e.payload); err == nil {
			out = append(out, pid)
		}
	}
	return out
}
