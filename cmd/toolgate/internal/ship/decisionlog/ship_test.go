package decisionlog_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
)

// lines gives the ids of the events in a file, and checks each.
func lines(t testing.TB, path string) (ids []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Error("the file ends within a line")
	}
	for line := range strings.Lines(string(text)) {
		ids = append(ids, asOPA(t, []byte(line)).DecisionID)
	}
	return ids
}

// same compares what was told with what was decided.
func same(t testing.TB, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// Decisions are told in their order, each once, from the moment the sink is
// configured on; what is no decision is not. Over restarts and reloads it goes on
// where it was, even if the sink has another address by then.
func TestFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decide(3)
	first, second := filepath.Join(w.dir, "first.jsonl"), filepath.Join(w.dir, "second.jsonl")
	s := w.shipper(decisionlog.Config{File: first})
	told := w.decide(2 * decisionlog.BatchEvents)
	w.caughtUp(s, "file")
	same(t, told, lines(t, first))
	if info, err := os.Stat(first); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	until(t, "all are counted", func() bool { return w.count("file shipped") == len(told) })
	w.end(s)
	more := w.decide(5)
	s = w.shipper(decisionlog.Config{File: first})
	w.caughtUp(s, "file")
	same(t, append(told, more...), lines(t, first))
	if err := s.Apply(t.Context(), decisionlog.Config{}); err != nil {
		t.Fatal(err)
	}
	more = w.decide(5)
	if err := s.Apply(t.Context(), decisionlog.Config{File: second}); err != nil {
		t.Fatal(err)
	}
	w.caughtUp(s, "file")
	same(t, more, lines(t, second))
}

// Whoever rotates the file needs to tell nobody.
func TestRotated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.dir, "log.jsonl")
	s := w.shipper(decisionlog.Config{File: path})
	before := w.decide(3)
	w.caughtUp(s, "file")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	after := w.decide(3)
	w.caughtUp(s, "file")
	same(t, before, lines(t, path+".1"))
	same(t, after, lines(t, path))
	if err := os.Truncate(path, 0); err != nil { // as logrotate's copytruncate does
		t.Fatal(err)
	}
	after = w.decide(2)
	w.caughtUp(s, "file")
	same(t, after, lines(t, path))
}

// A line in which a process died is cut off, however long it is.
func TestCutLine(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"behind a line": `{"labels":{},"decision_id":"old","timestamp":"2026-01-02T03:04:05Z"}` + "\n" + strings.Repeat("x", 100<<10),
		"alone":         strings.Repeat("x", 100<<10), "short": "{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			path := filepath.Join(w.dir, "log.jsonl")
			if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
			s := w.shipper(decisionlog.Config{File: path})
			want := w.decide(1)
			w.caughtUp(s, "file")
			if strings.Contains(text, "\n") {
				want = append([]string{"old"}, want...)
			}
			same(t, want, lines(t, path))
		})
	}
}

// A file that cannot be written holds up nothing but itself, and is told all that
// it missed once it can be. The other sink is told meanwhile.
func TestFileFaults(t *testing.T) {
	t.Parallel()
	const irregular = "the file cannot be written: is not a regular file"
	for name, test := range map[string]struct {
		block func(path string) error
		fault string
	}{
		"no directory": {func(path string) error { return os.Remove(filepath.Dir(path)) }, "the file cannot be written: no such file or directory"},
		"a directory":  {func(path string) error { return os.Mkdir(path, 0o700) }, irregular},
		"a pipe":       {func(path string) error { return syscall.Mkfifo(path, 0o600) }, irregular},
		"a device":     {func(path string) error { return os.Symlink("/dev/null", path) }, irregular},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			folder := filepath.Join(w.dir, "planted-folder")
			path := filepath.Join(folder, "log.jsonl")
			if err := errors.Join(os.Mkdir(folder, 0o700), test.block(path)); err != nil {
				t.Fatal(err)
			}
			d := newFakeCollector(t, nil)
			s := w.shipper(decisionlog.Config{File: path, URL: d.URL})
			want := w.decide(10)
			w.caughtUp(s, "http")
			until(t, "a fault", func() bool {
				all, err := s.Troubles(t.Context())
				return err == nil && all[0].Fault == test.fault && all[0].Lag >= 10 && !all[0].Since.IsZero() && all[1].Fault == ""
			})
			_ = os.Remove(path)
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			w.caughtUp(s, "file")
			same(t, want, lines(t, path))
			same(t, want, d.taken())
			if all, err := s.Troubles(t.Context()); err != nil || all[0].Fault != "" || !all[0].Since.IsZero() {
				t.Errorf("%+v, %v", all, err)
			}
		})
	}
}

