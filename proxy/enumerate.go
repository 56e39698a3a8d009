package proxy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of one page of a list over all servers.
const (
	pageElements = 1_000   // after which a page ends
	pageRequests = 50      // to servers, for one page
	cursorBytes  = 8 << 10 // of a server's cursor
)

// Enumerate answers a request for a list of resources, templates, skills, prompts or
// tasks as who may use its elements. On the route of one server it is that
// server's page; where all servers are, one list follows the other, prompts under
// their exposed names, and a server that fails or is stopped is left out: its neighbours' lists
// are worth having without it. Cursors are our own. Like List it leaves no record.
func (g *Gate) Enumerate(ctx context.Context, in *Call, who policy.Principal) (_ json.RawMessage, failed *Failure) {
	r := g.newRelayed(in)
	r.principal = who
	if g.opts.Tracer != nil {
		ctx = r.startTrace(ctx)
		defer func() { r.endTrace(ctx, failed, g.opts.Now().Sub(r.start)) }()
	}
	if f := r.receive(ctx); f != nil {
		return nil, f
	}
	if f := r.stop(ctx); f != nil {
		return nil, f
	}
	if r.row.list == "" {
		return nil, r.fail(signal.CodeEnvelopeMethod, "method "+in.Message.Method+" asks for no list")
	}
	w, requests := gathering{relayed: r, page: json.RawMessage("{}"), offers: []registry.Offer{{Server: in.Route}}}, 1
	if in.Route == "" {
		requests = pageRequests
		w.offers = slices.DeleteFunc(g.opts.Servers.Offers(ctx), func(o registry.Offer) bool { return !offers(o.Capabilities, r.row.needs...) })
	}
	if f := w.begin(); f != nil {
		return nil, f
	}
	w.elements = r.heldTasks(ctx)
	var f *Failure
	answered := w.elements != nil
	for asked := 0; w.at < len(w.offers) && asked < requests && len(w.elements) < pageElements; asked++ {
		named := asked == 0 && w.cursor != ""
		if f = w.addPage(ctx); f != nil && named {
			return nil, f // the place that the caller named is not there
		}
		answered = answered || f == nil
	}
	if !answered && f != nil && w.at == len(w.offers) {
		return nil, f
	}
	return w.whole()
}

// gathering is a page that is being put together.
type gathering struct {
	*relayed
	offers   []registry.Offer
	at       int             // the server whose turn it is
	cursor   string          // of that server, "" for its first page
	page     json.RawMessage // what the elements are put into: of one server its own page
	elements [][]byte
	look     bool // remembers the places only, and gathers no element
}

// addPage adds the next page of the server whose turn it is, as the principal may
// see it, and continues with the next server after its last. A server that fails
// has no more pages.
func (w *gathering) addPage(ctx context.Context) *Failure {
	o, method := w.offers[w.at], w.method
	w.server = o.Server
	cursor := jsonrpc.Change{Name: "cursor"}
	if w.cursor != "" {
		cursor.Value = jsonrpc.Quote(w.cursor)
	}
	params, f := w.edited(w.body, cursor)
	if f == nil {
		f = w.stop(ctx)
	}
	next := ""
	if f == nil {
		page, err := w.gate.enquire(ctx, o.Server, registry.Ask{Method: method, Params: params, From: w.from(o.Server)})
		switch {
		case err == nil:
			if f = w.add(ctx, o, page); f == nil {
				next = textMember(page, "nextCursor")
			}
		case forwardError(err).Kind != registry.Unconnected: // clients list by themselves: no reason to ask a person to connect
			f = w.askFailure(ctx, err)
		}
	}
	if len(next) > cursorBytes && w.in.Route != "" {
		f = w.fail(signal.CodeOutputInvalid, "the answer's cursor cannot be carried")
	}
	if f != nil && w.in.Route == "" {
		// A server that declares resources may have no templates, and so no such method.
		if code, _ := jsonrpc.Get(f.Upstream, "code"); string(code) != "-32601" {
			w.gate.opts.Log.Warn("leaving a server out of a list", "server", o.Server, "method", method, "error", f.Reason)
		}
	}
	if f != nil || next == w.cursor || len(next) > cursorBytes { // it leads nowhere, or cannot be carried
		next = ""
	}
	if w.cursor = next; next == "" {
		w.at++
	}
	return f
}

