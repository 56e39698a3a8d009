package ndjson_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A limit of 4 bytes: what is longer arrives as its outline, and the next line comes.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"lines", "a\nbc\n", []string{"a", "bc"}},
		{"no end after the last", "a\nb", []string{"a", "b"}},
		{"blank ones", "\n\r\n \t\n\na\n", []string{"a"}},
		{"CR LF", "abcd\r\nb\r\n", []string{"abcd", "b"}},
		{"as long as may be", "abcd\n", []string{"abcd"}},
		{"one too many", "abcde\nb\n", []string{"long", "b"}},
		{"many too many", strings.Repeat("x", 1<<20) + "\nb\n", []string{"long", "b"}},
		{"too many at the end", strings.Repeat("x", 1<<17), []string{"long"}},
		{"CR inside", "abcd\rx\nb", []string{"long", "b"}},
		{"nothing", "", nil},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				var got []string
				err := ndjson.Serve(t.Context(), wrap(strings.NewReader(tt.in)), ndjson.NewSink(io.Discard), 4, func(line []byte, long *jsonrpc.Outline) {
					if long != nil {
						line = []byte("long")
					}
					got = append(got, string(line))
				})
				if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
					t.Errorf("error %v, lines (-want +got):\n%s", err, diff)
				}
			})
		}
	}
}

func TestServeEnds(t *testing.T) {
	t.Run("error", func(t *testing.T) {
		broken := errors.New("broken")
		in := io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(broken))
		if err := ndjson.Serve(t.Context(), in, ndjson.NewSink(io.Discard), 4, func([]byte, *jsonrpc.Outline) {}); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
	for name, end := range map[string]func(stop func(), out *ndjson.Sink){
		"context": func(stop func(), _ *ndjson.Sink) { stop() },
		"output":  func(_ func(), out *ndjson.Sink) { out.Send([]byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			in, far := io.Pipe()
			out := ndjson.NewSink(&pen{})
			go func() { _, _ = io.WriteString(far, "a\n") }()
			if err := ndjson.Serve(ctx, in, out, 4, func([]byte, *jsonrpc.Outline) { end(stop, out) }); err != nil {
				t.Errorf("error %v", err)
			}
			if _, err := far.Write([]byte("a")); err == nil {
				t.Error("the input is still open")
			}
		})
	}
	t.Run("while a line waits", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		handled := 0
		err := ndjson.Serve(ctx, strings.NewReader("a\nb\nc\n"), ndjson.NewSink(io.Discard), 4, func([]byte, *jsonrpc.Outline) { handled++; stop() })
		if handled != 1 || err != nil {
			t.Errorf("%d lines handled, error %v", handled, err)
		}
	})
}
