package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// modernVersion is the first revision without sessions: each request says in
// its params._meta who asks, in which revision and with what capabilities.
const modernVersion = "2026-07-28"

// Keys of _meta that belong to this hop (MCP 2026-07-28, base protocol).
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// modern is what the door knows of a request of that revision beside the call.
type modern struct {
	party     *party          // on whose account it is; nil until it is admitted
	state     json.RawMessage // params.requestState, nil = none
	responses json.RawMessage // params.inputResponses, nil = none
}

// work does what a request asks for.
type work func(d *Door, ctx context.Context, x *exchange) outcome

// modernRow is what the table knows of a request method of that revision.
type modernRow struct {
	work   work
	asks   bool   // its servers may ask the client
	cached bool   // its result says how long it may be kept
	named  string // member of params that header Mcp-Name repeats
}

// modernRequests is every request method of that revision but
// subscriptions/listen.
var modernRequests = map[string]modernRow{
	"server/discover":          {work: (*Door).discover, cached: true},
	"tools/list":               {work: (*Door).listedTools, cached: true},
	"tools/call":               {work: (*Door).called, asks: true, named: "name"},
	"resources/list":           {work: (*Door).enumerated, cached: true},
	"resources/templates/list": {work: (*Door).enumerated, cached: true},
	"resources/read":           {work: (*Door).relayed, asks: true, cached: true, named: "uri"},
	"prompts/list":             {work: (*Door).enumerated, cached: true},
	"prompts/get":              {work: (*Door).relayed, asks: true, named: "name"},
	"completion/complete":      {work: (*Door).relayed},
	"tasks/get":                {work: (*Door).relayed, named: "taskId"},
	"tasks/update":             {work: (*Door).relayed, named: "taskId"},
	"tasks/cancel":             {work: (*Door).relayed, named: "taskId"},
}

// listenMethod opens a stream of notifications.
const listenMethod = "subscriptions/listen"

// bygone are the methods that the revision took away. They would be relayed for
// a client of an older one, so that they are refused by name.
var bygone = []string{
	"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list", "tasks/result",
}

// modernRowOf gives the row of method. What has none may be an extension's: the
// road knows which of those the operator has named, and refuses any other.
func (d *Door) modernRowOf(method string) (modernRow, bool) {
	switch row, ok := modernRequests[method]; {
	case ok:
		return row, true
	case method == listenMethod:
		return modernRow{}, true
	case d.opts.Relayer == nil || slices.Contains(bygone, method):
		return modernRow{}, false
	}
	return modernRow{work: (*Door).relayed}, true
}

// saysModern reports whether the body of x has what requests of the revisions
// without sessions have in their _meta.
func (x *exchange) saysModern() bool {
	if x.call.Message == nil {
		return false
	}
	meta, _ := jsonrpc.Get(x.call.Message.Params, "_meta")
	_, version := jsonrpc.Get(meta, metaVersion)
	_, capabilities := jsonrpc.Get(meta, metaCapabilities)
	return version || capabilities
}

// showsModern reports whether x came in a revision without sessions: its
// header or its body says so. A session that is shown goes before a body, and
// an initialize is of the older revisions unless its body says otherwise.
func (x *exchange) showsModern(h http.Header) bool {
	lines, m := h[headerVersion], x.call.Message
	opens := m != nil && m.Method == "initialize"
	switch {
	case x.saysModern() && len(h[headerSession]) == 0:
		return true
	case len(lines) != 1 || opens:
		return false
	case lines[0] == modernVersion:
		return true
	}
	return len(h[headerSession]) == 0 && !slices.Contains(olderVersions, lines[0]) && m != nil && m.Kind == jsonrpc.Request
}

