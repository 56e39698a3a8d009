package upstream_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// What the shared connection lists is kept whenever the server says that it changed. A list
// that fails is not.
func TestListsAreKept(t *testing.T) {
	cfg := talker(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
	cfg.Capabilities = json.RawMessage(`{"tools":{},"prompts":{},"resources":{}}`)
	cfg.Answers = map[string]json.RawMessage{
		"prompts/list":   json.RawMessage(`{"prompts":[{"name":"a"},{"name":"b"}]}`),
		"resources/list": json.RawMessage(`{"resources":{}}`),
	}
	for _, tr := range transports {
		if tr.name == "http" {
			continue // one answer to a request, and no notification
		}
		t.Run(tr.name, func(t *testing.T) {
			rec, server := tr.start(t, cfg)
			server.Isolation = "shared"
			kept := make(chan string, 16)
			r := start(t, server, upstream.Options{
				Lists: json.RawMessage(`{"prompts":[]}`), Kept: func(lists json.RawMessage) { kept <- string(lists) },
				After: func(time.Duration) <-chan time.Time { return time.After(time.Millisecond) },
			})
			r.ready()
			r.await("the lists are kept", func() bool { return len(kept) == 1 })
			if got, want := <-kept, `{"prompts":[{"name":"a"},{"name":"b"}],"resourceTemplates":[]}`; got != want {
				t.Errorf("kept %s, want %s", got, want)
			}
			n := len(rec.Methods())
			if e := r.do(t.Context(), upstream.Downstream{}, "talk", `{}`); e != nil {
				t.Fatal(e)
			}
			r.await("everything is listed again", func() bool { return slices.Contains(rec.Methods()[n:], "resources/templates/list") })
		})
	}
}

// Next to a tool that only a strict reader refuses, the strings of the others are mended as
// they are in any answer, so that their fingerprints do not change with their neighbour.
func TestMendedNextToABadTool(t *testing.T) {
	const sound, mended = "{\"name\":\"a\",\"description\":\"\\ud800 caf\xe9\"}", "{\"name\":\"a\",\"description\":\"\\ufffd caf\ufffd\"}"
	for name, list := range map[string]string{"alone": sound, "next to a bad one": sound + `,{"name":"b","name":"b"}`} {
		t.Run(name, func(t *testing.T) {
			rec := recorder.HTTP(t, recorder.Config{ListResult: json.RawMessage(`{"tools":[` + list + `]}`)})
			if got, want := start(t, httpServer(rec), upstream.Options{}).next()["a"], upstream.Fingerprint(json.RawMessage(mended)); got != want {
				t.Errorf("listed %s, want %s", got, want)
			}
		})
	}
}
