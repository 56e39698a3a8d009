package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// relayed is a request or notification that calls no tool.
type relayed struct {
	call
	row    method
	about  policy.Input   // what it is about, as the policy sees it
	of     *session.Task  // what a request about a task is about
	kernel *signal.Result // what a task's result came to; nil = plain success
}

// relayRoad lists the stages of a request that calls no tool, but for close. The
// comment of Relay draws it; a test holds the two equal.
var relayRoad = []stage[*relayed]{
	{"receive", (*relayed).receive},
	{"identify", (*relayed).identify},
	{"stop", (*relayed).stop},
	{"resolve", (*relayed).resolve},
	{"decide", (*relayed).decide},
	{"connect", (*relayed).connect},
	{"limit", (*relayed).limit},
	{"record", (*relayed).record},
	{"forward", (*relayed).forward},
}

// Relay takes a request that calls no tool down the road: one about a resource,
// a prompt, a completion, the log level, a task, or one of an extension:
//
//	receive    the decoded request has an id, and says what it is about
//	identify   the credential names a principal
//	stop       people have not stopped the principal or the server of the route
//	resolve    the server is that of the route, or the one that has it; a task is the session's; it is not stopped
//	decide     the policy allows it; what it would hold is denied
//	connect    the caller has a credential at the server, where each caller needs one
//	limit      every bucket that applies gives a token
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the upstream
//	close      one outcome record, on every path
//
// The result is the upstream's, byte for byte but for what the policy redacts.
// Otherwise it behaves as Call does.
func (g *Gate) Relay(ctx context.Context, in *Call) (*Reply, *Failure) {
	r := g.newRelayed(in)
	return runRoad(ctx, r, &r.call, relayRoad)
}

func (g *Gate) newRelayed(in *Call) *relayed {
	r := new(relayed)
	g.begin(&r.call, in)
	if in.Message != nil {
		r.method = in.Message.Method
	}
	return r
}

// receive finds the method's row and what the request is about. Methods that the
// operator named are about their server.
func (r *relayed) receive(ctx context.Context) *Failure {
	m := r.in.Message
	if m == nil {
		return r.undecoded(r.in.Fault)
	}
	r.id = jsonrpc.IDText(m.ID)
	row, ok := methods[m.Method]
	if !ok {
		row, ok = lists[m.Method]
	}
	notice := isNotice(m.Method) && m.Kind == jsonrpc.Notification
	if !ok && notice == isNotice(m.Method) && (m.Method == methodListen) == (r.in.Listen != nil) && r.gate.extends(r.in.Route, m.Method) {
		row, ok = method{find: (*relayed).findServer}, true
	}
	switch {
	case !ok || r.gate.opts.Servers == nil:
		return r.fail(signal.CodeEnvelopeMethod, "method "+m.Method+" is not served here")
	case m.Kind != jsonrpc.Request && !notice:
		return r.fail(signal.CodeEnvelopeInvalid, m.Method+" needs an id")
	case m.Variants != nil:
		return r.ambiguous(m.Variants)
	}
	r.row, r.server, r.about.Arguments = row, r.in.Route, json.RawMessage("{}")
	if f := r.receiveParams(m); f != nil {
		return f
	}
	if row.about != "" && !r.readAbout() {
		return r.fail(signal.CodeEnvelopeInvalid, "params do not say what "+m.Method+" is about")
	}
	if notice { // its road has no stage resolve
		return r.findServer(ctx)
	}
	return nil
}

// receiveParams keeps the params but for the members of _meta of this hop.
func (r *relayed) receiveParams(m *jsonrpc.Message) *Failure {
	r.body = json.RawMessage("{}")
	if m.Params != nil {
		r.body = m.Params
	}
	if meta, ok := m.Param("_meta"); ok {
		if f := r.receiveMeta(meta); f != nil {
			return f
		}
		return r.setParams(jsonrpc.Change{Name: "_meta", Value: r.meta})
	}
	r.digest = digest(r.body)
	return nil
}