// meet takes x as far as what it says of itself. h is nil where a transport has
// no headers. If ok is false x has its answer.
func (d *Door) meet(ctx context.Context, x *exchange, h http.Header) (a answer, ok bool) {
	m := x.call.Message
	x.modern = &modern{}
	x.call.Era = modernVersion
	switch {
	case m == nil:
		a = d.refuseFault(x)
		if a.problem == nil {
			a.status = http.StatusBadRequest
		}
		return x.withoutNull(a), false
	case m.Kind == jsonrpc.Notification:
		return x.withoutNull(d.notice(x)), false
	case m.Kind != jsonrpc.Request:
		return d.refuseAs(x, signal.CodeEnvelopeInvalid, http.StatusBadRequest, "answers are given as inputResponses of a request"), false
	}
	if a, ok := d.checkRevision(x, h); !ok {
		return a, false
	}
	if fault := x.introduce(); fault != "" {
		return d.refuseAs(x, signal.CodeEnvelopeParams, http.StatusBadRequest, fault), false
	}
	return d.checkModern(ctx, x, h)
}

// checkRevision refuses a revision that is not served, and a header that says
// another one than the body.
func (d *Door) checkRevision(x *exchange, h http.Header) (answer, bool) {
	meta, _ := jsonrpc.Get(x.call.Message.Params, "_meta")
	raw, said := jsonrpc.Get(meta, metaVersion)
	wanted, isText := jsonrpc.Text(raw)
	if h != nil && said == isText {
		if lines := h[headerVersion]; !said && len(lines) == 1 {
			wanted, isText = lines[0], true
		} else if fault := paramheader.CheckText(h, headerVersion, wanted, false); fault != "" {
			return d.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
		}
	}
	if wanted == modernVersion || !isText {
		return answer{}, true // introduce says what is missing
	}
	a := d.refuseAs(x, signal.CodeEnvelopeVersion, http.StatusBadRequest, "revision "+wanted+" is not served without a session")
	supported := d.supported(x)
	if slices.Contains(x.versions, wanted) {
		supported = quoted(modernVersion)
	}
	return x.withData(x.withData(a, "supported", supported), "requested", jsonrpc.Quote(wanted)), false
}

// supported is the list of the revisions served, newest first.
func (d *Door) supported(x *exchange) json.RawMessage {
	return quoted(append([]string{modernVersion}, x.versions...)...)
}

// quoted is an array of texts.
func quoted(texts ...string) json.RawMessage {
	out := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, jsonrpc.Quote(text)...)
	}
	return append(out, ']')
}

// introduce puts into x what its _meta says of the client. It says what is
// missing.
func (x *exchange) introduce() string {
	params := x.call.Message.Params
	meta, _ := jsonrpc.Get(params, "_meta")
	raw, _ := jsonrpc.Get(meta, metaVersion)
	if _, ok := jsonrpc.Text(raw); !ok {
		return "_meta needs " + metaVersion + ", a string"
	}
	capabilities, _ := jsonrpc.Get(meta, metaCapabilities)
	if !isObject(capabilities) {
		return "_meta needs " + metaCapabilities + ", an object"
	}
	if raw, ok := jsonrpc.Get(meta, metaLevel); ok {
		level, _ := jsonrpc.Text(raw)
		if !slices.Contains(proxy.Levels, level) {
			return metaLevel + " is no log level"
		}
		x.call.Level = level
	}
	x.call.Capabilities = capabilities
	x.call.Client = nameOf(meta, metaClient)
	return ""
}

