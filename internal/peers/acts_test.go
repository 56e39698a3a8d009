package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// act is one thing for a client to do in a session, whatever the client.
type act struct {
	Named string `json:"named"`
	// Op is tools, resources, templates or prompts, which list; call, task,
	// read, prompt, complete, level, listen or hush.
	Op   string         `json:"op"`
	Name string         `json:"name,omitempty"` // of a tool or a prompt
	URI  string         `json:"uri,omitempty"`  // to read, to listen to
	Args map[string]any `json:"args,omitempty"`
	// Value is the beginning of what is completed, for argument Argument; or the
	// level of logging.
	Argument string `json:"argument,omitempty"`
	Value    string `json:"value,omitempty"`
	// Wait are notifications that the client waits for, by method.
	Wait map[string]int `json:"wait,omitempty"`
	// Want is how many names a list has at least: it is asked for until then.
	Want int `json:"want,omitempty"`
	// Cancel gives the call up with its first progress.
	Cancel bool `json:"cancel,omitempty"`
	// Progress asks for progress.
	Progress bool `json:"progress,omitempty"`

	// asks is the method of what the server asks meanwhile, "" for nothing that
	// is compared.
	asks string
	// blind compares no result: it has in it what belongs to the hop.
	blind bool
	// loose compares of what is heard the methods alone.
	loose bool
}

// arguments are never nil: servers want an object.
func (a act) arguments() map[string]any {
	if a.Args == nil {
		return map[string]any{}
	}
	return a.Args
}

// told is a notification or a request of the server.
type told struct {
	Method string         `json:"method"`
	Params map[string]any `json:"params"`
}

// saw is what a client saw of an act.
type saw struct {
	Names  []string       `json:"names"`  // of a list
	Result map[string]any `json:"result"` // of another act
	Failed string         `json:"failed"` // the client's error as text
	Code   int            `json:"code"`   // of a JSON-RPC error, 0 where the client hides it
	Heard  []told         `json:"heard"`  // notifications
	Asked  []told         `json:"asked"`  // requests of the server
}

// The methods that acts wait for or are asked.
const (
	progressNote  = "notifications/progress"
	messageNote   = "notifications/message"
	updatedNote   = "notifications/resources/updated"
	toolsNote     = "notifications/tools/list_changed"
	promptsNote   = "notifications/prompts/list_changed"
	resourcesNote = "notifications/resources/list_changed"
	sampleMethod  = "sampling/createMessage"
	elicitMethod  = "elicitation/create"
)

// The revisions that clients are pinned to.
const (
	legacyEra = "2025-11-25"
	modernEra = "2026-07-28"
)

// volatile is what differs from one run to the next.
var volatile = regexp.MustCompile(`created at [^"\\]+|Task ID: \S+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}`)

// hopOwn are members of results that belong to one hop or to one era.
var hopOwn = []string{"_meta", "resultType", "ttlMs", "cacheScope"}

// plain gives a result without what belongs to a hop, an era or a run.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, one := range v {
			if slices.Contains(hopOwn, k) || k == "isError" && one == false || k == "mode" && one != "url" || one == nil {
				continue
			}
			out[k] = plain(one)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case string:
		return volatile.ReplaceAllString(v, "…")
	}
	return v
}

// seenOf tells an observation as text, with everything out of it that may
// differ: prefixes of names, tokens, what belongs to a hop.
func seenOf(t testing.TB, a act, s saw) string {
	t.Helper()
	var out strings.Builder
	switch {
	case s.Failed != "" && a.Cancel:
		out.WriteString("given up\n")
	case s.Failed != "":
		fmt.Fprintf(&out, "failed with %d\n", s.Code)
	case a.blind:
		out.WriteString("answered\n")
	case s.Names != nil:
		s.Names = slices.DeleteFunc(s.Names, func(name string) bool { return strings.HasPrefix(name, "__transient") })
		fmt.Fprintf(&out, "%s\n", strings.Join(s.Names, " "))
	default:
		fmt.Fprintf(&out, "%s\n", jsonText(t, plain(s.Result)))
	}
	for _, method := range slices.Sorted(maps.Keys(a.Wait)) {
		heard := notesOf(t, s.Heard, method, a.loose)
		fmt.Fprintf(&out, "heard %s %d times\n%s", method, min(len(heard), a.Wait[method]), strings.Join(heard[:min(len(heard), a.Wait[method])], ""))
	}
	if a.asks != "" {
		asked := notesOf(t, s.Asked, a.asks, false)
		fmt.Fprintf(&out, "asked %s %d times\n%s", a.asks, len(asked), strings.Join(asked, ""))
	}
	return out.String()
}