// A collector is sent what OPA sends, in chunks of a bounded size.
func TestCollector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeCollector(t, nil)
	s := w.shipper(decisionlog.Config{URL: d.URL + "/logs", Token: "planted-token", Headers: map[string]string{"X-Team": "payments", "content-type": "text/plain"}})
	want := w.decide(3 * decisionlog.BatchEvents)
	w.caughtUp(s, "http")
	same(t, want, d.taken())
	for _, c := range d.chunks {
		if len(c) > decisionlog.BatchEvents {
			t.Errorf("a chunk of %d", len(c))
		}
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer planted-token", "X-Team": "payments", "Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": "toolgate",
	} {
		if got := d.heads[0].Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A collector that is away, or refuses all for reasons that may be mended, is told
// everything once it is back. What it is shown of why names no secret.
func TestCollectorIsAway(t *testing.T) {
	t.Parallel()
	for _, code := range []int{500, 503, 429, 401, 403, 404, 301, 302, 400, 413, 422, 99} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			answer := status(code)
			if code == 99 {
				answer = func([]string) int { panic(http.ErrAbortHandler) }
			}
			d := newFakeCollector(t, answer)
			s := w.shipper(decisionlog.Config{URL: d.URL + "/planted-path", Token: "planted-token"})
			want := w.decide(20)
			until(t, "tries", func() bool { return d.tried() > 6 && w.trouble(s).Fault != "" })
			tr := w.trouble(s)
			if tr.Lag < 20 || !tr.Since.Equal(noon) || tr.Parked != 0 {
				t.Errorf("%+v", tr)
			}
			d.reply(nil)
			w.caughtUp(s, "http")
			same(t, want, slices.Sorted(slices.Values(d.taken()))) // a probe is told before its turn
			if tr := w.trouble(s); tr.Fault != "" || tr.Parked != 0 {
				t.Errorf("%+v", tr)
			}
			if text := w.log.String() + tr.Fault; strings.Contains(text, "planted") || !strings.Contains(text, "not shipped") {
				t.Errorf("the log: %s", text)
			}
		})
	}
}

// An event that is refused while others are taken is parked, said, and passed
// over; one that is alone waits until there is another.
func TestParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := func(id string) bool { return id == "dec-000001" || id == "dec-000008" || id == "dec-000009" }
	d := newFakeCollector(t, func(ids []string) int {
		if slices.ContainsFunc(ids, bad) {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	s := w.shipper(decisionlog.Config{URL: d.URL})
	all := w.decide(1)
	until(t, "tries", func() bool { return d.tried() > 2 })
	if tr := w.trouble(s); tr.Parked != 0 {
		t.Fatalf("given up without knowing who is at fault: %+v", tr)
	}
	all = append(all, w.decide(20)...)
	w.caughtUp(s, "http")
	same(t, slices.DeleteFunc(slices.Clone(all), bad), slices.Sorted(slices.Values(d.taken())))
	tr := w.trouble(s)
	if tr.Parked != 3 || !bad(tr.Decision) || tr.Refusal != "it answered with status 422" || w.count("http parked") != 3 {
		t.Errorf("%+v, %d", tr, w.count("http parked"))
	}
	until(t, "the others are counted", func() bool { return w.count("http shipped") == len(all)-3 })
}

// Only a status that is about events parks one: whatever else a collector answers
// to a chunk, it is told that chunk again.
func TestNotParked(t *testing.T) {
	t.Parallel()
	for _, code := range []int{500, 503, 429, 401, 403, 404, 408, 409, 410} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var refused atomic.Int32
			d := newFakeCollector(t, func(ids []string) int {
				if slices.Contains(ids, "dec-000003") && refused.Add(1) < 8 {
					return code
				}
				return http.StatusOK
			})
			w.end(w.shipper(decisionlog.Config{URL: d.URL}))
			want := w.decide(8)
			o := w.options(w.db)
			o.Retry = time.Millisecond
			s := w.shipperWith(o, decisionlog.Config{URL: d.URL})
			w.caughtUp(s, "http")
			same(t, want, d.taken())
			if tr := w.trouble(s); tr.Parked != 0 {
				t.Errorf("%+v", tr)
			}
		})
	}
}

