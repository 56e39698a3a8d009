package recorder

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// revision is the revision of a stateless recorder.
const revision = "2026-07-28"

// Stateless makes a recorder a stateless server (MCP 2026-07-28). It refuses messages
// that this revision forbids, and records them as violations.
type Stateless struct {
	// Revisions are the revisions that it reports, nil for its own.
	Revisions []string
	// RefuseFirst refuses the first server/discover with these revisions.
	RefuseFirst bool
	// Capabilities are its capabilities, nil for tools with list_changed.
	Capabilities json.RawMessage `json:",omitempty"`
	// TTL is the ttlMs of its lists.
	TTL   int
	Tools []StatelessTool
	// Changed are the tools after a "change".
	Changed []StatelessTool
	// ListenError is the error object of subscriptions/listen, nil for none.
	ListenError json.RawMessage `json:",omitempty"`
}

// StatelessTool is one tool, or the behavior of another method, such as "prompts/get".
type StatelessTool struct {
	Name string
	// Definition is the tool in tools/list, nil for a minimal one.
	Definition json.RawMessage `json:",omitempty"`
	// Needs is the client capability that the tool requires to be listed.
	Needs string
	// Sends are the actions before the answer: a message to send, in which TOKEN is
	// the progress token and ID the request's ID; "listeners METHOD PARAMS" for a
	// notification to every listener; "end" to end their streams; "tear" to do so
	// over stdio with notifications/cancelled; "change" to change the tools; "swap"
	// to become a server with sessions; "die" to exit; "hang" to wait until the
	// client cancels.
	Sends []string
	// Answers are the results or error objects in order; the last one repeats. Nil
	// echoes the params as structuredContent.
	Answers []json.RawMessage
}

// statelessServer is a stateless server.
type statelessServer struct {
	cfg  Stateless
	note func(kind, payload string)

	mu      sync.Mutex // protects the fields below
	tools   []StatelessTool
	calls   map[string]int
	swapped bool
	seen    map[string]bool               // ids
	cancels map[string]context.CancelFunc // :: id ⇒ cancels a running request
	listens map[string]*listening
}

// listening is one stream of notifications.
type listening struct {
	send func(string)
	end  context.CancelFunc
	torn bool
}

func newStateless(cfg Stateless, note func(kind, payload string)) *statelessServer {
	return &statelessServer{cfg: cfg, note: note, tools: cfg.Tools, calls: make(map[string]int), seen: make(map[string]bool),
		cancels: make(map[string]context.CancelFunc), listens: make(map[string]*listening)}
}

// violation records a violation of the client.
func (m *statelessServer) violation(format string, args ...any) {
	m.note("violation", fmt.Sprintf(format, args...))
}

// wrongs returns the fault in the metadata of a request, "" for none.
func wrongs(msg message) string {
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(msg.Params, &params) // only an object has members
	var client struct{ Name, Version string }
	_ = json.Unmarshal(params.Meta["io.modelcontextprotocol/clientInfo"], &client) // as above
	capabilities := params.Meta["io.modelcontextprotocol/clientCapabilities"]
	switch {
	case string(params.Meta["io.modelcontextprotocol/protocolVersion"]) != `"`+revision+`"`:
		return "no protocolVersion"
	case client.Name == "" || client.Version == "":
		return "no clientInfo"
	case len(capabilities) == 0 || capabilities[0] != '{':
		return "no clientCapabilities"
	}
	return ""
}

// gone are the methods that the revision has removed.
var gone = []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list", "tasks/result"}

// serve answers one message; ctx ends when the client disconnects. send sends one
// message to the client.
func (m *statelessServer) serve(ctx context.Context, raw []byte, send func(string)) {
	var msg message
	if json.Unmarshal(raw, &msg) != nil || msg.Method == "" || msg.ID == nil {
		m.notice(msg)
		return
	}
	if slices.Contains(gone, msg.Method) {
		m.violation("%s", msg.Method)
		send(failure(msg.ID, `{"code":-32601,"message":"method not found"}`))
		return
	}
	if wrong := wrongs(msg); wrong != "" {
		m.violation("%s: %s", msg.Method, wrong)
		send(failure(msg.ID, `{"code":-32602,"message":"`+wrong+`"}`))
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	if !m.begin(string(msg.ID), end) {
		m.violation("id %s again", msg.ID)
	}
	switch msg.Method {
	case "server/discover":
		if _, n := m.find(msg); m.cfg.RefuseFirst && n == 0 {
			send(failure(msg.ID, `{"code":-32022,"message":"unsupported","data":{"requested":"?","supported":`+m.revisions()+`}}`))
			return
		}
		send(success(msg.ID, m.discover()))
	case "tools/list":
		send(success(msg.ID, m.list(msg.Params)))
	case "subscriptions/listen":
		m.listen(ctx, end, msg, send)
	default:
		m.call(ctx, msg, send)
	}
}

// notice receives a notification.
func (m *statelessServer) notice(msg message) {
	if msg.Method != "notifications/cancelled" {
		m.violation("a message that is no request: %s", msg.Method)
		return
	}
	var params struct{ RequestID json.RawMessage }
	_ = json.Unmarshal(msg.Params, &params) // only an object has members
	m.mu.Lock()
	defer m.mu.Unlock()
	if end := m.cancels[string(params.RequestID)]; end != nil {
		end()
	} else { // it has overtaken its request: each message has a goroutine
		m.cancels[string(params.RequestID)] = func() {}
	}
}

// begin registers a request, and reports whether its ID is new.
func (m *statelessServer) begin(id string, end context.CancelFunc) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	again := m.seen[id]
	if !again && m.cancels[id] != nil { // cancelled already
		end()
	}
	m.seen[id], m.cancels[id] = true, end
	return !again
}

