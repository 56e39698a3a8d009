package mcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// TestStdioSideBySide: a slow call does not hold up the ones after it.
func TestStdioSideBySide(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, nil)).open()
	c.Send(waitCall)
	<-g.started
	if got := c.Ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %s", got)
	}
	close(g.release)
	if got := c.Receive(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":1,"result":{"content"`) {
		t.Errorf("got %s", got)
	}
}

func TestStdioCancel(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, nil)).open()
	c.Send(waitCall)
	c.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`)
	<-g.started
	if got := c.Ask(ping); !strings.Contains(got, "in flight") {
		t.Errorf("the call was cancelled by another id: %s", got)
	}
	c.Send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if got := c.Ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %s", got)
	}
}

// TestStdioEnd: at the end of input the calls in flight are answered first.
func TestStdioEnd(t *testing.T) {
	g := newGate()
	c := dial(t, newDoor(t, g, nil)).open()
	c.Send(waitCall)
	<-g.started
	c.HangUp()
	close(g.release)
	if got := c.Receive(); !strings.Contains(got, `"id":1,"result"`) {
		t.Errorf("got %s", got)
	}
	if rest, err := c.End(); rest != "" || err != nil {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// TestStdioLastLine: the last line needs no line end, and empty lines are none.
func TestStdioLastLine(t *testing.T) {
	var out bytes.Buffer
	d := newDoor(t, newGate(), nil)
	if err := d.Serve(t.Context(), strings.NewReader("\n \r\n"+ping), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n" {
		t.Errorf("got %q", got)
	}
}

// TestStdioStops: on ctx, on Close, and when the client does not read.
func TestStdioStops(t *testing.T) {
	t.Run("ctx", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		in, far := io.Pipe()
		defer func() { _ = far.Close() }()
		d := newDoor(t, newGate(), nil)
		cancel()
		if err := d.Serve(ctx, in, io.Discard); err != nil {
			t.Error(err)
		}
	})
	t.Run("close", func(t *testing.T) {
		in, far := io.Pipe()
		defer func() { _ = far.Close() }()
		d := newDoor(t, newGate(), nil)
		done := make(chan error, 1)
		go func() { done <- d.Serve(t.Context(), in, io.Discard) }()
		if _, err := io.WriteString(far, ping+"\n"); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.Serve(t.Context(), in, io.Discard); err == nil {
			t.Error("a closed door serves")
		}
	})
	t.Run("broken out", func(t *testing.T) {
		in, far := io.Pipe()
		defer func() { _ = far.Close() }()
		broken := errors.New("broken pipe")
		out, outW := io.Pipe()
		_ = out.CloseWithError(broken)
		d := newDoor(t, newGate(), nil)
		go func() { _, _ = io.WriteString(far, ping+"\n") }()
		if err := d.Serve(t.Context(), in, outW); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
}

// TestStdioListChanged: a client is told once it is ready, of changes since it
// could list anything.
func TestStdioListChanged(t *testing.T) {
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	d := newDoor(t, newGate(), nil)
	c := dial(t, d)
	early := dial(t, d)
	early.Ask(ping)
	c.Ask(ping)
	d.ToolsChanged()
	early.Ask(initialize)
	early.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := early.Ask(ping); got == changed {
		t.Error("told of a change before initialize")
	}
	c.Ask(initialize)
	d.ToolsChanged()
	d.ToolsChanged()
	c.Ask(ping)
	c.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := c.Receive(); got != changed {
		t.Errorf("got %s", got)
	}
	if got := c.Ask(ping); got == changed {
		t.Error("one change was told twice")
	}
	d.ToolsChanged()
	if got := c.Receive(); got != changed {
		t.Errorf("got %s", got)
	}
}

// TestStdioLongLine: a line beyond the limit costs its limit in memory, and
// the next line is read.
func TestStdioLongLine(t *testing.T) {
	g := newGate()
	d := newDoor(t, g, small)
	chunk := strings.Repeat("x", 1<<20)
	long := []io.Reader{}
	for range 64 {
		long = append(long, strings.NewReader(chunk))
	}
	in := io.MultiReader(append(long, strings.NewReader("\n"+ping))...)
	var out bytes.Buffer
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := d.Serve(t.Context(), in, &out); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	first, second, _ := strings.Cut(out.String(), "\n")
	if got := refusalOf(t, first, g); got != (refusal{"null", -32600, "TOO_LARGE", 0}) {
		t.Errorf("got %+v", got)
	}
	if second != `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n" {
		t.Errorf("then %q", second)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("a line of 64 MiB cost %d bytes", used)
	}
}

// pipes gives both pipes of a stdio connection.
func pipes() (inR *io.PipeReader, inW *io.PipeWriter, outR *io.PipeReader, outW *io.PipeWriter) {
	inR, inW = io.Pipe()
	outR, outW = io.Pipe()
	return inR, inW, outR, outW
}