// What the mask drops is not told; what it fails on, by its id only.
func TestMaskOnTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options(w.db)
	o.Mask = func(_ context.Context, event json.RawMessage) (policy.Mask, error) {
		switch id := asOPA(t, event).DecisionID; id {
		case "dec-000002":
			return policy.Mask{Drop: true}, nil
		case "dec-000003":
			return policy.Mask{}, errors.New("planted-cause")
		}
		return policy.Mask{Rules: []policy.MaskRule{{Path: "/input/arguments/card"}}}, nil
	}
	path := filepath.Join(w.dir, "log.jsonl")
	s := w.shipperWith(o, decisionlog.Config{File: path})
	w.decide(4)
	w.caughtUp(s, "file")
	same(t, []string{"dec-000001", "dec-000003", "dec-000004"}, lines(t, path))
	text, _ := os.ReadFile(path)
	if strings.Contains(string(text), "4111") || strings.Count(string(text), `"erased":["/input","/result"]`) != 1 {
		t.Errorf("%s", text)
	}
	if w.count("file dropped") != 1 || w.count("file masked") != 1 || !strings.Contains(w.log.String(), "planted-cause") {
		t.Errorf("%v %s", w.seen, w.log.String())
	}
}

// Of several processes one tells; when it ends, another goes on.
func TestOneTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeCollector(t, nil)
	var all []*decisionlog.Shipper
	for range 3 {
		all = append(all, w.shipperWith(w.options(w.open()), decisionlog.Config{URL: d.URL}))
	}
	var want []string
	for i, s := range all {
		want = append(want, w.decide(30)...)
		for _, other := range all[i:] {
			w.caughtUp(other, "http")
		}
		same(t, want, d.taken())
		w.end(s)
	}
}

// While another process holds the lock of a sink, nothing is shipped to it.
func TestHeldSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeCollector(t, nil)
	if err := os.MkdirAll(filepath.Join(w.dir, "instances"), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(filepath.Join(w.dir, "instances", "decisions-http"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := files.TryLock(other); err != nil {
		t.Fatal(err)
	}
	s := w.shipper(decisionlog.Config{URL: d.URL, File: filepath.Join(w.dir, "log.jsonl")})
	want := w.decide(1)
	w.caughtUp(s, "file") // the worker of the other sink has had its time, too
	all, err := s.Troubles(t.Context())
	if err != nil || len(all) != 2 || all[1].Lag == 0 || all[1].Fault != "" || !all[1].Since.IsZero() || d.tried() != 0 {
		t.Errorf("it ships: %+v, %v, %v", all, err, d.taken())
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	w.caughtUp(s, "http")
	same(t, want, d.taken())
}

// A redirect takes no event and no token anywhere.
func TestRedirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	elsewhere := newFakeCollector(t, nil)
	d := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(d.Close)
	s := w.shipper(decisionlog.Config{URL: d.URL})
	w.decide(1)
	until(t, "a fault", func() bool { return w.trouble(s).Fault == "it answered with status 307: redirects are not followed" })
	if elsewhere.tried() != 0 {
		t.Error("it followed")
	}
}

// A collector has to be who it says.
func TestCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeCollector(t, nil)
	tls := httptest.NewTLSServer(d)
	t.Cleanup(tls.Close)
	s := w.shipper(decisionlog.Config{URL: tls.URL})
	want := w.decide(1)
	until(t, "a fault", func() bool { return w.trouble(s).Fault == "its certificate is not trusted" })
	w.end(s)
	if d.tried() != 0 {
		t.Error("it was told")
	}
	o := w.options(w.db)
	o.Roots = x509.NewCertPool()
	o.Roots.AddCert(tls.Certificate())
	s = w.shipperWith(o, decisionlog.Config{URL: tls.URL})
	w.caughtUp(s, "http")
	same(t, want, d.taken())
}

// Close tells what was recorded just before, if the sink takes it, and waits for no
// sink that does not.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeCollector(t, nil)
	s := w.shipper(decisionlog.Config{URL: d.URL})
	want := w.decide(1)
	w.caughtUp(s, "http")
	want = append(want, w.decide(3)...)
	if err := w.trail.Close(); err != nil {
		t.Fatal(err)
	}
	s.Close(t.Context())
	same(t, want, d.taken())

	w = newWorld(t)
	d = newFakeCollector(t, status(503))
	s = w.shipper(decisionlog.Config{URL: d.URL})
	w.decide(1)
	until(t, "a fault", func() bool { return w.trouble(s).Fault != "" })
	done := make(chan struct{})
	go func() {
		s.Close(t.Context())
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("it waits for ever")
	}
}

