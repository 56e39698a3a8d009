package proxy_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// lending are upstreams whose answers stand in buffers of the caller's claim.
type lending struct {
	upstreams
	last []byte
}

func (l *lending) Forward(ctx context.Context, tool *registry.Tool, out registry.Outgoing) (json.RawMessage, error) {
	raw, err := l.upstreams.Forward(ctx, tool, out)
	l.last = out.From.Bytes.Buffer(len(raw), 512)
	return l.last[:copy(l.last, raw)], err
}

// The memory of a large result is used again only where nothing but the reply has the result: a ticket, a task,
// a trace or a listener of the bus may keep it.
func TestResultsThatAreUsedAgain(t *testing.T) {
	large := `{"content":[{"type":"text","text":"` + strings.Repeat("x", 100_000) + `"}]}`
	for _, row := range []struct {
		name   string
		params string
		set    func(*testing.T, *bench, *proxy.Options)
		want   bool
	}{
		{"an allowed call", plain, func(*testing.T, *bench, *proxy.Options) {}, true},
		{"a call that asks for a task", taskWanted, func(t *testing.T, _ *bench, o *proxy.Options) { o.Servers = newTaskGate(t) }, false},
		{"a held call that was granted", plain, func(_ *testing.T, b *bench, _ *proxy.Options) {
			b.decision, b.claim = held, approval.Claim{Ticket: ticket(approval.StateDispatching), Outcome: approval.Granted}
		}, false},
		{"a call that somebody listens to", plain, func(_ *testing.T, _ *bench, o *proxy.Options) { o.Bus = &recordingBus{} }, false},
		{"a traced call", plain, func(t *testing.T, _ *bench, o *proxy.Options) { o.Tracer = newTracing(t, 1, nil).tel }, false},
		{"a failed call", plain, func(_ *testing.T, b *bench, _ *proxy.Options) { b.outcomeErr = context.Canceled }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t)
			b.result = large
			l := &lending{upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}}
			o := proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Upstreams: l}
			row.set(t, b, &o)
			g, err := proxy.New(o)
			if err != nil {
				t.Fatal(err)
			}
			budget, got := share.NewBudget(1<<30, 1<<30), false
			for range 20 {
				claim, in := new(share.Claim), request(t, row.params)
				budget.Take(claim, share.Owner{}, 1)
				in.Bytes, in.Session = claim, "s1"
				reply, _ := g.Call(t.Context(), in)
				if reply != nil && !strings.Contains(string(reply.Result), "xxxx") {
					t.Fatalf("the reply has another result: %.200s", reply.Result)
				}
				if l.last == nil {
					t.Fatal("the call did not come to its server")
				}
				claim.Delivered()
				claim.Release()
				next := new(share.Claim)
				budget.Take(next, share.Owner{}, 1)
				got = got || &next.Buffer(len(l.last), 512)[0] == &l.last[0]
			}
			if got != row.want {
				t.Errorf("used again: %v, want %v", got, row.want)
			}
		})
	}
}
