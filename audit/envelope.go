package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// EnvelopeSchemaVersion is the version of the JSON Schema of an envelope event,
// docs/schemas/envelope-event.json.
const EnvelopeSchemaVersion = "1"

const (
	// envelopeDropped is the status of a line that counts the events missing before
	// it.
	envelopeDropped = "dropped"
	// maxEnvelopeText bounds one text of an event, in bytes: a method may be as long
	// as a message.
	maxEnvelopeText = 512
	// maxEnvelopeError bounds an error that is kept whole, in bytes: an upstream's
	// error may be as long as a message.
	maxEnvelopeError = 16 << 10
)

// EnvelopeEvent describes one envelope that a door received, and its answer.
type EnvelopeEvent struct {
	Time       time.Time // when it was received; zero = when the log got it
	RequestID  string    // the JSON-RPC id as text, "" when there is none
	TraceID    string    // "" for an envelope that takes no road
	DecisionID string    // names the record in the audit trail, "" when there is none
	Session    string    // the key that records use, never what the client shows
	Transport  string    // as in proxy.Call
	Route      string    // the path that it came in by
	Method     string    // "" when it could not be read
	Status     string    // ok, error, accepted or cancelled
	Duration   time.Duration
	// Error is the JSON-RPC error object that was answered, or what stood for
	// one in a result; nil when there is none.
	Error json.RawMessage
}

// EnvelopeOptions are the settings of an EnvelopeLog. The zero value is valid.
type EnvelopeOptions struct {
	Instance string // names the run; "" = a new ULID
	// Deterministic gives the same bytes for the same events: one file name, no
	// durations, times from Now alone.
	Deterministic bool
	Now           func() time.Time                // nil = time.Now
	Flush         time.Duration                   // longest time until an event is in the file; 0 = 200 ms
	BufferBytes   int                             // events beyond it are dropped until the next flush; 0 = 4 MiB
	FileBytes     int64                           // size at which a file ends; 0 = 64 MiB
	Keep          int                             // number of files that are kept, the newest of all runs; 0 = 16
	OpenFile      func(path string) (File, error) // creates a new file; nil = one that is locked while it is open
	OnError       func(doing string, cause error) // receives every failure; nil = none. Must not block
}

func (o EnvelopeOptions) withDefaults() EnvelopeOptions {
	o.Instance = cmp.Or(o.Instance, newInstance())
	if o.Deterministic {
		o.Instance = "deterministic"
	}
	o.Flush = cmp.Or(o.Flush, 200*time.Millisecond)
	o.BufferBytes = cmp.Or(o.BufferBytes, 4<<20)
	o.FileBytes = cmp.Or(o.FileBytes, 64<<20)
	o.Keep = cmp.Or(o.Keep, 16)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OpenFile == nil {
		o.OpenFile = createLocked
	}
	if o.OnError == nil {
		o.OnError = func(string, error) {}
	}
	return o
}

// EnvelopeLog is the structured log of envelopes (seed 004): one JSON line for each
// envelope that a door received, also when it was refused. It serves observation, not
// evidence, so it is the opposite of a Log: it never delays a call, and when the disk
// is too slow or full it drops events and records how many. It is safe for concurrent
// use.
type EnvelopeLog struct {
	opts  EnvelopeOptions
	timer *time.Timer // calls flush; runs while there is something to write

	once sync.Once
	err  error // of closing the file, valid after once

	writing sync.Mutex     // held for as long as a flush takes; protects files
	files   *envelopeFiles // nil = closed

	mu      sync.Mutex // protects the fields below
	buf     []byte     // whole lines that wait for the next flush
	spare   []byte     // the next buf
	count   int64      // of the lines in buf
	dropped int64      // events that are in no line and no count of a line
	closed  bool
}

const (
	// flushBytes is the size of a buffer that is written before Flush has passed.
	flushBytes = 64 << 10
	// maxSpare bounds the memory that an idle log keeps, in bytes.
	maxSpare = 1 << 20
)

// OpenEnvelopes begins a run with files in dir, creating dir when it is missing. The
// first event creates the first file and links <dir>/.latest to it, so that a process
// without events leaves no file. A directory that cannot be created is an error; files
// and links that cannot be created are reported to OnError. The caller must Close the
// log.
func OpenEnvelopes(dir string, opts EnvelopeOptions) (*EnvelopeLog, error) {
	opts = opts.withDefaults()
	if !chain.IsName(opts.Instance) {
		return nil, fmt.Errorf("opening envelope log: bad instance name %q", opts.Instance)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening envelope log: %w", err)
	}
	l := &EnvelopeLog{opts: opts, files: newEnvelopeFiles(dir, opts)}
	l.timer = time.AfterFunc(opts.Flush, l.flush)
	return l, nil
}