// resolve finds the server and what the request is about there.
func (r *relayed) resolve(ctx context.Context) *Failure {
	if r.row.find == nil {
		return r.fail(signal.CodeEnvelopeMethod, r.method+" is a list, which is not relayed")
	}
	if f := r.row.find(r, ctx); f != nil {
		return f
	}
	return r.stop(ctx)
}

// stop refuses a request that people have stopped. A stopped principal may end its tasks, which would
// go on otherwise, but not at a stopped server.
func (r *relayed) stop(ctx context.Context) *Failure {
	if r.method != "tasks/cancel" {
		return r.call.stop(ctx)
	}
	if by := r.gate.opts.Stops.Find(new(policy.Principal), r.server, ""); by != nil {
		return r.stopped(by, "")
	}
	return nil
}

// decide asks the policy. Only a tool call can wait for a person, so that a hold
// is a denial. The requester's own tickets are not judged.
func (r *relayed) decide(ctx context.Context) *Failure {
	if r.ticket.ID != "" {
		r.decision = ownTickets(r.engine)
		return nil
	}
	r.judgeRelayed(ctx)
	reason := r.decision.Reason
	switch r.decision.Effect {
	case policy.Allow:
		return nil
	case policy.Hold: // the record keeps the policy's own reason and the approval that it wants
		reason = "the policy wants a person to decide, and only tool calls can wait for one"
	}
	return r.denied(reason)
}

// judgeRelayed asks the policy about what the request is about.
func (r *relayed) judgeRelayed(ctx context.Context) {
	in := r.about
	in.Action = cmp.Or(r.row.action, r.method)
	r.judge(ctx, &in)
}

// limit takes quota; rules know the request by its method and server.
func (r *relayed) limit(context.Context) *Failure {
	if r.row.free {
		return nil
	}
	subject := policy.Tool{Server: r.server, Name: r.method, Exposed: r.method}
	if over := r.gate.opts.Limiter.Spend(r.start, r.principal, subject, r.decision.Limit); over != nil {
		return r.limited(over)
	}
	return nil
}

// forward sends the judged bytes and replies with the upstream's result. A task
// that is a ticket is answered here; a request for all servers, which is the log
// level, travels with every later request to each. The answer about a task is held
// to the decision under which the task was begun.
func (r *relayed) forward(ctx context.Context) *Failure {
	if r.ticket.ID != "" {
		return r.answerTicket(ctx)
	}
	ctx, _ = r.gate.running.begin(ctx, &r.call)
	defer r.gate.running.end(&r.call)
	if f := r.stop(ctx); f != nil {
		return f
	}
	r.sent = true
	result, kernel := json.RawMessage("{}"), signal.Skip("each later request carries it to its server", r.metrics())
	if r.server != "" {
		var err error
		result, err = r.gate.enquire(ctx, r.server, registry.Ask{Method: r.method, Params: r.body, From: r.from(r.server), Progress: r.in.Progress, Listen: r.in.Listen})
		if err != nil {
			return r.elicited(ctx, r.askFailure(ctx, err))
		}
		kernel = signal.OK(nil, r.metrics())
	}
	if !isObject(result) {
		return r.fail(signal.CodeOutputInvalid, "the server's result is no object")
	}
	result = r.spellHidden(result)
	var f *Failure
	switch {
	case r.of != nil && r.method == "tasks/result":
		result, f = r.governTaskResult(ctx, result)
	case r.of != nil && r.method == "tasks/get":
		result, f = r.governTaskState(ctx, result)
	case r.row.list != "":
		result, f = r.governDirectory(ctx, result)
	}
	if f != nil {
		return f
	}
	if r.of != nil {
		result = r.in.nameTask(result, r.of.ID)
	}
	if r.kernel != nil {
		kernel = *r.kernel
	}
	if f = r.replyRedacted(result, kernel, r.decision.Redact); f == nil && r.about.Resource != nil && r.in.Route == "" {
		r.session().Subscribe(r.method, r.name, r.server)
	}
	return f
}

