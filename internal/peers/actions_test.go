package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// action is one thing that a client does in a session, the same for every client.
type action struct {
	Named string `json:"named"`
	// Op is a list (tools, resources, templates, prompts) or one of call, task,
	// read, prompt, complete, level, subscribe and unsubscribe.
	Op   string `json:"op"`
	Name string `json:"name,omitempty"` // of a tool or prompt
	URI  string `json:"uri,omitempty"`  // of read, subscribe and unsubscribe
	Args args   `json:"args,omitempty"`
	// Value is the prefix to complete for the argument named Argument, or the
	// log level.
	Argument string `json:"argument,omitempty"`
	Value    string `json:"value,omitempty"`
	// Wait counts the notifications, by method, that the client waits for.
	Wait map[string]int `json:"wait,omitempty"`
	// Want is the least number of names in a list. The client asks again until
	// the list has them.
	Want int `json:"want,omitempty"`
	// Cancel cancels the call on its first progress notification.
	Cancel bool `json:"cancel,omitempty"`
	// Progress asks for progress notifications.
	Progress bool `json:"progress,omitempty"`

	wantRequests string // method of the server's requests to compare, "" for none
	ignoreResult bool   // the result holds values of one connection
	methodsOnly  bool   // compare the methods of notifications, not their parameters
}

type args = map[string]any

// arguments returns the arguments, never nil: servers require an object.
func (a action) arguments() map[string]any {
	if a.Args == nil {
		return map[string]any{}
	}
	return a.Args
}

// message is a notification or a request of the server.
type message struct {
	Method string         `json:"method"`
	Params map[string]any `json:"params"`
}

// observation is what a client reports of an action.
type observation struct {
	Names         []string        `json:"names"`  // of a list
	Result        map[string]any  `json:"result"` // of any other action
	Failed        string          `json:"failed"` // the client's error as text
	Code          int             `json:"code"`   // of a JSON-RPC error, 0 if the client hides it
	Data          json.RawMessage `json:"data"`   // of a JSON-RPC error, nil if the client hides it
	Notifications []message       `json:"notifications"`
	Requests      []message       `json:"requests"` // requests of the server
}

// text returns the result as JSON, or the error.
func (o observation) text(t testing.TB) string {
	t.Helper()
	if o.Result == nil {
		return fmt.Sprintf("%s (%d) %s", o.Failed, o.Code, o.Data)
	}
	return jsonText(t, o.Result)
}

// count returns the number of notifications with a method.
func (o observation) count(method string) (n int) {
	for _, m := range o.Notifications {
		if m.Method == method {
			n++
		}
	}
	return n
}

// The methods of notifications and of the server's requests.
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

// The two protocol revisions that clients are pinned to: one with sessions, one
// without (stateless).
const (
	sessionRevision   = "2025-11-25"
	statelessRevision = "2026-07-28"
)

// volatile matches text that differs between two runs.
var volatile = regexp.MustCompile(`created at [^"\\]+|Task ID: \S+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}`)

// connectionMembers are members of results that belong to one connection or to
// one revision.
var connectionMembers = []string{"_meta", "resultType", "ttlMs", "cacheScope"}