// Write adds e to the log. It returns at once and never fails: e is in the file after
// Flush at the latest, or a later line counts it as dropped. After Close it does
// nothing.
func (l *EnvelopeLog) Write(e EnvelopeEvent) {
	if e.Time.IsZero() || l.opts.Deterministic {
		e.Time = l.opts.Now()
	}
	if l.opts.Deterministic {
		e.Duration = 0
	}
	for _, text := range []*string{&e.RequestID, &e.TraceID, &e.DecisionID, &e.Session, &e.Transport, &e.Route, &e.Method, &e.Status} {
		if len(*text) > maxEnvelopeText { // an unauthenticated sender may have chosen it
			*text = strings.ToValidUTF8((*text)[:maxEnvelopeText], "") + "…"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	before := len(l.buf)
	l.buf = appendEnvelope(l.buf, &e, &l.opts, 0)
	size := len(l.buf)
	if size <= l.opts.BufferBytes {
		l.count++
	} else {
		l.buf = l.buf[:before]
		l.dropped++
	}
	switch enough := min(l.opts.BufferBytes/2, flushBytes); {
	case before <= enough && size > enough:
		l.timer.Reset(0)
	case before == 0:
		l.timer.Reset(l.opts.Flush)
	}
}

// Close writes the buffered events and closes the file. Later calls return the result
// of the first.
func (l *EnvelopeLog) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.timer.Stop()
		l.flush()
		l.writing.Lock()
		defer l.writing.Unlock()
		l.err, l.files = l.files.end(l.dropped), nil // nothing changes dropped any more
	})
	return l.err
}

// flush writes the buffer. Events that it could not write count as dropped.
func (l *EnvelopeLog) flush() {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.files == nil {
		return
	}
	l.mu.Lock()
	lines, count, dropped := l.buf, l.count, l.dropped
	l.buf, l.spare, l.count, l.dropped = l.spare, nil, 0, 0
	l.mu.Unlock()
	if dropped > 0 {
		gap := EnvelopeEvent{Time: l.opts.Now(), Status: envelopeDropped}
		lines = appendEnvelope(lines, &gap, &l.opts, dropped)
	}
	failed := len(lines) > 0 && l.files.write(lines) != nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if failed {
		l.dropped += count + dropped
	}
	if cap(lines) <= maxSpare {
		l.spare = lines[:0]
	}
}

// appendEnvelope appends the line of e, which has every member whatever e lacks.
// dropped is left out when it is 0.
func appendEnvelope(b []byte, e *EnvelopeEvent, opts *EnvelopeOptions, dropped int64) []byte {
	b = e.Time.UTC().AppendFormat(append(b, `{"timestamp":"`...), time.RFC3339Nano)
	b = appendTexts(b, `","ids":{"request_id":"`, e.RequestID, `,"trace_id":"`, e.TraceID, `,"decision_id":"`, e.DecisionID, `,"session":"`, e.Session)
	b = appendTexts(b, `},"transport":"`, e.Transport, `,"route":"`, e.Route, `,"method":"`, e.Method, `,"status":"`, e.Status)
	ms := float64(max(e.Duration, 0).Round(time.Microsecond).Microseconds()) / 1000
	b = append(strconv.AppendFloat(append(b, `,"duration_ms":`...), ms, 'f', -1, 64), `,"error":`...)
	if len(e.Error) == 0 {
		b = append(b, "null"...)
	} else {
		b = appendFault(b, e.Error)
	}
	b = append(b, `,"metadata":{"schemaVersion":"`+EnvelopeSchemaVersion+`","deterministic":`...)
	b = appendTexts(strconv.AppendBool(b, opts.Deterministic), `,"run":"`, opts.Instance)
	if dropped != 0 {
		b = strconv.AppendInt(append(b, `,"dropped":`...), dropped, 10)
	}
	return append(b, "}}\n"...)
}

// appendFault appends an error object as it was answered: by its code and size when
// it is too long, as text when it is not an object.
func appendFault(b, raw []byte) []byte {
	if len(raw) <= maxEnvelopeError {
		if raw[0] == '{' && isLine(raw, false) {
			return append(b, raw...)
		}
		return append(appendTexts(b, `{"text":"`, string(raw)), '}')
	}
	b = append(b, '{')
	if code, ok := jsonrpc.Get(raw, "code"); ok && len(code) <= 64 && isLine(code, false) {
		b = append(append(append(b, `"code":`...), code...), ',')
	}
	return append(strconv.AppendInt(append(b, `"omitted_bytes":`...), int64(len(raw)), 10), '}')
}
