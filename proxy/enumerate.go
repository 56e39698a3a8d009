package proxy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of one page of a list over all servers.
const (
	pageElements = 1_000   // after which a page ends
	pageRequests = 50      // to servers, for one page
	cursorBytes  = 8 << 10 // of a server's cursor
)

// Enumerate answers a request for a list of resources, templates, prompts or
// tasks as who may use its elements. On the route of one server it is that
// server's page; where all servers are, one list follows the other, prompts under
// their exposed names. Cursors are our own. Like List it leaves no record.
func (g *Gate) Enumerate(ctx context.Context, in *Call, who policy.Principal) (json.RawMessage, *Failure) {
	r := g.newRelayed(in)
	r.principal = who
	if f := r.receive(ctx); f != nil {
		return nil, f
	}
	switch {
	case r.row.list == "":
		return nil, r.fail(signal.CodeEnvelopeMethod, "method "+in.Message.Method+" asks for no list")
	case in.Route == "":
		return r.gather(ctx)
	}
	return r.serverPage(ctx)
}

// serverPage is a page of the one server of the route: its own, but for what the
// principal may not use, and for the cursor, which is one of ours.
func (r *relayed) serverPage(ctx context.Context) (json.RawMessage, *Failure) {
	w := &gathering{offers: []registry.Offer{{Server: r.in.Route}}}
	if f := w.begin(r); f != nil {
		return nil, f
	}
	params, f := w.params(r)
	if f != nil {
		return nil, f
	}
	own := r.heldTasks(ctx)
	page, f := r.page(ctx, w.offers[0], params)
	switch {
	case f != nil && own != nil: // the server may have no tasks at all
		return own, nil
	case f != nil:
		return nil, f
	case own != nil:
		w.add(own, r.row.list)
		w.add(page, r.row.list)
		if page, f = w.whole(r, page); f != nil {
			return nil, f
		}
	}
	if w.cursor = textMember(page, "nextCursor"); w.cursor == "" {
		return page, nil
	}
	page, err := jsonrpc.Set(page, "nextCursor", jsonrpc.Quote(w.next(r)))
	if err != nil || len(w.cursor) > cursorBytes {
		return nil, r.fail(signal.CodeOutputInvalid, "the answer's cursor cannot be carried")
	}
	return page, nil
}

// page is one server's page as the principal may see it.
func (r *relayed) page(ctx context.Context, o registry.Offer, params json.RawMessage) (json.RawMessage, *Failure) {
	r.server = o.Server
	result, err := r.gate.enquire(ctx, o.Server, registry.Ask{Method: r.in.Message.Method, Params: params, From: r.from(r.server)})
	if err != nil {
		return nil, r.askFailure(err)
	}
	return r.filter(result, r.row.list, r.row.key, func(name string, element json.RawMessage) (json.RawMessage, bool) {
		if r.in.Route == "" {
			r.remember(o, name)
		}
		if !r.usable(ctx, name) {
			return nil, false
		}
		return r.exposed(o, name, element)
	})
}

// remember notes where an element of a list is.
func (r *relayed) remember(o registry.Offer, name string) {
	if kind := r.row.list; kind != "tasks" {
		r.gate.memory.put(&r.call, kind, o, name)
	}
}

// exposed is an element as the route lists it: prompts of several servers are
// told apart as their tools are.
func (r *relayed) exposed(o registry.Offer, name string, element json.RawMessage) (json.RawMessage, bool) {
	if r.row.list != "prompts" || o.Prefix == "" {
		return element, true
	}
	renamed, err := jsonrpc.Set(element, "name", jsonrpc.Quote(o.Prefix+name))
	return renamed, err == nil
}

// filter takes out of a list what keep does not keep. An element without a name
// is taken out too.
func (c *call) filter(answer json.RawMessage, list, key string, keep func(name string, element json.RawMessage) (json.RawMessage, bool)) (json.RawMessage, *Failure) {
	elements, ok := jsonrpc.Get(answer, list)
	if !ok || len(elements) == 0 || elements[0] != '[' {
		return nil, c.fail(signal.CodeOutputInvalid, "the answer holds no list")
	}
	kept := []byte{'['}
	for element := range jsonrpc.Elements(elements) {
		name, ok := textMember(element, key), false
		if name != "" {
			element, ok = keep(name, element)
		}
		if !ok {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, element...)
	}
	out, err := jsonrpc.Set(answer, list, append(kept, ']'))
	if err != nil {
		return nil, c.fail(signal.CodeOutputInvalid, "the answer cannot be read")
	}
	return out, nil
}

// usable asks the policy about one element of a list. A task is one that the
// session has.
func (r *relayed) usable(ctx context.Context, name string) bool {
	r.about = about{}
	switch r.row.list {
	case "prompts":
		r.about.prompt = &policy.Prompt{Server: r.server, Name: name}
	case "tasks":
		t := r.gate.memory.task(r.owner(), name, r.start)
		if t == nil || t.server != r.server {
			return false
		}
		r.about.server = &policy.Server{Name: r.server, Tools: []string{t.tool.Exposed}}
	default:
		r.about.resource = &policy.Resource{Server: r.server, URI: name}
	}
	r.judge(ctx, r.input())
	return r.decision.Effect == policy.Allow
}