// plain returns v without members that belong to a connection, a revision or a run.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, one := range v {
			if slices.Contains(connectionMembers, k) || k == "isError" && one == false || k == "mode" && one != "url" || one == nil {
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

// describe returns an observation as text, without everything that may differ
// between two connections.
func describe(t testing.TB, a action, o observation) string {
	t.Helper()
	var out strings.Builder
	switch {
	case o.Failed != "" && a.Cancel:
		out.WriteString("cancelled\n")
	case o.Failed != "":
		fmt.Fprintf(&out, "failed with %d\n", o.Code)
	case a.ignoreResult:
		out.WriteString("answered\n")
	case o.Names != nil:
		o.Names = slices.DeleteFunc(o.Names, func(name string) bool { return strings.HasPrefix(name, "__transient") })
		fmt.Fprintf(&out, "%s\n", strings.Join(o.Names, " "))
	default:
		fmt.Fprintf(&out, "%s\n", jsonText(t, plain(o.Result)))
	}
	for _, method := range slices.Sorted(maps.Keys(a.Wait)) {
		params := paramsOf(t, o.Notifications, method, a.methodsOnly)
		params = params[:min(len(params), a.Wait[method])]
		fmt.Fprintf(&out, "received %s %d times\n%s", method, len(params), strings.Join(params, ""))
	}
	if a.wantRequests != "" {
		params := paramsOf(t, o.Requests, a.wantRequests, false)
		fmt.Fprintf(&out, "was asked %s %d times\n%s", a.wantRequests, len(params), strings.Join(params, ""))
	}
	return out.String()
}

// paramsOf returns the parameters of the messages with one method, as text.
func paramsOf(t testing.TB, messages []message, method string, methodsOnly bool) (out []string) {
	t.Helper()
	for _, m := range messages {
		if m.Method != method {
			continue
		}
		delete(m.Params, "progressToken")
		if methodsOnly {
			m.Params = nil
		}
		out = append(out, "  "+jsonText(t, plain(m.Params))+"\n")
	}
	return out
}

// journal records the messages of the server in one session, for clients in this
// process.
type journal struct {
	mu            sync.Mutex // protects the fields below
	notifications []message
	requests      []message
	onProgress    func() // called on the next progress notification, then cleared
}

// record appends a message of the server, in its JSON form.
func (j *journal) record(to *[]message, method string, params any) {
	m := message{Method: method, Params: map[string]any{}}
	if text, err := json.Marshal(params); err == nil {
		_ = json.Unmarshal(text, &m.Params) // parameters other than an object have no members
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	*to = append(*to, m)
	if method == progressNote && j.onProgress != nil {
		j.onProgress()
		j.onProgress = nil
	}
}

func (j *journal) notify(method string, params any)  { j.record(&j.notifications, method, params) }
func (j *journal) request(method string, params any) { j.record(&j.requests, method, params) }

// mark returns the lengths of the journal. The next progress notification calls
// onProgress.
func (j *journal) mark(onProgress func()) (notifications, requests int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.onProgress = onProgress
	return len(j.notifications), len(j.requests)
}

// since returns the messages after two marks.
func (j *journal) since(notifications, requests int) ([]message, []message) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.notifications[notifications:]), slices.Clone(j.requests[requests:])
}

// await waits until the notifications of an action have arrived. It returns
// after a quarter of the time limit; the comparison then shows which are missing.
func (j *journal) await(t testing.TB, a action, mark int) {
	t.Helper()
	program.Settles(func() bool {
		notifications, _ := j.since(mark, 0)
		for method, n := range a.Wait {
			if len(paramsOf(t, slices.Clone(notifications), method, true)) < n {
				return false
			}
		}
		return true
	})
}

// observe performs the n-th action of a session with do and returns its outcome,
// with the messages of the server in the meantime.
func (j *journal) observe(t *testing.T, a action, n int, do func(context.Context, action, int) ([]string, any, error)) observation {
	ctx, stop := context.WithTimeout(t.Context(), timeout)
	defer stop()
	var onProgress func()
	if a.Cancel {
		onProgress = stop
	}
	notifications, requests := j.mark(onProgress)
	names, result, err := do(ctx, a, n)
	out := observation{Names: names}
	var rpc *jsonrpc.Error
	switch {
	case errors.As(err, &rpc):
		out.Failed, out.Code, out.Data = err.Error(), int(rpc.Code), rpc.Data
	case err != nil:
		out.Failed = err.Error()
	case result != nil:
		out.Result = object(t, result)
	}
	j.await(t, a, notifications)
	out.Notifications, out.Requests = j.since(notifications, requests)
	return out
}

// repeat lists until there are at least a.Want names or ctx ends.
func (a action) repeat(ctx context.Context, list func(context.Context, string) ([]string, error)) (names []string, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if names, err = list(ctx, a.Op); err != nil || len(names) >= a.Want {
			return names, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return names, nil
		}
	}
}

// object returns a value in its JSON form.
func object(t testing.TB, v any) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(jsonText(t, v)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// The answers of every client to requests of the server.
const (
	answeredModel = "model-of-the-test"
	rootURI       = "file:///toolgate/root"
)

// sampled returns the model's answer to the text of the first message.
func sampled(text string) string { return "sampled: " + text }

// fillForm returns values for the required properties of a form.
func fillForm(schema map[string]any) map[string]any {
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