// spellHidden notes the kinds of hidden characters in what a server sent that is no
// tool's result, and returns it with those in its texts spelled out, if so configured.
func (c *call) spellHidden(sent json.RawMessage) json.RawMessage {
	c.unseen = text.HiddenKinds(sent)
	if c.unseen != nil && slices.Contains(c.gate.settings.Load().EscapeHidden, c.server) {
		return jsonrpc.MapTexts(sent, text.EscapeHidden)
	}
	return sent
}

// replyRedacted replies with a result without what pointers name.
func (r *relayed) replyRedacted(result json.RawMessage, kernel signal.Result, pointers []string) *Failure {
	result, err := redact(result, pointers)
	if err != nil {
		return r.internal("redacting an answer", err)
	}
	return r.replyWith(result, kernel)
}

// enquire is the one place where servers are asked for what is no tool call:
// judged requests, and lists, whose elements are judged one by one.
func (g *Gate) enquire(ctx context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	if g.opts.Tracer == nil {
		return g.opts.Servers.Ask(ctx, server, ask)
	}
	traced, trace := g.startOutgoing(ctx, server, ask.Method, "")
	defer traced.done()
	ask.Trace = trace
	result, err := g.opts.Servers.Ask(traced.ctx, server, ask)
	traced.note(result, err)
	return result, err
}

// askFailure says why an upstream gave no result.
func (r *relayed) askFailure(ctx context.Context, err error) *Failure {
	return r.upstreamFailure(ctx, forwardError(err), "server "+r.server+" did not answer in time")
}

// noticeRoad lists the stages of a client's notification, but for close. The
// comment of Notify draws it; a test holds the two equal.
var noticeRoad = []stage[*relayed]{
	{"receive", (*relayed).receive},
	{"identify", (*relayed).identify},
	{"stop", (*relayed).stop},
	{"decide", (*relayed).decide},
	{"limit", (*relayed).limit},
	{"record", (*relayed).record},
	{"forward", (*relayed).notifyServers},
}

// Notify takes a client's notification to the servers that its session is
// connected to: on the route of one server to that one, else to all. Those
// without content to judge need a principal only; those of extensions go down
// the road:
//
//	receive    the method has a row, or the operator named it for the server
//	identify   the credential names a principal
//	stop       people have not stopped the principal or the server
//	decide     the policy allows it; what it would hold is denied
//	limit      every bucket that applies gives a token
//	record     the decision is in the audit trail
//	forward    the judged bytes go to the servers
//	close      one outcome record, on every path
//
// A notification is not answered: the failure, nil when it was passed on, is for
// the log. A method that no table names leaves no record.
func (g *Gate) Notify(ctx context.Context, in *Call) *Failure {
	r := g.newRelayed(in)
	if in.Message == nil || g.opts.Servers == nil {
		return r.fail(signal.CodeEnvelopeInvalid, "there is no notification, or nobody to take it to")
	}
	ofTask, ok := clientNotices[r.method]
	switch {
	case !ok && isNotice(r.method) && g.extends(in.Route, r.method):
		_, f := runRoad(ctx, r, &r.call, noticeRoad)
		return f
	case !ok:
		return r.fail(signal.CodeEnvelopeMethod, "notification "+r.method+" is not passed on")
	}
	if f := cmp.Or(r.identify(ctx), r.stop(ctx)); f != nil {
		return f
	}
	server := in.Route
	if ofTask { // it goes to the server that has begun the task, and to no other
		if server = r.session().Asker(server, textMember(in.Message.Params, "taskId"), r.start); server == "" {
			return r.unknownTask()
		}
	}
	g.opts.Servers.Notify(server, in.Session, r.method, in.Message.Params)
	return nil
}