// gathering is a page over all servers that is being put together.
type gathering struct {
	offers   []registry.Offer
	at       int    // the server whose turn it is
	cursor   string // of that server, "" for its first page
	elements []byte
	count    int
	answered bool
	failure  *Failure // of the last server that failed
}

// gather answers with one list after the other. A server that fails is left out:
// its neighbours' lists are worth having without it.
func (r *relayed) gather(ctx context.Context) (json.RawMessage, *Failure) {
	w := &gathering{offers: slices.DeleteFunc(r.gate.opts.Servers.Offers(ctx), func(o registry.Offer) bool {
		return !offers(o.Capabilities, r.row.needs...)
	})}
	if f := w.begin(r); f != nil {
		return nil, f
	}
	if own := r.heldTasks(ctx); own != nil {
		w.answered = true
		w.add(own, r.row.list)
	}
	for asked := 0; w.at < len(w.offers) && asked < pageRequests && w.count < pageElements; asked++ {
		if given := w.cursor != ""; !r.gatherOne(ctx, w) && asked == 0 && given {
			return nil, w.failure // the place that the caller named is not there
		}
	}
	if !w.answered && w.failure != nil && w.at == len(w.offers) {
		return nil, w.failure
	}
	out := append(append([]byte(`{"`+r.row.list+`":[`), w.elements...), ']')
	if w.at < len(w.offers) {
		out = append(append(out, `,"nextCursor":`...), jsonrpc.Quote(w.next(r))...)
	}
	return append(out, '}'), nil
}

// gatherOne adds the next page of the server whose turn it is, and goes on to
// the next server after its last. It reports whether the server gave one.
func (r *relayed) gatherOne(ctx context.Context, w *gathering) (ok bool) {
	o := w.offers[w.at]
	params, f := w.params(r)
	if f != nil {
		w.failure, w.at = f, len(w.offers)
		return false
	}
	page, f := r.page(ctx, o, params)
	next := ""
	if f == nil {
		w.answered = true
		w.add(page, r.row.list)
		next = textMember(page, "nextCursor")
	} else {
		r.gate.opts.Log.Warn("leaving a server out of a list", "server", o.Server, "method", r.in.Message.Method, "error", f.Reason)
		w.failure = f
	}
	if next == w.cursor || len(next) > cursorBytes { // it leads nowhere, or cannot be carried
		next = ""
	}
	if w.cursor = next; next == "" {
		w.at++
	}
	return f == nil
}

// params are those of the request with the server's own cursor in them.
func (w *gathering) params(r *relayed) (json.RawMessage, *Failure) {
	params, err := jsonrpc.Delete(r.body, "cursor")
	if err == nil && w.cursor != "" {
		params, err = jsonrpc.Set(params, "cursor", jsonrpc.Quote(w.cursor))
	}
	if err != nil {
		return nil, r.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
	}
	return params, nil
}

func (w *gathering) add(page json.RawMessage, list string) {
	elements, _ := jsonrpc.Get(page, list)
	for e := range jsonrpc.Elements(elements) {
		if len(w.elements) > 0 {
			w.elements = append(w.elements, ',')
		}
		w.elements = append(w.elements, e...)
		w.count++
	}
}

// whole is page with all elements in place of its own.
func (w *gathering) whole(r *relayed, page json.RawMessage) (json.RawMessage, *Failure) {
	out, err := jsonrpc.Set(page, r.row.list, append(append([]byte{'['}, w.elements...), ']'))
	if err != nil {
		return nil, r.fail(signal.CodeOutputInvalid, "the answer cannot be read")
	}
	return out, nil
}

// Our own cursors say of which list they are, whose turn it is, and the cursor
// that this server gave.
const cursorMark = "list"

func (w *gathering) next(r *relayed) string {
	parts := []string{cursorMark, r.in.Message.Method, w.offers[w.at].Server, w.cursor}
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
}

// begin goes to where the cursor of the request leads.
func (w *gathering) begin(r *relayed) *Failure {
	raw, ok := jsonrpc.Get(r.body, "cursor")
	if !ok {
		return nil
	}
	text, _ := jsonrpc.Text(raw)
	plain, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.SplitN(string(plain), "\x00", 4)
	if err == nil && len(parts) == 4 && parts[0] == cursorMark && parts[1] == r.in.Message.Method && len(parts[3]) <= cursorBytes {
		w.cursor = parts[3]
		if w.at = slices.IndexFunc(w.offers, func(o registry.Offer) bool { return o.Server == parts[2] }); w.at >= 0 {
			return nil
		}
	}
	return r.fail(signal.CodeEnvelopeParams, "the cursor is none of ours or the list has changed: list again from the start")
}
