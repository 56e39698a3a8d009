package ndjson_test

import (
	"context"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/ndjson"
)

// Serve returns when the line that is being handled has been handled, and handles no
// other.
func TestServeAwaitsLine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, far := io.Pipe()
	defer func() { _ = far.Close() }()
	var handled []string
	go func() { _, _ = io.WriteString(far, "a\nb\n") }() // ends when in is closed
	err := ndjson.Serve(ctx, in, ndjson.NewSink(io.Discard), 4, func(line []byte, _ *jsonrpc.Outline) {
		cancel()
		for range 1000 {
			runtime.Gosched()
		}
		handled = append(handled, string(line)) // a race unless Serve waits
	})
	if got := strings.Join(handled, " "); got != "a" || err != nil {
		t.Errorf("handled %q, %v", got, err)
	}
}
