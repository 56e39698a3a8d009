package proxy_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// Hidden characters of what servers send that is no tool's result are recorded, and spelled
// out in texts where that is configured. Names and addresses stay, and what is judged is
// what is sent.
func TestHiddenText(t *testing.T) {
	const sent, spelled = `x\u202ey`, `x<U+202E>y`
	for _, escapes := range []bool{false, true} {
		// want is a message as the client gets it: T stands for a text, N for a name.
		want := func(text string) string {
			shown := "x\u202ey"
			if escapes {
				shown = spelled
			}
			return strings.NewReplacer(`"T"`, `"`+shown+`"`, `"N"`, "\"x\u202ey\"").Replace(text)
		}
		from := func(text string) string {
			return strings.NewReplacer(`"T"`, `"`+sent+`"`, `"N"`, `"`+sent+`"`).Replace(text)
		}
		same := func(what string, got []byte, text string) {
			t.Helper()
			var a, b any
			if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want(text)), &b) != nil {
				t.Fatalf("%s: %s", what, got)
			}
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			if string(x) != string(y) {
				t.Errorf("%s, escapes %v: %s, want %s", what, escapes, x, y)
			}
		}
		var s proxy.Settings
		if escapes {
			s.EscapeHidden = []string{"web"}
		}
		l := newLibrary(t)
		l.Apply(s)
		for method, text := range map[string]string{
			"resources/read": `{"contents":[{"uri":"N","text":"T"}]}`,
			"prompts/get":    `{"description":"T","messages":[{"role":"user","content":{"type":"text","text":"T"}}]}`,
		} {
			l.result = from(text)
			reply, f := l.Relay(t.Context(), relayed(t, "web", method, `{"uri":"file:///a","name":"a"}`))
			if f != nil {
				t.Fatal(f)
			}
			same(method, reply.Result, text)
			if o := l.outcomes[len(l.outcomes)-1]; !slices.Equal(o.Hidden, []string{"bidi"}) {
				t.Errorf("%s: recorded %v", method, o.Hidden)
			}
		}
		for method, text := range map[string]string{
			"resources/list":           `{"resources":[{"uri":"N","name":"N","title":"T","description":"T"}]}`,
			"resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"N","name":"N","description":"T"}]}`,
			"prompts/list":             `{"prompts":[{"name":"N","description":"T","arguments":[{"name":"N","description":"T"}]}]}`,
		} {
			l.result = from(text)
			list, f := l.Enumerate(t.Context(), relayed(t, "web", method, `{}`), l.who)
			if f != nil {
				t.Fatal(f)
			}
			same(method, list, text)
		}
		i := newAskingServer(t)
		i.Apply(s)
		for method, text := range map[string]string{
			"sampling/createMessage": `{"systemPrompt":"T","maxTokens":1,"messages":[{"role":"user","content":{"type":"text","text":"T"}}]}`,
			"elicitation/create":     `{"requestedSchema":{"properties":{"n":{"title":"T","enum":["N"]}}}}`,
		} {
			i.client.rounds, i.inputs, i.outcomes = nil, nil, nil
			i.ask(t, everything, registry.Question{Method: method, Params: json.RawMessage(from(text))})
			asked := strings.TrimPrefix(i.client.rounds[0][0], method+" ")
			asked = strings.Replace(asked, `,"message":"web asks"`, "", 1)
			same(method, []byte(asked), text)
			same(method+" judged", i.inputs[1].Arguments, text)
			if !slices.Equal(i.outcomes[0].Hidden, []string{"bidi"}) {
				t.Errorf("%s: recorded %v", method, i.outcomes[0].Hidden)
			}
		}
	}
}