// A record that is no record holds up nothing.
func TestDamagedTrail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(w.dir, "log.jsonl")
	s := w.shipper(decisionlog.Config{File: path})
	r := record(0, "bad")
	r.Policy.Obligations = json.RawMessage(`{"labels":7}`)
	want := w.decide(1)
	w.record(r)
	want = append(want, w.decide(1)...)
	w.caughtUp(s, "file")
	same(t, want, lines(t, path))
	if w.count("file lost") != 1 {
		t.Errorf("%v", w.seen)
	}
}

// kill -9 while it decides and tells, again and again: what was recorded is told,
// what is told twice is told under the same id, and each chain in its order.
func TestKilled(t *testing.T) {
	t.Parallel()
	parts.Long(t, "kills processes")
	w := newWorld(t)
	rounds := 3
	if os.Getenv("TOOLGATE_SOAK") != "" {
		rounds = 30
	}
	d := newFakeCollector(t, nil)
	path := filepath.Join(w.dir, "log.jsonl")
	w.end(w.shipper(decisionlog.Config{URL: d.URL, File: path}))
	var want []string
	for i := range rounds {
		want = append(want, w.killed(d, path, "p"+strconv.Itoa(i))...)
	}
	s := w.shipper(decisionlog.Config{URL: d.URL, File: path})
	until(t, "everything is told", func() bool { return missing(want, d.taken()) == "" && missing(want, lines(t, path)) == "" })
	w.caughtUp(s, "http")
	w.caughtUp(s, "file")
	for sink, got := range map[string][]string{"http": d.taken(), "file": lines(t, path)} {
		repeats := len(got) - len(uniq(got))
		t.Logf("%s: %d decisions, %d repeats", sink, len(want), repeats)
		if sink == "http" && repeats < rounds {
			t.Error("no process was killed between the collector's taking a chunk and the end of the try")
		}
		inOrder(t, uniq(got))
	}
}

// killed runs a child that decides, kills it while the collector has a chunk of it
// and has not answered, and gives what it said that it had recorded.
func (w *world) killed(d *fakeCollector, path, name string) (ids []string) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+w.dir, childURL+"="+d.URL, childFile+"="+path, childName+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	dead, waits := make(chan struct{}), make(chan struct{}, 1)
	d.reply(func(told []string) int {
		if who, n, _ := strings.Cut(told[0], "-"); who == name && len(n) > 2 {
			select {
			case waits <- struct{}{}:
			default:
			}
			<-dead
		}
		return http.StatusOK
	})
	said := bufio.NewScanner(out)
	for said.Scan() {
		ids = append(ids, said.Text())
		select {
		case <-waits:
			_ = cmd.Process.Kill()
		default:
		}
	}
	_ = cmd.Wait() // it was killed
	close(dead)
	d.reply(nil)
	return ids
}

// missing gives the first of want that is not in got.
func missing(want, got []string) string {
	there := map[string]bool{}
	for _, id := range got {
		there[id] = true
	}
	for _, id := range want {
		if !there[id] {
			return id
		}
	}
	return ""
}

// uniq is ids without repeats.
func uniq(ids []string) (out []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			out = append(out, id)
		}
		seen[id] = true
	}
	return out
}

// inOrder checks that the decisions of each process stand in their order.
func inOrder(t testing.TB, ids []string) {
	t.Helper()
	last := map[string]int{}
	for _, id := range ids {
		name, number, _ := strings.Cut(id, "-")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := last[name]; ok && n != before+1 || !ok && n != 0 {
			t.Errorf("%s after %d", id, before)
		}
		last[name] = n
	}
}