// add adds the elements of a page of o that the principal may use. One without a
// name is left out.
func (w *gathering) add(ctx context.Context, o registry.Offer, page json.RawMessage) *Failure {
	kind := w.row.list
	if page = w.spellHidden(page); w.unseen != nil {
		w.gate.opts.Log.Warn("a list has hidden characters", "server", o.Server, "method", w.method, "kinds", w.unseen)
	}
	list, _ := jsonrpc.Get(page, kind)
	if len(list) == 0 || list[0] != '[' {
		return w.fail(signal.CodeOutputInvalid, "the answer holds no list")
	}
	for e := range jsonrpc.Elements(list) {
		name := textMember(e, w.row.key)
		if name != "" && w.in.Route == "" && kind != "tasks" {
			w.session().Put(kind, o, name)
			if kind == session.Skill {
				w.putFiles(o, e)
			}
		}
		if name == "" || w.look || !w.usable(ctx, name) {
			continue
		}
		if kind == session.Prompt && o.Prefix != "" { // told apart as tools are
			var err error
			if e, err = jsonrpc.Set(e, "name", jsonrpc.Quote(o.Prefix+name)); err != nil {
				continue
			}
		}
		w.elements = append(w.elements, e)
	}
	if w.in.Route != "" {
		w.page = page
	}
	return nil
}

// putFiles remembers that o has the files that a skill names.
func (w *gathering) putFiles(o registry.Offer, skill json.RawMessage) {
	files, _ := jsonrpc.Get(skill, "resources") // or the text "dynamic"
	for file := range jsonrpc.Elements(files) {
		if uri := textMember(file, "uri"); uri != "" {
			w.session().Put(session.Skill, o, uri)
		}
	}
}

// governDirectory keeps those of the children of a directory that who asks may read.
func (r *relayed) governDirectory(ctx context.Context, result json.RawMessage) (json.RawMessage, *Failure) {
	children, _ := jsonrpc.Get(result, r.row.list)
	if len(children) == 0 || children[0] != '[' {
		return nil, r.fail(signal.CodeOutputInvalid, "the answer holds no list")
	}
	child, readable := *r, [][]byte{}
	for e := range jsonrpc.Elements(children) {
		if uri := textMember(e, "uri"); uri != "" && child.usable(ctx, uri) {
			readable = append(readable, e)
		}
	}
	return r.edited(result, jsonrpc.Change{Name: r.row.list, Value: jsonrpc.Array(readable)})
}

// usable asks the policy about one element of a list. A task is one that the
// session has.
func (r *relayed) usable(ctx context.Context, name string) bool {
	r.about = policy.Input{Arguments: r.about.Arguments}
	switch r.row.list {
	case session.Prompt:
		r.about.Prompt = &policy.Prompt{Server: r.server, Name: name}
	case "tasks":
		t := r.session().Task("", name, r.start)
		if t == nil || t.Server != r.server {
			return false
		}
		r.about.Server = &policy.Server{Name: r.server, Tools: []string{t.Tool.Exposed}}
	default:
		r.about.Resource = &policy.Resource{Server: r.server, URI: name}
	}
	r.judgeRelayed(ctx)
	return r.decision.Effect == policy.Allow
}

// cursorMark begins our own cursors, which say of which list they are, whose turn
// it is, and the cursor that this server gave.
const cursorMark = "list"

// whole returns the page with what was gathered, and a cursor of ours if there is
// more.
func (w *gathering) whole() (json.RawMessage, *Failure) {
	changes, next := []jsonrpc.Change{{Name: w.row.list, Value: jsonrpc.Array(w.elements)}}, jsonrpc.Change{Name: "nextCursor"}
	if w.at < len(w.offers) {
		parts := []string{cursorMark, w.method, w.offers[w.at].Server, w.cursor}
		next.Value = jsonrpc.Quote(base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00"))))
	}
	if next.Value != nil || textMember(w.page, "nextCursor") != "" {
		changes = append(changes, next)
	}
	return w.edited(w.page, changes...)
}

// begin goes to where the cursor of the request leads.
func (w *gathering) begin() *Failure {
	raw, ok := w.in.Message.Param("cursor")
	if !ok {
		return nil
	}
	text, _ := jsonrpc.Text(raw)
	plain, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.SplitN(string(plain), "\x00", 4)
	if err == nil && len(parts) == 4 && parts[0] == cursorMark && parts[1] == w.method && len(parts[3]) <= cursorBytes {
		w.cursor = parts[3]
		if w.at = slices.IndexFunc(w.offers, func(o registry.Offer) bool { return o.Server == parts[2] }); w.at >= 0 {
			return nil
		}
	}
	return w.fail(signal.CodeEnvelopeParams, "the cursor is none of ours or the list has changed: list again from the start")
}
