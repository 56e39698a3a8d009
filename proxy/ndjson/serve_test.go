package ndjson_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/ndjson"
)

const waited = `"output":{"waited":true}}}`

// Requests with an id run side by side: a slow one holds nobody up.
func TestSideBySide(t *testing.T) {
	b := newBench()
	c := dial(t, b.door(t, nil))
	c.Send(invoke("slow", "wait", `{}`))
	<-b.started
	if got := c.Ask(invoke("quick", "structured", `{}`)); !strings.HasPrefix(got, `{"id":"quick","ok":true`) {
		t.Errorf("got %s", got)
	}
	close(b.release)
	if got := c.Receive(); !strings.HasPrefix(got, `{"id":"slow","ok":true`) || !strings.HasSuffix(got, waited) {
		t.Errorf("got %s", got)
	}
}

// A request without an id is answered before the next line is read.
func TestInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		c := dial(t, b.door(t, nil))
		c.Send(invoke("", "wait", `{}`))
		<-b.started
		go c.Send(invoke("next", "text", `{}`) + "\n" + invoke("last", "text", `{}`))
		synctest.Wait()
		if got := b.calls(); len(got) != 1 {
			t.Errorf("calls %q while the first is under way", got)
		}
		close(b.release)
		if got := c.Receive(); !strings.HasPrefix(got, `{"ok":true`) || !strings.HasSuffix(got, waited) {
			t.Errorf("got %s", got)
		}
		c.Receive()
		c.Receive()
		if got := b.calls(); len(got) != 3 || got[0] != "wait {}" {
			t.Errorf("calls %q", got)
		}
	})
}

// The door reads on when there is room: no request is refused because others run.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		c := dial(t, b.door(t, func(o *ndjson.Options) { o.MaxFlights = 2 }))
		go func() {
			for i := range 1000 {
				c.Send(invoke(strconv.Itoa(i), "wait", `{}`))
			}
		}()
		synctest.Wait()
		if got := b.calls(); len(got) != 2 {
			t.Errorf("%d calls run at once, want 2", len(got))
		}
		close(b.release)
		answered := map[string]bool{}
		for range 1000 {
			id, rest, _ := strings.Cut(c.Receive(), `,"ok":true`)
			answered[id] = strings.HasSuffix(rest, waited)
		}
		if got := b.calls(); len(answered) != 1000 || len(got) != 1000 {
			t.Errorf("%d requests are answered after %d calls", len(answered), len(got))
		}
	})
}

