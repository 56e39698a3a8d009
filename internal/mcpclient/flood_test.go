package mcpclient_test

import (
	"bufio"
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

// flooder is a process that writes one line without end, and answers each line that it
// reads in between.
type flooder struct {
	in  *io.PipeReader
	out *io.PipeWriter
}

func (f *flooder) Exited() <-chan struct{} { return nil }
func (f *flooder) Fate() error             { return nil }
func (f *flooder) Stop()                   { f.in.Close(); f.out.Close() }

func (f *flooder) run(line string) {
	asked := make(chan string)
	go func() {
		defer close(asked)
		for lines := bufio.NewScanner(f.in); lines.Scan(); {
			asked <- lines.Text()
		}
	}()
	for {
		select {
		case request := <-asked:
			id, _ := jsonrpc.Get([]byte(request), "id")
			_, _ = io.WriteString(f.out, `{"jsonrpc":"2.0","id":`+string(id)+`,"result":{}}`+"\n")
		default:
		}
		if _, err := io.WriteString(f.out, line+"\n"); err != nil {
			for range asked { // until it is closed
			}
			return
		}
	}
}

// Fault 4: a server that sends messages without end is read more slowly, whatever they
// are, and its answers still arrive.
func TestFlood(t *testing.T) {
	for name, line := range map[string]string{
		"notifications": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`,
		"requests":      `{"jsonrpc":"2.0","id":"1","method":"ping"}`,
		"answers":       `{"jsonrpc":"2.0","id":"nobody's","result":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handled, dropped atomic.Int64
				c := mcpclient.New(mcpclient.Options{MaxBytes: 1 << 10, Dropped: &dropped, Handle: func(*jsonrpc.Message, *mcpclient.Call) { handled.Add(1) }})
				in, toServer := io.Pipe()
				fromServer, out := io.Pipe()
				f := &flooder{in, out}
				go f.run(line)
				c.OpenStdio(toServer, fromServer, f, false)
				time.Sleep(10 * time.Second)
				if n := handled.Load() + dropped.Load(); n < 20_000 || n > 20_000+11*2_000 {
					t.Errorf("%d messages were read in 10 s, want 20,000 and 2,000 a second", n)
				}
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				if _, e := c.Do(ctx, &mcpclient.Call{ID: c.NextID(), Method: "tools/list", Params: []byte(`{}`)}); e != nil {
					t.Errorf("a call: %v", e)
				}
				c.Fail(&mcpclient.Error{Kind: mcpclient.Unavailable, Err: io.EOF})
				c.Close()
			})
		})
	}
}
