package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// result is an answer of a client.
func result(text string) upstream.Answer { return upstream.Answer{Result: json.RawMessage(text)} }

// refusal is an answer of a client that has none.
func refusal(code int) upstream.Answer {
	return upstream.Answer{Error: json.RawMessage(fmt.Sprintf(`{"code":%d,"message":"no","data":9007199254740993}`, code))}
}

const done = `{"resultType":"complete","content":[]}`

// The questions of a round reach the client together, and the request is sent
// again with its answers and the server's own state.
func TestRounds(t *testing.T) {
	const elicit = `{"method":"elicitation/create","params":{"message":"m","big":9007199254740993,"_meta":{"progressToken":1,"x":2}}}`
	const sample = `{"method":"sampling/createMessage","params":{"messages":[]}}`
	const roots = `{"method":"roots/list"}`
	for _, tt := range []struct {
		name    string
		answers []string // of the server
		client  map[string]upstream.Answer
		asked   string // key method params, of all rounds
		sent    string // inputResponses requestState of all requests after the first
		code    string // of the error, "" for none
		fails   string // part of the error's text
	}{
		{name: "one", answers: []string{`{"resultType":"input_required","inputRequests":{"a":` + elicit + `},"requestState":"s\u00e4 1"}`, done},
			client: map[string]upstream.Answer{"elicitation/create": result(`{"action":"accept","content":{"n":9007199254740993}}`)},
			asked:  `a elicitation/create {"message":"m","big":9007199254740993,"_meta":{"x":2}};`,
			sent:   `{"a":{"action":"accept","content":{"n":9007199254740993}}} "s\u00e4 1";`},
		{name: "several", answers: []string{`{"resultType":"input_required","inputRequests":{"x\"y":` + sample + `,"r":` + roots + `}}`, done},
			client: map[string]upstream.Answer{"sampling/createMessage": result(`{"model":"m"}`), "roots/list": result(`{"roots":[]}`)},
			asked:  `x"y sampling/createMessage {"messages":[]}, r roots/list ;`,
			sent:   `{"x\"y":{"model":"m"},"r":{"roots":[]}} ;`},
		{name: "again", answers: []string{`{"resultType":"input_required","inputRequests":{"a":` + roots + `},"requestState":"1"}`, `{"resultType":"input_required","inputRequests":{"b":` + roots + `}}`, done},
			client: map[string]upstream.Answer{"roots/list": result(`{"roots":[]}`)},
			asked:  `a roots/list ;b roots/list ;`, sent: `{"a":{"roots":[]}} "1";{"b":{"roots":[]}} ;`},
		{name: "only a state", answers: []string{`{"resultType":"input_required","requestState":"later"}`, done}, sent: ` "later";`},
		{name: "no questions in it", answers: []string{`{"resultType":"input_required","inputRequests":{},"requestState":"later"}`, done}, sent: ` "later";`},
		{name: "a person who does not answer", answers: []string{`{"resultType":"input_required","inputRequests":{"a":` + elicit + `}}`, done},
			client: map[string]upstream.Answer{"elicitation/create": refusal(-32603)},
			asked:  `a elicitation/create {"message":"m","big":9007199254740993,"_meta":{"x":2}};`, sent: `{"a":{"action":"cancel"}} ;`},
		{name: "a model that does not answer", answers: []string{`{"resultType":"input_required","inputRequests":{"a":` + sample + `}}`, done},
			client: map[string]upstream.Answer{"sampling/createMessage": refusal(-1)}, asked: `a sampling/createMessage {"messages":[]};`, code: "-1"},
		{name: "neither", answers: []string{`{"resultType":"input_required"}`}, fails: "neither questions nor a state"},
		{name: "no object", answers: []string{`{"resultType":"input_required","inputRequests":[1]}`}, fails: "inputRequests is no object"},
		{name: "no method", answers: []string{`{"resultType":"input_required","inputRequests":{"a":{}}}`}, fails: `"a" has no method`},
		{name: "too many", answers: []string{`{"resultType":"input_required","inputRequests":{` + manyQuestions(65) + `}}`}, fails: "more than 64 questions"},
		{name: "without end", answers: []string{`{"resultType":"input_required","requestState":"again"}`}, sent: strings.Repeat(` "again";`, 15), fails: "asked 16 times"},
		{name: "another type", answers: []string{`{"resultType":"task","task":{"taskId":"1"}}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tool := recorder.StatelessTool{Name: "t"}
			for _, a := range tt.answers {
				tool.Answers = append(tool.Answers, json.RawMessage(a))
			}
			overModern(t, recorder.Stateless{Tools: []recorder.StatelessTool{tool}}, func(t *testing.T, rec *recorder.Recorder, up *running) {
				up.ready()
				p := &peer{answer: func(q upstream.Question) upstream.Answer { return tt.client[q.Method] }}
				got, e := up.send(asClient("one", p), "t", `{"n":1.0}`)
				switch {
				case tt.code+tt.fails == "":
					if last := tt.answers[len(tt.answers)-1]; e != nil || string(got) != last {
						t.Fatalf("got %s %v, want %s", got, e, last)
					}
				default:
					wantError(t, e, upstream.Failed, true)
					if code, _ := jsonrpc.Get(e.RPC, "code"); string(code) != tt.code || !strings.Contains(e.Error(), tt.fails) {
						t.Errorf("got %v %s", e, e.RPC)
					}
				}
				if diff := cmp.Diff(tt.asked, asked(p)); diff != "" {
					t.Errorf("asked: %s", diff)
				}
				if diff := cmp.Diff(tt.sent, sentAgain(t, rec)); diff != "" {
					t.Errorf("sent: %s", diff)
				}
			})
		})
	}
}

// manyQuestions are members of inputRequests.
func manyQuestions(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"q%d":{"method":"roots/list"}`, i)
	}
	return strings.Join(all, ",")
}

// asked writes down what a client was asked.
func asked(p *peer) string {
	var out strings.Builder
	for _, round := range p.asked() {
		for i, q := range round {
			if i > 0 {
				out.WriteString(", ")
			}
			fmt.Fprintf(&out, "%s %s %s", q.Key, q.Method, q.Params)
		}
		out.WriteString(";")
	}
	return out.String()
}

// sentAgain writes down what the calls after the first one had besides. All else
// in them must be as in the first.
func sentAgain(t *testing.T, rec *recorder.Recorder) string {
	t.Helper()
	var out strings.Builder
	for i, call := range rec.Calls() {
		params, _ := jsonrpc.Get(call.Raw, "params")
		responses, _ := jsonrpc.Get(params, "inputResponses")
		state, _ := jsonrpc.Get(params, "requestState")
		if string(call.Arguments) != `{"n":1.0}` {
			t.Errorf("arguments %s", call.Arguments)
		}
		if i > 0 {
			fmt.Fprintf(&out, "%s %s;", responses, state)
		}
	}
	return out.String()
}

// A question that nobody can answer ends the request.
func TestRoundWithoutClient(t *testing.T) {
	cfg := recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "t", Answers: []json.RawMessage{json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage"}}}`)}}}}
	overModern(t, cfg, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		_, e := up.call(up.last, "t", `{}`)
		wantError(t, e, upstream.Failed, true)
		if want := `{"code":-32021,"message":"the server asks for sampling/createMessage, and there is no client to ask","data":{"requiredCapabilities":{"sampling":{}}}}`; string(e.RPC) != want {
			t.Errorf("got %s", e.RPC)
		}
	})
}

// Other methods may be asked in the course of, or not.
func TestRoundsOfMethods(t *testing.T) {
	required := json.RawMessage(`{"resultType":"input_required","requestState":"1"}`)
	for method, may := range map[string]bool{"prompts/get": true, "resources/read": true, "completion/complete": false, "prompts/list": false} {
		cfg := recorder.Stateless{Tools: []recorder.StatelessTool{{Name: method, Answers: []json.RawMessage{required, json.RawMessage(`{"resultType":"complete"}`)}}}}
		overModern(t, cfg, func(t *testing.T, rec *recorder.Recorder, up *running) {
			up.ready()
			_, e := up.Ask(context.Background(), upstream.Ask{Method: method, Params: json.RawMessage(`{"name":"n","uri":"n"}`), From: asClient("one", nil)})
			if (e == nil) != may {
				t.Errorf("%s: %v", method, e)
			}
		})
	}
}

// The time that a client takes for its answers is not the server's, and a
// caller that gives up is not kept waiting.
func TestRoundsAndTime(t *testing.T) {
	const shortest = 100 * time.Millisecond
	asks := []json.RawMessage{json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`), json.RawMessage(done)}
	cfg := recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "t", Answers: asks}}}
	for short := shortest; short < patience/4; short *= 2 {
		cfg.Tools = append(cfg.Tools, recorder.StatelessTool{Name: "t" + short.String(), Answers: asks})
	}
	overModern(t, cfg, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		// A machine that is too slow for the rounds themselves gets more time for them:
		// if the client's time counted, more time would not help.
		var e *upstream.Error
		for short := shortest; short < patience/4; short *= 2 {
			tool := "t" + short.String()
			_, e = up.Do(context.Background(), upstream.Call{Tool: tool, Fingerprint: up.fingerprint(tool), Timeout: short, From: asClient("one", &peer{answer: func(upstream.Question) upstream.Answer {
				<-time.After(2 * short)
				return result(`{"roots":[]}`)
			}})})
			if e == nil || e.Kind != upstream.Timeout {
				break
			}
		}
		if e != nil {
			t.Error(e)
		}
	})
	overModern(t, cfg, func(t *testing.T, rec *recorder.Recorder, up *running) {
		up.ready()
		ctx, stop := context.WithCancel(context.Background())
		silent := &peer{}
		go func() {
			await(t, "the question", func() bool { return len(silent.asked()) == 1 })
			stop()
		}()
		_, e := up.Do(ctx, upstream.Call{Tool: "t", Fingerprint: up.fingerprint("t"), From: asClient("one", silent)})
		wantError(t, e, upstream.Cancelled, true)
	})
}

// A result asks when its own resultType says so, however long it is and whatever its
// textParam says.
func TestAsks(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		result string
		want   bool
	}{
		{`{"resultType":"input_required"}`, true},
		{`{ "a" : [{"resultType":1}], "resultType" : "input_required" }`, true},
		{`{"a":"` + long + `","resultType":"input_required"}`, true},
		{`{"resultType":"input_required","a":"` + long + `"}`, true},
		{`{"a":"` + long + `\"resultType\":\"input_required\""}`, false},
		{`{"a":{"resultType":"input_required"},"resultType":"complete"}`, false},
		{`{"a":{"resultType":"input_required"},"b":"` + long + `"}`, false},
		{`{"resultType":{"input_required":1}}`, false},
		{`["resultType","input_required"]`, false},
		{`{}`, false},
	} {
		if got := upstream.Asks(json.RawMessage(tt.result)); got != tt.want {
			t.Errorf("%.60s: %t, want %t", tt.result, got, tt.want)
		}
	}
}
