package upstream_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// The stream of a client's own subscription tells the peer of its request what the server sends, and
// ends with its life; who has it learns when the server ends it.
func TestListenForAClient(t *testing.T) {
	const filter = `{"vendor/news":{"of":["a"]}}`
	cfg := recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{}}`), Tools: []recorder.StatelessTool{
		{Name: "say", Sends: []string{`listeners notifications/vendor/news {"n":1e2}`}}, {Name: "end", Sends: []string{"end"}},
	}}
	overModernWith(t, cfg, soon, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		heard := &peer{}
		me, lost := asClient("one", heard), make(chan struct{}, 1)
		listen := func(life context.Context) {
			t.Helper()
			got, e := up.Ask(t.Context(), upstream.Ask{
				Method: "subscriptions/listen", Params: json.RawMessage(`{"notifications":` + filter + `}`), From: me,
				Listen: &upstream.Listen{Life: life, Lost: func() { lost <- struct{}{} }},
			})
			if e != nil || string(got) != `{"notifications":`+filter+`}` {
				t.Fatalf("acknowledged: %s %v", got, e)
			}
			up.await("it is listened to", func() bool { return slices.Contains(rec.Listeners(), filter) })
		}
		life, end := context.WithCancel(t.Context())
		listen(life)
		if _, e := up.send(me, "say", `{}`); e != nil {
			t.Fatal(e)
		}
		up.await("the news", func() bool { return slices.Equal(heard.heard(), []string{`notifications/vendor/news {"n":1e2}`}) })
		end()
		up.await("nobody listens", func() bool { return len(rec.Listeners()) == 0 })
		if len(lost) > 0 {
			t.Error("a stream that was ended counts as lost")
		}
		listen(t.Context())
		if _, e := up.send(me, "end", `{}`); e != nil {
			t.Fatal(e)
		}
		<-lost
		up.await("it is not opened again", func() bool { return len(rec.Listeners()) == 0 })
	})
}

// A server that refuses the subscription, and one of an older revision, give the client an error.
func TestListenForAClientIsRefused(t *testing.T) {
	ask := upstream.Ask{
		Method: "subscriptions/listen", Params: json.RawMessage(`{"notifications":{"vendor/news":true}}`), From: asClient("one", &peer{}),
		Listen: &upstream.Listen{Life: t.Context(), Lost: func() { t.Error("lost what was never open") }},
	}
	refused := recorder.Stateless{Capabilities: json.RawMessage(`{"tools":{}}`), ListenError: json.RawMessage(`{"code":-32602,"message":"no"}`)}
	overModernWith(t, refused, soon, func(t *testing.T, _ *recorder.Recorder, up *running) {
		up.ready()
		if got, e := up.Ask(t.Context(), ask); got != nil || e == nil || string(e.RPC) != string(refused.ListenError) {
			t.Errorf("got %s %v", got, e)
		}
	})
	overAll(t, recorder.Config{}, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		if got, e := up.Ask(t.Context(), ask); got != nil || e == nil || e.RPC == nil || slices.Contains(rec.Methods(), ask.Method) {
			t.Errorf("got %s %v", got, e)
		}
	}, "http")
}