// notesOf gives the notes of one method as text.
func notesOf(t testing.TB, notes []told, method string, loose bool) (out []string) {
	t.Helper()
	for _, n := range notes {
		// TypeScript's client of the modern era reports its own progress too.
		if message, _ := n.Params["message"].(string); n.Method != method || strings.HasPrefix(message, "Fulfilling input required") {
			continue
		}
		delete(n.Params, "progressToken")
		if loose {
			n.Params = nil
		}
		out = append(out, "  "+jsonText(t, plain(n.Params))+"\n")
	}
	return out
}

// journal is what a session was told, for the clients of this process.
type journal struct {
	mu    sync.Mutex // protects the fields below
	heard []told
	asked []told
	onto  func() // called with the next progress
}

// tell notes something of the server down, in the form that it has on the wire.
func (j *journal) tell(to *[]told, method string, params any) {
	n := told{Method: method, Params: map[string]any{}}
	if text, err := json.Marshal(params); err == nil {
		_ = json.Unmarshal(text, &n.Params) // what is no object has no members
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	*to = append(*to, n)
	if method == progressNote && j.onto != nil {
		j.onto()
		j.onto = nil
	}
}

func (j *journal) hear(method string, params any) { j.tell(&j.heard, method, params) }
func (j *journal) ask(method string, params any)  { j.tell(&j.asked, method, params) }

// begin starts an act; the next progress calls onto.
func (j *journal) begin(onto func()) (heard, asked int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.onto = onto
	return len(j.heard), len(j.asked)
}

// since gives what was told from two marks on.
func (j *journal) since(heard, asked int) ([]told, []told) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.heard[heard:]), slices.Clone(j.asked[asked:])
}

// awaits waits until all was heard that an act waits for, and gives up after a
// while: the comparison tells what is missing.
func (j *journal) awaits(t testing.TB, a act, heard int) {
	t.Helper()
	program.Settles(func() bool {
		notes, _ := j.since(heard, 0)
		for method, n := range a.Wait {
			if len(notesOf(t, slices.Clone(notes), method, true)) < n {
				return false
			}
		}
		return true
	})
}

// perform makes the call of an act, the n-th, and gives what came of it and
// what was told and asked meanwhile.
func (j *journal) perform(t *testing.T, a act, n int, do func(context.Context, act, int) ([]string, any, error)) saw {
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var onto func()
	if a.Cancel {
		onto = stop
	}
	heard, asked := j.begin(onto)
	names, result, err := do(ctx, a, n)
	out := saw{Names: names}
	if err != nil {
		f := failed(err)
		out.Failed, out.Code = f.Failed, f.Code
	} else if result != nil {
		out.Result = object(t, result)
	}
	j.awaits(t, a, heard)
	out.Heard, out.Asked = j.since(heard, asked)
	return out
}

// answers: what every client here says when it is asked.
const (
	answeredModel = "model-of-the-test"
	rootURI       = "file:///toolgate/root"
)

// sampled is what the model of the test says to the first message's text.
func sampled(text string) string { return "sampled: " + text }

// filledIn fills in what a form requires.
func filledIn(schema map[string]any) map[string]any {
	content := map[string]any{}
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		name, _ := name.(string)
		property, _ := properties[name].(map[string]any)
		switch property["type"] {
		case "boolean":
			content[name] = true
		case "integer", "number":
			content[name] = 7
		default:
			content[name] = "Ada"
			if one, ok := property["oneOf"].([]any); ok && len(one) > 0 {
				first, _ := one[0].(map[string]any)
				content[name] = first["const"]
			}
		}
	}
	return content
}