// takeAnswers takes requestState and inputResponses out of the params of a
// request that asks: they are between the client and this door. It says what is
// wrong with them.
func (x *exchange) takeAnswers() string {
	m := *x.call.Message
	for _, member := range []struct {
		name string
		to   *json.RawMessage
		ok   func(json.RawMessage) bool
		want string
	}{
		{"requestState", &x.modern.state, isText, "a string"},
		{"inputResponses", &x.modern.responses, isAnswers, "an object of objects"},
	} {
		raw, there := jsonrpc.Get(m.Params, member.name)
		if !there {
			continue
		}
		if !member.ok(raw) {
			return "params." + member.name + " must be " + member.want
		}
		left, err := jsonrpc.Delete(m.Params, member.name)
		if err != nil {
			return "params cannot be read"
		}
		*member.to, m.Params = raw, left
	}
	x.call.Message = &m
	return ""
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

func isText(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// isAnswers reports whether raw is an object of results.
func isAnswers(raw json.RawMessage) bool {
	for _, result := range jsonrpc.Members(raw) {
		if !isObject(result) {
			return false
		}
	}
	return isObject(raw)
}

// checkModern refuses a method that is not served and headers that contradict
// the body.
func (d *Door) checkModern(ctx context.Context, x *exchange, h http.Header) (answer, bool) {
	m := x.call.Message
	row, ok := d.modernRowOf(m.Method)
	if h != nil {
		if fault := standardFault(h, m, row.named); fault != "" {
			return d.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
		}
	}
	if !ok {
		return d.refuseAs(x, signal.CodeEnvelopeMethod, http.StatusNotFound, "method "+m.Method+" is not served in revision "+modernVersion), false
	}
	if row.asks {
		if fault := x.takeAnswers(); fault != "" {
			return d.refuse(x, signal.CodeEnvelopeParams, fault), false
		}
	}
	if a, ok := d.admitModern(x); !ok {
		return a, false
	}
	return d.admitHeaders(ctx, x, h)
}

// argumentFault checks the headers that the tool of a call wants of its
// arguments. A tool that the caller does not see wants none.
func (d *Door) argumentFault(ctx context.Context, x *exchange, h http.Header) string {
	raw, _ := jsonrpc.Get(x.call.Message.Params, "name")
	name, _ := jsonrpc.Text(raw)
	args, _ := jsonrpc.Get(x.call.Message.Params, "arguments")
	if t := d.find(ctx, x, name); t != nil {
		bound, _ := paramheader.Parameters(t.Definition) // an invalid annotation binds nothing
		return paramheader.Check(h, bound, args)
	}
	return ""
}

// find gives the tool that the sender of x sees under name, nil for none.
func (d *Door) find(ctx context.Context, x *exchange, name string) *registry.Tool {
	if f, ok := d.opts.Gate.(Finder); ok {
		return f.Find(ctx, &x.call, x.who, name)
	}
	shown := shownName(x.call.Route)
	tools := d.opts.Gate.List(ctx, &x.call, x.who)
	if i := slices.IndexFunc(tools, func(t *registry.Tool) bool { return shown(t) == name }); i >= 0 {
		return tools[i]
	}
	return nil
}

// admitModern finds the party on whose account x is.
func (d *Door) admitModern(x *exchange) (answer, bool) {
	p := d.parties.enter(x.who, x.call.Route, x.call.Capabilities)
	if p == nil {
		return d.refuse(x, signal.CodeOverloaded, "too many clients are at work"), false
	}
	x.modern.party = p
	x.call.Session, x.call.Home = p.key, p
	return answer{}, true
}

// admitHeaders lets x pass if its headers repeat what its tool wants of the
// arguments; else its party is left.
func (d *Door) admitHeaders(ctx context.Context, x *exchange, h http.Header) (answer, bool) {
	if h == nil || x.call.Message.Method != "tools/call" {
		return answer{}, true
	}
	if fault := d.argumentFault(ctx, x, h); fault != "" {
		d.parties.leave(x.modern.party)
		return d.refuseAs(x, signal.CodeHeaderMismatch, http.StatusBadRequest, fault), false
	}
	return answer{}, true
}

// refuseAs refuses x with an HTTP status of its own.
func (d *Door) refuseAs(x *exchange, code string, status int, reason string) answer {
	a := d.refuse(x, code, reason)
	a.status = status
	return a
}

// withoutNull takes the id out of an error that answers no readable id: in
// that revision an id is a string or a number.
func (x *exchange) withoutNull(a answer) answer {
	if x.id() == nil && a.body != nil {
		if body, err := jsonrpc.Delete(a.body, "id"); err == nil {
			a.body = body
		}
	}
	return a
}

// withData adds a member to the data of the error that a is.
func (x *exchange) withData(a answer, name string, value json.RawMessage) answer {
	data, _ := jsonrpc.Get(a.fault, "data")
	data, err := jsonrpc.Set(data, name, value)
	if err != nil {
		return a
	}
	object, err := jsonrpc.Set(a.fault, "data", data)
	if err != nil {
		return a
	}
	a.fault, a.body = object, jsonrpc.OneLine(jsonrpc.NewFailureObject(idOrNull(x.id()), object))
	return a
}
