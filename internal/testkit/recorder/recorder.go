// Package recorder is an MCP server for tests. It stores every byte that it receives,
// so that a test can check what reached an upstream, and it can be configured to
// fail in the ways that upstreams do.
//
// Over HTTP it runs in the test process:
//
//	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "add"}}})
//	// … an upstream of type "http" at rec.URL …
//	if got := rec.Calls(); len(got) != 0 { … }
//
// Over stdio it is a second process of the test binary, whose TestMain has to call
// Main first:
//
//	func TestMain(m *testing.M) {
//		recorder.Main(sandbox.IsGuardian, guardian.Main)
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

// The behavior of a called tool. The zero value is Echo.
const (
	Echo    = ""         // answers with its arguments as structuredContent
	Crash   = "crash"    // reads the call and exits
	Hang    = "hang"     // never answers
	Late    = "late"     // answers after Delay
	Twice   = "twice"    // answers two times
	WrongID = "wrong_id" // answers with another ID
	Both    = "both"     // answers with result and error
	Flood   = "flood"    // sends N notifications, then answers
	Big     = "big"      // answers with N bytes of text
	Garbage = "garbage"  // sends N lines of invalid JSON, then answers
	Fail    = "fail"     // answers with Error
	Steps   = "steps"    // sends N progress notifications, then answers
	Ask     = "ask"      // sends a ping, and a request under the call's own id, then answers
	Talk    = "talk"     // performs Lines, then answers
)

// Tool is one tool of a recorder.
type Tool struct {
	Name string
	// Definition is the tool in tools/list, nil for a minimal one.
	Definition json.RawMessage `json:",omitempty"`
	// Does is one of the constants above.
	Does string
	// N is the number of messages, or of bytes for Big.
	N int
	// Delay is how long a Late answer takes.
	Delay time.Duration
	// Result replaces the result, nil for an echo.
	Result json.RawMessage `json:",omitempty"`
	// Error is the error object of Fail.
	Error json.RawMessage `json:",omitempty"`
	// Lines are the actions of Talk, in order. "await ID" waits for the client's
	// answer to the request with that ID, "await cancelled" for a
	// notifications/cancelled of the call; "apart MESSAGE" sends a message outside
	// the call, over HTTP on the GET stream; any other line is a message to send.
	// CALL stands for the ID of the call, TOKEN for its progress token, ARGS for its
	// arguments, and SEQ for a number that is unique to the call.
	Lines []string `json:",omitempty"`
	// Needs hides the tool from clients without this capability, "" for all clients.
	Needs string `json:",omitempty"`
}

// Config describes the tools of a recorder and its faults.
type Config struct {
	Tools []Tool
	// Changed are the tools after ChangeAfter calls; with Notify the change is
	// announced before that call is answered.
	Changed     []Tool
	ChangeAfter int
	Notify      bool
	// Page is the number of tools on a page of tools/list, 0 for all.
	Page int
	// RepeatCursor makes the list endless.
	RepeatCursor bool
	// ListResult replaces the result of tools/list.
	ListResult json.RawMessage `json:",omitempty"`
	// Revision is the protocol version in the answer to initialize, "" for 2025-11-25.
	Revision string
	// HangAtStart answers nothing at all; CrashAtStart exits at once (stdio).
	HangAtStart, CrashAtStart bool
	// Gate is the address of a Gate at which each process waits at its start, "" for none
	// (stdio).
	Gate string `json:",omitempty"`
	// IgnoreTERM ignores TERM and the end of stdin (stdio).
	IgnoreTERM bool
	// Grandchild starts a process in another session that does not exit (stdio).
	Grandchild bool
	// Sessions makes HTTP answers carry a session id, and 404 for unknown ones.
	Sessions bool
	// Stream answers calls with an event stream (HTTP).
	Stream bool
	// StopReading stops reading after the first call (stdio).
	StopReading bool
	// Environ answers each call with the environment (stdio).
	Environ bool
	// Capabilities replaces the capabilities that initialize answers.
	Capabilities json.RawMessage `json:",omitempty"`
	// Instructions are in the answer to initialize, unless "".
	Instructions string `json:",omitempty"`
	// Answers are the results of further methods, by name.
	Answers map[string]json.RawMessage `json:",omitempty"`
	// OnInitialized are actions like Lines, outside any call, after
	// notifications/initialized and, over HTTP, after the GET stream is open.
	OnInitialized []string `json:",omitempty"`
	// Stateless makes it a stateless server, to which the fields above do not apply; nil
	// for a server with sessions.
	Stateless *Stateless `json:",omitempty"`
	// IgnoreDiscover does not answer server/discover; CrashOnDiscover exits on it (stdio).
	IgnoreDiscover, CrashOnDiscover bool
}

// Call is one tools/call as it was received.
type Call struct {
	Tool      string
	Arguments json.RawMessage // byte for byte
	Raw       []byte          // the whole message, byte for byte
	At        time.Time
}