// extends reports whether the operator named a method of an extension for server.
func (g *Gate) extends(server, method string) bool {
	return server != "" && slices.Contains(g.settings.Load().Methods[server], method)
}

// methodListen passes with Call.Listen only: a door answers it, and asks servers for what it does not
// know.
const methodListen = "subscriptions/listen"

// Listens returns the servers of a route, "" for all, for which the operator named
// subscriptions/listen: they get the members of a listener's filter that toolgate does not know.
// The policy decides about each.
func (g *Gate) Listens(route string) []string {
	var servers []string
	for server := range g.settings.Load().Methods {
		if (route == "" || route == server) && g.extends(server, methodListen) {
			servers = append(servers, server)
		}
	}
	slices.Sort(servers)
	return servers
}

// isNotice reports whether method names a notification.
func isNotice(method string) bool { return strings.HasPrefix(method, "notifications/") }

// notifyServers sends the judged bytes. Nobody learns whether a server reads them.
func (r *relayed) notifyServers(context.Context) *Failure {
	r.sent = true
	r.gate.opts.Servers.Notify(r.server, r.in.Session, r.method, r.body)
	return r.replyOK(nil)
}

// method is the row of a method that calls no tool.
type method struct {
	action string // what the policy is asked, input.action; "" = the method's own name
	free   bool   // costs no quota
	about  string // member of params that says what a request is about, "" for none
	// find finds the server of a request and the policy's view of what it is
	// about; nil for lists, whose elements are judged one by one.
	find func(r *relayed, ctx context.Context) *Failure
	list string // member of the result that holds the list, "" for no list
	key  string // member of an element that names it
	// needs is the capability of servers that have such a list, or of clients that get
	// such a question.
	needs []string
}

// methods has every request of clients that is relayed, and lists those that are
// answered by Enumerate. A method without a row is refused: nothing is passed on
// by omission. Methods of extensions are in the configuration.
var methods = map[string]method{
	"resources/read":        {about: "uri", find: (*relayed).findResource},
	"resources/subscribe":   {action: "resources/read", about: "uri", find: (*relayed).findResource},
	"resources/unsubscribe": {action: "resources/read", about: "uri", find: (*relayed).findResource, free: true},
	"prompts/get":           {about: "name", find: (*relayed).findPrompt},
	"completion/complete":   {about: "ref", find: (*relayed).findReference, free: true},
	"logging/setLevel":      {about: "level", find: (*relayed).findTools, free: true},

	// A skill is the resource of its SKILL.md (SEP-2640).
	"skills/get":               {action: "resources/read", about: "uri", find: (*relayed).findResource},
	"resources/directory/read": {action: "resources/read", about: "uri", find: (*relayed).findResource, list: session.Resource},

	"tasks/get":    {about: "taskId", find: (*relayed).findTask, free: true},
	"tasks/result": {about: "taskId", find: (*relayed).findTask, free: true},
	"tasks/update": {about: "taskId", find: (*relayed).findUpdated, free: true},
	"tasks/cancel": {about: "taskId", find: (*relayed).findTask, free: true},
}

var lists = map[string]method{
	"resources/list":           {action: "resources/read", list: session.Resource, key: "uri", needs: []string{"resources"}},
	"resources/templates/list": {action: "resources/read", list: session.Template, key: "uriTemplate", needs: []string{"resources"}},
	"skills/list":              {action: "resources/read", list: session.Skill, key: "uri", needs: []string{"extensions", "io.modelcontextprotocol/skills"}},
	"prompts/list":             {action: "prompts/get", list: session.Prompt, key: "name", needs: []string{"prompts"}},
	"tasks/list":               {free: true, list: "tasks", key: "taskId", needs: []string{"tasks", "list"}},
}

