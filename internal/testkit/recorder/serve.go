package recorder

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// message is the part of a JSON-RPC message that a recorder looks at.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// callParams are those of tools/call.
type callParams struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Meta      struct {
		Token json.RawMessage `json:"progressToken"`
	} `json:"_meta"`
}

// engine answers messages according to its Config.
type engine struct {
	cfg  Config
	exit func()        // ends the process, for Crash
	stop chan struct{} // closed at the end of the test, for Hang

	apart func(session, message string) // sends a message outside any call

	mu      sync.Mutex // protects the fields below
	calls   int
	tools   []Tool
	can     map[string]json.RawMessage // :: session ⇒ the client's capabilities
	seq     int
	awaited map[string]chan struct{} // :: awaited event ⇒ closed when it has happened
}

// newEngine makes an engine; exit is what Crash does.
func newEngine(cfg Config, exit func()) *engine {
	return &engine{cfg: cfg, tools: cfg.Tools, exit: exit, stop: make(chan struct{}),
		can: make(map[string]json.RawMessage), awaited: make(map[string]chan struct{})}
}

// serve answers one message of a session. send sends one message to the client.
func (e *engine) serve(session string, raw []byte, send func(string)) {
	var msg message
	if json.Unmarshal(raw, &msg) != nil || !e.hear(session, msg) {
		return
	}
	if e.cfg.HangAtStart {
		<-e.stop
		return
	}
	switch msg.Method {
	case "initialize":
		revision := e.cfg.Revision
		if revision == "" {
			revision = "2025-11-25"
		}
		var instructions string
		if e.cfg.Instructions != "" {
			text, _ := json.Marshal(e.cfg.Instructions) // a string has no error
			instructions = `,"instructions":` + string(text)
		}
		send(success(msg.ID, `{"protocolVersion":"`+revision+`","capabilities":`+e.offers(session, msg)+`,"serverInfo":{"name":"recorder","version":"1"}`+instructions+`}`))
	case "ping":
		send(success(msg.ID, `{}`))
	case "tools/list":
		send(success(msg.ID, e.list(session, msg.Params)))
	case "tools/call":
		e.call(session, msg, send)
	default:
		if result, ok := e.cfg.Answers[msg.Method]; ok {
			send(success(msg.ID, string(result)))
			return
		}
		send(failure(msg.ID, `{"code":-32601,"message":"method not found"}`))
	}
}

func success(id json.RawMessage, result string) string {
	return `{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + `}`
}

func failure(id json.RawMessage, object string) string {
	return `{"jsonrpc":"2.0","id":` + string(id) + `,"error":` + object + `}`
}

// list returns the result of tools/list.
func (e *engine) list(session string, params json.RawMessage) string {
	if e.cfg.ListResult != nil {
		return string(e.cfg.ListResult)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var in struct{ Cursor string }
	_ = json.Unmarshal(params, &in)
	first := 0
	_, _ = fmt.Sscanf(in.Cursor, "page-%d", &first) // any other cursor means the first page
	tools := e.visibleLocked(session)
	last := len(tools)
	next := ""
	if e.cfg.Page > 0 && first+e.cfg.Page < last {
		last = first + e.cfg.Page
		next = fmt.Sprintf(`,"nextCursor":"page-%d"`, last)
	}
	if e.cfg.RepeatCursor {
		next = `,"nextCursor":"again"`
	}
	var out []string
	for _, t := range tools[first:last] {
		out = append(out, t.definition())
	}
	return `{"tools":[` + strings.Join(out, ",") + `]` + next + `}`
}

// definition returns a tool in tools/list.
func (t Tool) definition() string {
	if t.Definition != nil {
		return string(t.Definition)
	}
	return `{"name":"` + t.Name + `","inputSchema":{"type":"object"}}`
}

// call performs the behavior of the called tool.
func (e *engine) call(session string, msg message, send func(string)) {
	var params callParams
	_ = json.Unmarshal(msg.Params, &params)
	tool, changed := e.count(params.Name)
	if changed && e.cfg.Notify {
		send(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	}
	result := success(msg.ID, tool.result(e.cfg, params.Arguments))
	switch tool.Does {
	case Crash:
		e.exit()
		return
	case Hang:
		<-e.stop
		return
	case Late:
		select {
		case <-time.After(tool.Delay):
		case <-e.stop:
		}
	case Twice:
		send(result)
	case WrongID:
		result = success(json.RawMessage(`"nobody"`), `{}`)
	case Both:
		result = strings.TrimSuffix(result, "}") + `,"error":{"code":1,"message":"both"}}`
	case Fail:
		result = failure(msg.ID, string(tool.Error))
	case Ask:
		send(`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`)
		send(`{"jsonrpc":"2.0","id":` + string(msg.ID) + `,"method":"sampling/createMessage","params":{}}`)
	case Talk:
		e.talk(session, msg, params, tool.Lines, send)
	case Flood, Garbage, Steps:
		tool.chatter(params.Meta.Token, send)
	}
	send(result)
}

// chatter sends the messages before the answer.
func (t Tool) chatter(token json.RawMessage, send func(string)) {
	for i := range t.N {
		switch t.Does {
		case Garbage:
			send("Listening on port 3000 {")
		case Steps:
			send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"big":9007199254740993}}`, token, i))
		case Flood:
			method := "notifications/message"
			if i%2 == 1 {
				method = "notifications/tools/list_changed"
			}
			send(`{"jsonrpc":"2.0","method":"` + method + `","params":{"level":"info","data":"noise"}}`)
		}
	}
}

// result returns the result of a call.
func (t Tool) result(cfg Config, arguments json.RawMessage) string {
	switch {
	case cfg.Environ:
		text, _ := json.Marshal(strings.Join(os.Environ(), "\n"))
		return `{"content":[{"type":"text","text":` + string(text) + `}]}`
	case t.Result != nil:
		return string(t.Result)
	case t.Does == Big:
		return `{"content":[{"type":"text","text":"` + strings.Repeat("x", t.N) + `"}]}`
	case arguments == nil:
		return `{"content":[]}`
	}
	return `{"content":[],"structuredContent":` + string(arguments) + `}`
}

// count counts a call and finds its tool; changed reports whether this call changes
// the tools.
func (e *engine) count(name string) (tool Tool, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.tools {
		if t.Name == name {
			tool = t
		}
	}
	e.calls++
	if e.cfg.ChangeAfter > 0 && e.calls == e.cfg.ChangeAfter {
		e.tools = e.cfg.Changed
		return tool, true
	}
	return tool, false
}

// setTools replaces the tools.
func (e *engine) setTools(tools []Tool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tools = tools
}