// revisions returns its revisions as a JSON array.
func (m *statelessServer) revisions() string {
	names, _ := json.Marshal(append(m.cfg.Revisions, revision)[:max(1, len(m.cfg.Revisions))])
	return string(names)
}

func (m *statelessServer) discover() string {
	return `{"resultType":"complete","supportedVersions":` + m.revisions() + `,"capabilities":` + string(m.capabilities()) + `,"ttlMs":0,"cacheScope":"private"}`
}

func (m *statelessServer) capabilities() json.RawMessage {
	if m.cfg.Capabilities == nil {
		return json.RawMessage(`{"tools":{"listChanged":true}}`)
	}
	return m.cfg.Capabilities
}

// list returns the result of tools/list.
func (m *statelessServer) list(params json.RawMessage) string {
	var in struct {
		Meta struct {
			Can map[string]json.RawMessage `json:"io.modelcontextprotocol/clientCapabilities"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(params, &in) // decoded before without an error
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, t := range m.tools {
		if (t.Needs == "" || in.Meta.Can[t.Needs] != nil) && !strings.Contains(t.Name, "/") {
			out = append(out, Tool{Name: t.Name, Definition: t.Definition}.definition())
		}
	}
	return fmt.Sprintf(`{"resultType":"complete","tools":[%s],"ttlMs":%d,"cacheScope":"private"}`, strings.Join(out, ","), m.cfg.TTL)
}

// find returns the tool of a request and the number of its earlier calls.
func (m *statelessServer) find(msg message) (StatelessTool, int) {
	var params callParams
	_ = json.Unmarshal(msg.Params, &params) // as above
	name := msg.Method
	if name == "tools/call" {
		name = params.Name
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[name]++
	for _, t := range m.tools {
		if t.Name == name {
			return t, m.calls[name] - 1
		}
	}
	return StatelessTool{Name: "?"}, m.calls[name] - 1
}

// call performs the actions of a tool or method.
func (m *statelessServer) call(ctx context.Context, msg message, send func(string)) {
	tool, n := m.find(msg)
	if tool.Name == "?" {
		send(failure(msg.ID, `{"code":-32602,"message":"unknown","data":9007199254740993}`))
		return
	}
	var params callParams
	_ = json.Unmarshal(msg.Params, &params) // as above
	for _, line := range tool.Sends {
		m.do(ctx, strings.NewReplacer("TOKEN", string(params.Meta.Token), "ID", string(msg.ID)).Replace(line), send)
	}
	if ctx.Err() != nil {
		m.note("cancel", string(msg.ID))
		return
	}
	if tool.Answers == nil {
		send(success(msg.ID, `{"resultType":"complete","content":[],"structuredContent":`+string(msg.Params)+`}`))
		return
	}
	answer := tool.Answers[min(n, len(tool.Answers)-1)]
	if bytes.Contains(answer, []byte(`"code":-`)) {
		send(failure(msg.ID, string(answer)))
		return
	}
	send(success(msg.ID, string(answer)))
}

// do performs one line of Sends.
func (m *statelessServer) do(ctx context.Context, line string, send func(string)) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "hang":
		<-ctx.Done()
	case "die": // stdio
		os.Exit(6)
	case "listeners":
		method, params, _ := strings.Cut(rest, " ")
		m.announce(method, params)
	case "end", "tear":
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, l := range m.listens {
			l.torn = verb == "tear"
			l.end()
		}
	case "change":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.tools = m.cfg.Changed
	case "swap":
		m.mu.Lock()
		defer m.mu.Unlock()
		m.swapped = true
	default:
		send(line)
	}
}

// isSwapped reports whether the server has sessions now.
func (m *statelessServer) isSwapped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.swapped
}

// announce sends a notification to every listener.
func (m *statelessServer) announce(method, params string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, l := range m.listens {
		own := `{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}`
		if rest := strings.TrimPrefix(params, "{"); rest != "" && rest != "}" {
			own += "," + rest
		} else {
			own += "}"
		}
		l.send(`{"jsonrpc":"2.0","method":"` + method + `","params":` + own + `}`)
	}
}

// listen serves one stream of notifications with the requested filter.
func (m *statelessServer) listen(ctx context.Context, end context.CancelFunc, msg message, send func(string)) {
	if m.cfg.ListenError != nil {
		send(failure(msg.ID, string(m.cfg.ListenError)))
		return
	}
	var params struct{ Notifications json.RawMessage }
	_ = json.Unmarshal(msg.Params, &params) // as above
	id := string(msg.ID)
	closing, endStream := context.WithCancel(ctx)
	defer endStream()
	m.mu.Lock()
	l := &listening{send: send, end: endStream}
	m.listens[id] = l
	send(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `},"notifications":` + string(params.Notifications) + `}}`)
	m.mu.Unlock()
	m.note("listen", string(params.Notifications))
	<-closing.Done()
	m.mu.Lock()
	delete(m.listens, id)
	m.mu.Unlock()
	m.note("unlisten", string(params.Notifications))
	switch {
	case ctx.Err() != nil:
	case l.torn:
		send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	default:
		send(success(msg.ID, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":`+id+`}}`))
	}
	end()
}