// questions has every request of servers that is relayed to their clients.
var questions = map[string]method{
	"sampling/createMessage": {needs: []string{"sampling"}},
	"elicitation/create":     {needs: []string{"elicitation"}},
	"roots/list":             {needs: []string{"roots"}, free: true},

	"tasks/get":    {needs: []string{"tasks"}, free: true},
	"tasks/result": {needs: []string{"tasks"}, free: true},
	"tasks/list":   {needs: []string{"tasks", "list"}, free: true},
	"tasks/cancel": {needs: []string{"tasks", "cancel"}, free: true},
}

// Limited reports whether a rule for rates may name a method of MCP in place of a
// tool: it costs quota. Those of extensions do too.
func Limited(name string) bool {
	row, ok := methods[name]
	if !ok {
		row, ok = questions[name]
	}
	return ok && !row.free
}

// clientNotices is every notification of clients that is passed to servers, and
// serverNotices every one of servers that is passed to clients: true for those
// about a task, which pass only when the session has it. All others are dropped,
// and those of servers counted. There is nothing in them for a policy to judge;
// those of extensions, which the configuration names, are judged when they come
// from clients.
var (
	clientNotices = map[string]bool{
		"notifications/roots/list_changed": false,
		"notifications/tasks/status":       true,
	}
	serverNotices = map[string]bool{
		"notifications/message":                false,
		"notifications/resources/updated":      false,
		"notifications/resources/list_changed": false,
		"notifications/prompts/list_changed":   false,
		"notifications/elicitation/complete":   false,
		"notifications/tasks/status":           true,
		"notifications/tasks":                  true,
	}
)

// Levels are the severities of log messages, the least severe first (MCP
// server/utilities/logging, after RFC 5424). It must not be changed.
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// readAbout reads from the params what a request is about, and reports false when
// they do not say it.
func (r *relayed) readAbout() bool {
	switch r.name = textMember(r.body, r.row.about); r.row.about {
	case "name":
		if args, ok := jsonrpc.Get(r.body, "arguments"); ok {
			r.about.Arguments = args
		}
		return r.name != "" && isObject(r.about.Arguments)
	case "ref": // MCP server/utilities/completion
		ref, _ := jsonrpc.Get(r.body, "ref")
		switch r.name = ""; textMember(ref, "type") {
		case "ref/prompt":
			r.name = textMember(ref, "name")
		case "ref/resource":
			r.name = textMember(ref, "uri")
		}
	case "taskId":
		r.about.Arguments = r.body
	case "level":
		return slices.Contains(Levels, r.name)
	}
	return r.name != ""
}

// lacks names the capability that a question needs and its client has not declared,
// "" when it has all. Tools in sampling are a capability of their own, a client that
// declares no mode of elicitation has forms, and so are answers by a task (MCP
// 2025-11-25).
func (r *relayed) lacks() string {
	kind, what, _ := strings.Cut(r.method, "/")
	has := func(key string) bool { _, ok := jsonrpc.Get(r.body, key); return ok }
	needs := [][]string{r.row.needs}
	switch mode := textMember(r.body, "mode"); {
	case kind == "sampling" && (has("tools") || has("toolChoice")):
		needs = append(needs, []string{kind, "tools"})
	case kind != "elicitation":
	case has("mode") && mode != "form":
		needs = append(needs, []string{kind, mode})
	case offers(r.in.Capabilities, kind, "url"):
		needs = append(needs, []string{kind, "form"})
	}
	if has("task") && (kind == "sampling" || kind == "elicitation") {
		needs = append(needs, []string{"tasks", "requests", kind, what})
	}
	for _, path := range needs {
		if !offers(r.in.Capabilities, path...) {
			return strings.Join(path, ".")
		}
	}
	return ""
}

// offers reports whether capabilities, a client's or a server's, have what path
// names: each step is a member whose value is an object.
func offers(at json.RawMessage, path ...string) bool {
	for _, step := range path {
		inner, ok := jsonrpc.Get(at, step)
		if !ok || !isObject(inner) {
			return false
		}
		at = inner
	}
	return true
}