// An id in flight names one request. However it is spelled, a second one is
// refused; when the first is answered the id is free.
func TestDuplicateID(t *testing.T) {
	b := newBench()
	c := dial(t, b.door(t, nil))
	c.Send(invoke("a", "wait", `{}`))
	<-b.started
	want := `{"id":"\u0061","ok":false,"error":"Invalid request envelope","issues":[{"code":"INVALID_ENVELOPE","message":"a request with this id is in flight","path":["id"],"decision_id":"dec_*"}]}`
	got := ids.ReplaceAllString(c.Ask(invoke(`\u0061`, "text", `{}`)), "${1}_*")
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if diff := cmp.Diff([]string{"wait {}"}, b.calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	close(b.release)
	c.Receive()
	if got := c.Ask(invoke("a", "text", `{}`)); !strings.HasPrefix(got, `{"id":"a","ok":true`) {
		t.Errorf("afterwards %s", got)
	}
}

// One client has one session upstream, and its end is told once, after its
// last call.
func TestSession(t *testing.T) {
	b := newBench()
	var mu sync.Mutex
	var ended []string
	d := b.door(t, func(o *ndjson.Options) {
		o.Ended = func(s string) { mu.Lock(); ended = append(ended, s); mu.Unlock() }
	})
	for range 2 {
		in := strings.NewReader(invoke("a", "text", `{}`) + "\n" + invoke("", "text", `{}`))
		if err := d.Serve(t.Context(), in, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.sessions; len(s) != 4 || s[0] == "" || s[0] != s[1] || s[1] == s[2] || len(ended) != 2 || ended[0] != s[0] || ended[1] != s[2] {
		t.Errorf("sessions %q, ended %q", b.sessions, ended)
	}
}

// counted counts what is written to it and checks that each Write is one line.
type counted struct {
	t     *testing.T
	lines int
}

func (w *counted) Write(p []byte) (int, error) {
	if strings.Count(string(p), "\n") != 1 || p[len(p)-1] != '\n' || strings.Contains(string(p), "\r") {
		w.t.Errorf("one write: %q", p)
	}
	w.lines++
	return len(p), nil
}

// At the end of input the requests in flight are answered; the last line needs
// no end, and empty lines are none. Each response is one Write.
func TestEndOfInput(t *testing.T) {
	b := newBench()
	close(b.release)
	out := &counted{t: t}
	in := "\n \r\n" + invoke("a", "wait", `{}`) + "\r\n" + invoke("b", "structured", `{}`) + "\n" + "oops\n" + invoke("c", "wait", `{}`)
	if err := b.door(t, nil).Serve(t.Context(), strings.NewReader(in), out); err != nil {
		t.Fatal(err)
	}
	if out.lines != 4 {
		t.Errorf("%d responses, want 4", out.lines)
	}
}

// Serve stops on ctx, when reading fails, and when the client does not read.
func TestStops(t *testing.T) {
	t.Run("ctx", func(t *testing.T) {
		for _, line := range []string{"", invoke("", "wait", `{}`), invoke("a", "wait", `{}`)} {
			b := newBench()
			ctx, cancel := context.WithCancel(t.Context())
			in, far := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- b.door(t, nil).Serve(ctx, in, io.Discard) }()
			if line != "" {
				if _, err := io.WriteString(far, line+"\n"); err != nil {
					t.Fatal(err)
				}
				<-b.started
			}
			cancel()
			close(b.release) // what is in flight is waited for
			if err := <-done; err != nil {
				t.Error(err)
			}
			if _, err := far.Write([]byte("x")); err == nil {
				t.Error("the input is still open")
			}
		}
	})
	t.Run("broken in", func(t *testing.T) {
		broken := errors.New("broken pipe")
		in, far := io.Pipe()
		_ = far.CloseWithError(broken)
		if err := newBench().door(t, nil).Serve(t.Context(), in, io.Discard); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
	t.Run("broken out", func(t *testing.T) {
		broken := errors.New("broken pipe")
		in, far := io.Pipe()
		defer func() { _ = far.Close() }()
		out, outW := io.Pipe()
		_ = out.CloseWithError(broken)
		go func() { _, _ = io.WriteString(far, list+"\n") }()
		if err := newBench().door(t, nil).Serve(t.Context(), in, outW); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
}

// A call that outlives the drain is cancelled, and its client told.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		var out strings.Builder
		began := time.Now()
		d := b.door(t, func(o *ndjson.Options) { o.Drain = 3 * time.Second })
		if err := d.Serve(t.Context(), strings.NewReader(invoke("a", "wait", `{}`)), &out); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v, want the drain", took)
		}
		if got := out.String(); !strings.HasPrefix(got, `{"id":"a","ok":false,"error":"TOOL_TIMEOUT: `) {
			t.Errorf("got %s", got)
		}
	})
}

// panics is a gate that panics on every call.
type panics struct{ ndjson.Gate }

func (panics) Call(context.Context, *proxy.Call) (*proxy.Reply, *proxy.Failure) { panic("planted") }

// A panic in one request is its answer, and the next one is served.
func TestPanic(t *testing.T) {
	var out, log strings.Builder
	d := newBench().door(t, func(o *ndjson.Options) {
		o.Gate, o.Log = panics{o.Gate}, hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	if err := d.Serve(t.Context(), strings.NewReader(invoke("a", "echo", `{}`)+"\n"+`{"id":"b","type":"list_actions"}`+"\n"), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, `{"id":"a","ok":false,"error":"INTERNAL_ERROR: `) || !strings.Contains(got, `{"id":"b","ok":true`) || strings.Contains(got, "planted") {
		t.Errorf("got %s", got)
	}
	if !strings.Contains(log.String(), "planted") || !strings.Contains(log.String(), "door.go") {
		t.Errorf("the log: %s", log.String())
	}
}

// A line beyond the limit costs its limit in memory, and the next one is read.
func TestLongLine(t *testing.T) {
	d := newBench().door(t, nil)
	chunk := strings.Repeat("x", 1<<20)
	var long []io.Reader
	for range 64 {
		long = append(long, strings.NewReader(chunk))
	}
	var out strings.Builder
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := d.Serve(t.Context(), io.MultiReader(append(long, strings.NewReader("\n"+list))...), &out); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	first, second, _ := strings.Cut(out.String(), "\n")
	if first != `{"ok":false,"error":"Request exceeds maximum size (512 KB)"}` || !strings.HasPrefix(second, `{"id":"after","ok":true`) {
		t.Errorf("got %s, then %.80s", first, second)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("a line of 64 MiB cost %d bytes", used)
	}
}

// A door without a road is none.
func TestNew(t *testing.T) {
	b := newBench()
	for _, opts := range []ndjson.Options{{}, {Gate: b.gate}, {Refuser: b.gate}} {
		if d, err := ndjson.New(opts); err == nil || d != nil {
			t.Errorf("made %v of %+v", d, opts)
		}
	}
}
