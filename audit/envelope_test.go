package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
)

// event is an event with every field set.
func event(id string) audit.EnvelopeEvent {
	return audit.EnvelopeEvent{
		Time: time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.FixedZone("", 3600)), RequestID: id, TraceID: "trc_1", DecisionID: "dec_1",
		Session: "ses_1", Transport: "http", Route: "demo", Method: "tools/call", Status: "error",
		Duration: 1234567 * time.Nanosecond, Error: json.RawMessage(`{"code":-32600,"message":"Invalid MCP envelope"}`),
	}
}

func openEnvelopes(t testing.TB, dir string, opts audit.EnvelopeOptions) *audit.EnvelopeLog {
	t.Helper()
	if opts.OnError == nil {
		opts.OnError = func(doing string, cause error) { t.Errorf("%s: %v", doing, cause) }
	}
	l, err := audit.OpenEnvelopes(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// envelopeLines closes l and gives the lines of all files, in the order of
// their names, each of which must be as the schema says.
func envelopeLines(t testing.TB, dir string, l *audit.EnvelopeLog) []string {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	var all []string
	for _, name := range envelopeFiles(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			t.Errorf("%s ends in half a line", name)
		}
		for line := range strings.Lines(string(data)) {
			conforms(t, line)
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

func envelopeFiles(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "[0-9d]*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		paths[i] = filepath.Base(path)
	}
	return paths
}

var eventSchema = sync.OnceValues(func() (*schema.Schema, error) {
	raw, err := schemas.Files.ReadFile("envelope-event.json")
	if err != nil {
		return nil, err
	}
	return schema.Compile(raw)
})

// conforms holds a line to docs/schemas/envelope-event.json.
func conforms(t testing.TB, line string) {
	t.Helper()
	s, err := eventSchema()
	if err != nil {
		t.Fatal(err)
	}
	faults, err := s.Validate(json.RawMessage(line))
	if err != nil || len(faults) > 0 {
		t.Errorf("%s: %v %v", line, faults, err)
	}
}

// requestIDs gives the ids of lines, and "dropped n" for what tells of n
// missing events.
func requestIDs(t testing.TB, lines []string) []string {
	t.Helper()
	var out []string
	for _, line := range lines {
		var got struct {
			IDs      struct{ Request_ID string }
			Metadata struct{ Dropped int }
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if got.Metadata.Dropped > 0 {
			out = append(out, fmt.Sprint("dropped ", got.Metadata.Dropped))
			continue
		}
		out = append(out, got.IDs.Request_ID)
	}
	return out
}

// TestEnvelopeLine: the members that seed 004 requires, byte for byte.
func TestEnvelopeLine(t *testing.T) {
	dir := t.TempDir()
	now := func() time.Time { return time.Unix(1_800_000_000, 0) }
	l := openEnvelopes(t, dir, audit.EnvelopeOptions{Instance: "i1", Now: now})
	l.Write(event("7"))
	l.Write(audit.EnvelopeEvent{Transport: "stdio", Method: "ping", Status: "ok"})
	want := []string{
		`{"timestamp":"2026-03-01T11:00:00.5Z","ids":{"request_id":"7","trace_id":"trc_1","decision_id":"dec_1","session":"ses_1"},` +
			`"transport":"http","route":"demo","method":"tools/call","status":"error","duration_ms":1.235,` +
			`"error":{"code":-32600,"message":"Invalid MCP envelope"},"metadata":{"schemaVersion":"1","deterministic":false,"run":"i1"}}`,
		`{"timestamp":"2027-01-15T08:00:00Z","ids":{"request_id":"","trace_id":"","decision_id":"","session":""},` +
			`"transport":"stdio","route":"","method":"ping","status":"ok","duration_ms":0,` +
			`"error":null,"metadata":{"schemaVersion":"1","deterministic":false,"run":"i1"}}`,
	}
	if diff := cmp.Diff(want, envelopeLines(t, dir, l)); diff != "" {
		t.Error(diff)
	}
}

// TestEnvelopeErrors: an error is kept as it was answered, or told in short.
func TestEnvelopeErrors(t *testing.T) {
	tests := []struct{ name, raw, want string }{
		{"none", ``, `null`},
		{"every byte", `{"b":1e2,"a":"<é>"}`, `{"b":1e2,"a":"<é>"}`},
		{"no object", `"boom"`, `{"text":"\"boom\""}`},
		{"no JSON", `{"a"`, `{"text":"{\"a\""}`},
		{"two lines", "{\n}", `{"text":"{\n}"}`},
		{"long", `{"code":-32000,"data":"` + strings.Repeat("x", 20_000) + `"}`, `{"code":-32000,"omitted_bytes":20025}`},
		{"long without a code", `{"data":"` + strings.Repeat("x", 20_000) + `"}`, `{"omitted_bytes":20011}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			l := openEnvelopes(t, dir, audit.EnvelopeOptions{})
			e := event("1")
			e.Error = json.RawMessage(tt.raw)
			if tt.raw == "" {
				e.Status = "ok"
			}
			l.Write(e)
			for _, line := range envelopeLines(t, dir, l) {
				if !strings.Contains(line, `"error":`+tt.want+`,"metadata"`) {
					t.Errorf("%.300s\nlacks %s", line, tt.want)
				}
			}
		})
	}
}

// TestEnvelopeDirectory: one file per run, named so that names sort by start,
// for its owner only, and .latest points at the newest.
func TestEnvelopeDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "mcp_server", "envelope_validation")
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i, instance := range []string{"zz", "aa"} {
		now := at.Add(time.Duration(i) * time.Millisecond)
		l := openEnvelopes(t, dir, audit.EnvelopeOptions{Instance: instance, Now: func() time.Time { return now }})
		if files := envelopeFiles(t, dir); len(files) != i {
			t.Errorf("before an event there are %v", files)
		}
		l.Write(event("1"))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		target, err := os.Readlink(filepath.Join(dir, ".latest"))
		if want := fmt.Sprintf("20260301T120000.00%dZ-%s.jsonl", i, instance); err != nil || target != want {
			t.Errorf(".latest is %q, %v; want %q", target, err, want)
		}
	}
	want := []string{"20260301T120000.000Z-zz.jsonl", "20260301T120000.001Z-aa.jsonl"}
	if diff := cmp.Diff(want, envelopeFiles(t, dir)); diff != "" {
		t.Error(diff)
	}
	if runtime.GOOS == "windows" {
		t.Skip("no permission bits here")
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Dir(dir): 0o700, filepath.Join(dir, ".latest"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// TestEnvelopeLatestWithoutLinks: a link that cannot be made is reported and
// the log goes on.
func TestEnvelopeLatestWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".latest", "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	var told []string
	l := openEnvelopes(t, dir, audit.EnvelopeOptions{OnError: func(doing string, _ error) { told = append(told, doing) }})
	l.Write(event("1"))
	if got := requestIDs(t, envelopeLines(t, dir, l)); len(got) != 1 {
		t.Errorf("lines %v", got)
	}
	if diff := cmp.Diff([]string{"pointing .latest at the envelope log"}, told); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".latest-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestEnvelopeDeterministic: two runs over the same events give the same bytes
// in the same file, whatever the clock and the duration.
func TestEnvelopeDeterministic(t *testing.T) {
	dir := t.TempDir()
	run := func(count int, slow time.Duration) []byte {
		ticks := 0
		l := openEnvelopes(t, dir, audit.EnvelopeOptions{Deterministic: true, Instance: fmt.Sprint("i", slow), Now: func() time.Time {
			ticks++
			return time.Unix(0, 0).Add(time.Duration(ticks) * time.Millisecond)
		}})
		for i := range count {
			e := event(fmt.Sprint(i))
			e.Time, e.Duration = time.Now(), slow
			l.Write(e)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "deterministic.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := run(3, time.Second)
	run(5, time.Minute)
	again := run(3, time.Hour)
	if diff := cmp.Diff(string(first), string(again)); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{`"timestamp":"1970-01-01T00:00:00.001Z"`, `"duration_ms":0,`, `"deterministic":true,"run":"deterministic"`} {
		if !bytes.Contains(first, []byte(part)) {
			t.Errorf("%s\nlacks %s", first, part)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, ".latest")); err != nil || target != "deterministic.jsonl" {
		t.Errorf(".latest is %q, %v", target, err)
	}
}

// TestEnvelopeFlush: an event is in the file after 200 ms, and without events
// nothing is done.
func TestEnvelopeFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowFile{}
		l := openEnvelopes(t, t.TempDir(), audit.EnvelopeOptions{OpenFile: f.open})
		time.Sleep(time.Hour)
		l.Write(event("1"))
		l.Write(event("2"))
		time.Sleep(199 * time.Millisecond)
		if got := f.writes(); got != 0 {
			t.Errorf("%d writes early", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := f.writes(); got != 1 {
			t.Errorf("%d writes, want 1 for both events", got)
		}
		time.Sleep(time.Hour)
		if got := f.writes(); got != 1 {
			t.Errorf("%d writes without an event", got-1)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// slowFile is a file whose writes wait for gate, and fail when full.
type slowFile struct {
	gate chan struct{} // nil: open

	mu    sync.Mutex // protects the fields below
	data  bytes.Buffer
	count int
	full  bool
	base  int // where the file opened last begins in data
}

func (f *slowFile) open(string) (audit.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.base = f.data.Len()
	return f, nil
}

func (f *slowFile) Write(b []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.full {
		n, _ := f.data.Write(b[:len(b)/2])
		return n, errors.New("no space left on device")
	}
	return f.data.Write(b)
}

func (f *slowFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data.Truncate(f.base + int(size))
	return nil
}

func (f *slowFile) Sync() error  { return nil }
func (f *slowFile) Close() error { return nil }

func (f *slowFile) writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *slowFile) fill(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *slowFile) lines() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Split(strings.TrimSuffix(f.data.String(), "\n"), "\n")
}

// TestEnvelopeNeverBlocks: while the disk hangs calls go on, and a later line
// says how many events are missing.
func TestEnvelopeNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowFile{gate: make(chan struct{})}
		l := openEnvelopes(t, t.TempDir(), audit.EnvelopeOptions{OpenFile: f.open, BufferBytes: 1000})
		start := time.Now()
		l.Write(event("0"))
		time.Sleep(time.Second) // the writer has taken it and hangs
		for i := range 100 {
			l.Write(event(fmt.Sprint(i + 1)))
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("writing took %v", took)
		}
		close(f.gate)
		synctest.Wait()
		l.Write(event("after"))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		want := []string{"0", "1", "2", "dropped 98", "after"}
		if diff := cmp.Diff(want, requestIDs(t, f.lines())); diff != "" {
			t.Error(diff)
		}
		for _, line := range f.lines() {
			conforms(t, line)
		}
	})
}

// TestEnvelopeFullDisk: events that could not be written are counted once there
// is room again, no half line is left, and the failure is told once.
func TestEnvelopeFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, told := &slowFile{}, 0
		l := openEnvelopes(t, t.TempDir(), audit.EnvelopeOptions{OpenFile: f.open, OnError: func(string, error) { told++ }})
		write := func(ids ...string) {
			for _, id := range ids {
				l.Write(event(id))
			}
			time.Sleep(time.Second)
		}
		write("1")
		f.fill(true)
		write("2", "3")
		write("4")
		f.fill(false)
		write("5")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"1", "5", "dropped 3"}, requestIDs(t, f.lines())); diff != "" {
			t.Error(diff)
		}
		if told != 1 {
			t.Errorf("%d failures were told, want 1", told)
		}
	})
}

// TestEnvelopeNeverTold: a log that ends on a full disk says what is missing.
func TestEnvelopeNeverTold(t *testing.T) {
	f := &slowFile{full: true}
	l := openEnvelopes(t, t.TempDir(), audit.EnvelopeOptions{OpenFile: f.open, OnError: func(string, error) {}})
	l.Write(event("1"))
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "1 event could not be written") {
		t.Errorf("error %v", err)
	}
}

// TestEnvelopeRotation: files end at their size, and the newest are kept; what
// is not ours stays.
func TestEnvelopeRotation(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"notes.txt", "other.jsonl", "20260301T120000.000Z-old.jsonl"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := openEnvelopes(t, dir, audit.EnvelopeOptions{Instance: "i", FileBytes: 900, Keep: 3, BufferBytes: 500})
	for i := range 10 {
		l.Write(event(fmt.Sprint(i)))
		waitFor(t, func() bool { return strings.Contains(allBytes(t, dir), fmt.Sprintf(`"request_id":"%d"`, i)) })
	}
	got := requestIDs(t, envelopeLines(t, dir, l))
	if diff := cmp.Diff([]string{"4", "5", "6", "7", "8", "9"}, got); diff != "" {
		t.Error(diff)
	}
	files := envelopeFiles(t, dir)
	form := regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-i_00000[345]\.jsonl$`)
	for _, name := range files {
		if !form.MatchString(name) {
			t.Errorf("file %s", name)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, ".latest")); err != nil || target != files[len(files)-1] {
		t.Errorf(".latest is %q, %v; files %v", target, err, files)
	}
	for _, name := range []string{"notes.txt", "other.jsonl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func allBytes(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range envelopeFiles(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		all.Write(data)
	}
	return all.String()
}

// waitFor yields until ok.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it did not happen in 10 s")
		}
	}
}

// TestEnvelopeLivingRuns: files of a run are not removed while it lives, by
// however many runs beside it; those of runs that have ended are.
func TestEnvelopeLivingRuns(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		dir := t.TempDir()
		long := openEnvelopes(t, dir, audit.EnvelopeOptions{Deterministic: deterministic, FileBytes: 400, Keep: 3, BufferBytes: 500})
		for i := range 3 {
			long.Write(event(fmt.Sprint("long ", i)))
			waitFor(t, func() bool { return strings.Contains(allBytes(t, dir), fmt.Sprintf(`"long %d"`, i)) })
		}
		for i := range 6 {
			short := openEnvelopes(t, dir, audit.EnvelopeOptions{Deterministic: deterministic, FileBytes: 400, Keep: 3})
			short.Write(event(fmt.Sprint("short ", i)))
			if err := short.Close(); err != nil {
				t.Error(err)
			}
			openEnvelopes(t, dir, audit.EnvelopeOptions{Deterministic: deterministic}).Close()
		}
		want := []string{"long 0", "long 1", "long 2", "short 5"}
		got := requestIDs(t, envelopeLines(t, dir, long))
		for _, id := range want {
			if !slices.Contains(got, id) {
				t.Errorf("deterministic %t: %s is missing in %v", deterministic, id, got)
			}
		}
		if len(got) > 3+3 { // what lives, and Keep
			t.Errorf("deterministic %t: too much is left: %v", deterministic, got)
		}
	}
}

// TestEnvelopeFileTaken: a run whose file somebody has removed continues in a new
// one.
func TestEnvelopeFileTaken(t *testing.T) {
	dir := t.TempDir()
	l := openEnvelopes(t, dir, audit.EnvelopeOptions{Instance: "i"})
	l.Write(event("0"))
	waitFor(t, func() bool { return len(envelopeFiles(t, dir)) > 0 && strings.Contains(allBytes(t, dir), `"0"`) })
	for _, name := range envelopeFiles(t, dir) {
		err := os.Remove(filepath.Join(dir, name))
		if err != nil && runtime.GOOS == "windows" {
			t.Skipf("an open file cannot be removed here: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l.Write(event("1"))
	if got := requestIDs(t, envelopeLines(t, dir, l)); len(got) != 1 {
		t.Errorf("lines %v", got)
	}
}

func TestEnvelopeClose(t *testing.T) {
	dir := t.TempDir()
	l := openEnvelopes(t, dir, audit.EnvelopeOptions{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				l.Write(event(fmt.Sprint(i, ".", n)))
			}
		})
	}
	wg.Wait()
	if got := len(envelopeLines(t, dir, l)); got != 400 {
		t.Errorf("%d lines, want 400", got)
	}
	l.Write(event("late"))
	if got := len(envelopeLines(t, dir, l)); got != 400 {
		t.Errorf("%d lines after a late event", got)
	}
	if _, err := audit.OpenEnvelopes(dir, audit.EnvelopeOptions{Instance: "../x"}); err == nil {
		t.Error("a bad instance name was taken")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.OpenEnvelopes(file, audit.EnvelopeOptions{}); err == nil {
		t.Error("a file was taken for a directory")
	}
}

// FuzzEnvelopeLine: whatever strangers put into an event, it is one line that
// the schema accepts.
func FuzzEnvelopeLine(f *testing.F) {
	f.Add("1", "tools/call", []byte(`{"code":1}`))
	f.Add("\u2028\n", strings.Repeat("é", 300), []byte("{\n}"))
	f.Add("\xff\"", "", []byte(`{"a":`))
	f.Fuzz(func(t *testing.T, id, method string, fault []byte) {
		e := event(id)
		e.Method, e.Error = method, fault
		if len(fault) == 0 {
			e.Status = "ok"
		}
		line := string(audit.AppendEnvelope(nil, e))
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "}\n") || len(line) > 100_000+6*len(fault) {
			t.Fatalf("%q", line)
		}
		conforms(t, line)
	})
}

func BenchmarkEnvelopeWrite(b *testing.B) {
	l := openEnvelopes(b, b.TempDir(), audit.EnvelopeOptions{BufferBytes: 64 << 20})
	e := event("1")
	b.ReportAllocs()
	for b.Loop() {
		l.Write(e)
	}
}
