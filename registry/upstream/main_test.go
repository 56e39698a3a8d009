package upstream_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

func TestMain(m *testing.M) {
	recorder.Main(sandbox.IsGuardian, guardian.Main)
	if os.Getenv(parentVar) != "" {
		beParent()
	}
	if os.Getenv(actionsVar) != "" {
		beActions()
	}
	if os.Getenv(sdkVar) != "" {
		beSDK()
	}
	goleak.VerifyTestMain(m)
}

// patience is how long anything in these tests may take.
const patience = 20 * time.Second

// stdioServer configures a stdio recorder.
func stdioServer(rec *recorder.Recorder) config.Server {
	return config.Server{Name: "rec", Type: "stdio", Command: rec.Command, Args: rec.Args, Env: rec.Env, Isolation: "shared", Timeout: patience}
}

// httpServer configures an HTTP recorder.
func httpServer(rec *recorder.Recorder) config.Server {
	return config.Server{Name: "rec", Type: "http", URL: rec.URL, Isolation: "shared", Timeout: patience}
}

// running is a server under test with the definitions that it listed last.
type running struct {
	*upstream.Server
	t      *testing.T
	listed chan []json.RawMessage
	last   map[string]string // what next gave last
}

// fingerprint gives the fingerprint of a tool as it was listed last.
func (r *running) fingerprint(tool string) string { return r.last[tool] }

// start runs a server until the end of the test.
func start(t *testing.T, cfg config.Server, opts upstream.Options) *running {
	t.Helper()
	r := &running{t: t, listed: make(chan []json.RawMessage, 64)}
	opts.Listed = func(l upstream.Listing) { r.listed <- l.Tools }
	r.Server = upstream.Start(cfg, opts)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 0)
		defer stop()
		r.Close(ctx)
	})
	return r
}

// next waits for the next list and gives the fingerprints by name.
func (r *running) next() map[string]string {
	r.t.Helper()
	select {
	case definitions := <-r.listed:
		out := make(map[string]string)
		for _, d := range definitions {
			name, _ := upstream.NameOf(d)
			out[name] = upstream.Fingerprint(d)
		}
		r.last = out
		return out
	case <-time.After(patience):
		r.t.Fatalf("no list came; status %+v", r.Status())
		return nil
	}
}

// ready waits until the shared connection serves.
func (r *running) ready() map[string]string {
	r.t.Helper()
	prints := r.next()
	r.await("ready", func() bool { return r.Status().State == upstream.StateReady })
	return prints
}

// await waits until a condition holds.
func (r *running) await(what string, holds func() bool) {
	r.t.Helper()
	await(r.t, what, holds)
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waiting in vain: %s", what)
		}
	}
}

// timeOut makes a call that gets no answer within its timeout, by default 50 ms. A
// call that runs out of time before it is sent is repeated with twice the time.
func (r *running) timeOut(call upstream.Call) *upstream.Error {
	for call.Timeout = max(call.Timeout, 50*time.Millisecond); ; call.Timeout *= 2 {
		_, e := r.Do(context.Background(), call)
		if e == nil || e.Kind != upstream.Timeout || e.Sent || call.Timeout > patience {
			return e
		}
	}
}

// call calls a tool with arguments.
func (r *running) call(prints map[string]string, tool, arguments string) (json.RawMessage, *upstream.Error) {
	return r.Do(context.Background(), upstream.Call{Tool: tool, Fingerprint: prints[tool], Arguments: json.RawMessage(arguments)})
}

// wantError checks kind and certainty of a failure.
func wantError(t *testing.T, got *upstream.Error, kind upstream.ErrorKind, sent bool) {
	t.Helper()
	if got == nil {
		t.Fatalf("no error, want %v", kind)
	}
	if got.Kind != kind || got.Sent != sent {
		t.Fatalf("got kind %v, sent %v (%v), want %v, %v", got.Kind, got.Sent, got, kind, sent)
	}
}

// transports run one test over each way to connect.
var transports = []struct {
	name  string
	start func(t *testing.T, cfg recorder.Config) (*recorder.Recorder, config.Server)
}{
	{"stdio", func(t *testing.T, cfg recorder.Config) (*recorder.Recorder, config.Server) {
		rec := recorder.Stdio(t, cfg)
		return rec, stdioServer(rec)
	}},
	{"http", func(t *testing.T, cfg recorder.Config) (*recorder.Recorder, config.Server) {
		cfg.Sessions = true
		rec := recorder.HTTP(t, cfg)
		return rec, httpServer(rec)
	}},
	{"http stream", func(t *testing.T, cfg recorder.Config) (*recorder.Recorder, config.Server) {
		cfg.Stream, cfg.Sessions = true, true
		rec := recorder.HTTP(t, cfg)
		return rec, httpServer(rec)
	}},
}

// overAll runs f over each transport, or over those that are named.
func overAll(t *testing.T, cfg recorder.Config, f func(*testing.T, *recorder.Recorder, *running), only ...string) {
	for _, tr := range transports {
		if len(only) > 0 && !slices.Contains(only, tr.name) {
			continue
		}
		t.Run(tr.name, func(t *testing.T) {
			rec, server := tr.start(t, cfg)
			f(t, rec, start(t, server, upstream.Options{MaxAnswerBytes: 1 << 20}))
		})
	}
}