// Recorder is a recorder, running or to be started. It is safe for concurrent use.
type Recorder struct {
	// URL is the address of an HTTP recorder.
	URL string
	// Command, Args and Env start a stdio recorder.
	Command string
	Args    []string
	Env     map[string]string

	t    testing.TB
	file string // stdio: the file of its record
	http *httpServer

	mu   sync.Mutex // protects the fields below
	log  []event
	read int // stdio: how many bytes of file are in log
}

// event is one entry of the record. Kind "in" is a received message; others are
// "start", "grandchild" and "cancel".
type event struct {
	at      time.Time
	pid     int
	kind    string
	payload string
}

// String returns the line of an event in the file of a stdio recorder.
func (e event) String() string {
	return fmt.Sprintf("%d %d %s %s\n", e.at.UnixNano(), e.pid, e.kind, e.payload)
}

// parseEvent parses such a line.
func parseEvent(line string) (event, bool) {
	parts := strings.SplitN(line, " ", 4)
	if len(parts) != 4 {
		return event{}, false
	}
	at, err1 := strconv.ParseInt(parts[0], 10, 64)
	pid, err2 := strconv.Atoi(parts[1])
	return event{time.Unix(0, at), pid, parts[2], parts[3]}, err1 == nil && err2 == nil
}

// Environment variables of a stdio recorder.
const (
	configVar = "RECORDER_CONFIG"
	fileVar   = "RECORDER_FILE"
)

// Stdio prepares a recorder that a proxy can start. Several processes may run at
// once; all write to one record.
func Stdio(t testing.TB, cfg Config) *Recorder {
	t.Helper()
	var data strings.Builder
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false) // messages of the test are sent unchanged
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

// events returns the record so far.
func (r *Recorder) events() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var data []byte
	if r.file != "" {
		var err error
		if data, err = os.ReadFile(r.file); err != nil && !os.IsNotExist(err) {
			r.t.Errorf("reading record: %v", err)
		}
	}
	for line := range strings.Lines(string(data[min(r.read, len(data)):])) {
		whole, ended := strings.CutSuffix(line, "\n")
		if !ended {
			break
		}
		r.read += len(line)
		if e, ok := parseEvent(whole); ok {
			r.log = append(r.log, e)
		}
	}
	return slices.Clone(r.log)
}

// note adds an event to the record of an HTTP recorder.
func (r *Recorder) note(kind, payload string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, event{time.Now(), os.Getpid(), kind, payload})
}

// ofKind returns the events of one kind.
func (r *Recorder) ofKind(kind string) []event {
	var out []event
	for _, e := range r.events() {
		if e.kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// Messages returns every received message, byte for byte, in order.
func (r *Recorder) Messages() [][]byte {
	var out [][]byte
	for _, e := range r.ofKind("in") {
		out = append(out, []byte(e.payload))
	}
	return out
}

// Bytes returns every received message, separated by line ends.
func (r *Recorder) Bytes() []byte {
	var out []byte
	for _, m := range r.Messages() {
		out = append(append(out, m...), '\n')
	}
	return out
}

// Methods returns the method of every received message, in order.
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

// Calls returns every received tools/call, in order.
func (r *Recorder) Calls() []Call {
	var out []Call
	for _, e := range r.ofKind("in") {
		var msg message
		var params callParams
		if json.Unmarshal([]byte(e.payload), &msg) != nil || msg.Method != "tools/call" {
			continue
		}
		_ = json.Unmarshal(msg.Params, &params) // only an object has arguments
		out = append(out, Call{Tool: params.Name, Arguments: params.Arguments, Raw: []byte(e.payload), At: e.at})
	}
	return out
}

// Violations returns the messages of clients that MCP 2026-07-28 forbids.
func (r *Recorder) Violations() []string { return r.payloads("violation") }

// Cancelled returns the IDs of the calls that were cancelled at a stateless recorder.
func (r *Recorder) Cancelled() []string { return r.payloads("cancel") }

// Listeners returns the filters of the open listening streams, in the order of their
// start.
func (r *Recorder) Listeners() []string {
	open := r.payloads("listen")
	for _, over := range r.payloads("unlisten") {
		if i := slices.Index(open, over); i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	return open
}

// payloads returns the payloads of the events of a kind.
func (r *Recorder) payloads(kind string) []string {
	var out []string
	for _, e := range r.ofKind(kind) {
		out = append(out, e.payload)
	}
	return out
}

// Starts returns the process ID of every start of a stdio recorder, as this process sees it.
func (r *Recorder) Starts() []int { return r.pids("start") }

// Grandchildren returns the process IDs of the processes of Grandchild.
func (r *Recorder) Grandchildren() []int { return r.pids("grandchild") }

// pids returns the process IDs in the events of a kind.
func (r *Recorder) pids(kind string) []int {
	var out []int
	for _, e := range r.ofKind(kind) {
		if pid := OutsidePID(e.payload); pid != 0 {
			out = append(out, pid)
		}
	}
	return out
}
