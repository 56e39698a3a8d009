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
	p := g.enter(in)
	p.stage, p.principal = "receive", who
	if f := receiveRelay(ctx, g, p); f != nil {
		return nil, f
	}
	switch {
	case p.method.list == "":
		return nil, p.fail(signal.CodeEnvelopeMethod, "method "+in.Message.Method+" asks for no list")
	case in.Route == "":
		return g.gather(ctx, p)
	}
	return g.pageOf(ctx, p)
}

// pageOf is a page of the one server of the route: its own, but for what the
// principal may not use, and for the cursor, which is one of ours.
func (g *Gate) pageOf(ctx context.Context, p *passage) (json.RawMessage, *Failure) {
	w := &gathering{offers: []registry.Offer{{Server: p.in.Route}}}
	if f := w.begin(p); f != nil {
		return nil, f
	}
	params, f := w.params(p)
	if f != nil {
		return nil, f
	}
	own := g.ownTasks(ctx, p)
	page, f := g.page(ctx, p, w.offers[0], params)
	switch {
	case f != nil && own != nil: // the server may have no tasks at all
		return own, nil
	case f != nil:
		return nil, f
	case own != nil:
		w.add(own, p.method.list)
		w.add(page, p.method.list)
		if page, f = w.whole(p, page); f != nil {
			return nil, f
		}
	}
	raw, _ := jsonrpc.Get(page, "nextCursor")
	if w.cursor, _ = jsonrpc.Text(raw); w.cursor == "" {
		return page, nil
	}
	page, err := jsonrpc.Set(page, "nextCursor", jsonrpc.Quote(w.next(p)))
	if err != nil || len(w.cursor) > cursorBytes {
		return nil, p.fail(signal.CodeOutputInvalid, "the answer's cursor cannot be carried")
	}
	return page, nil
}

// page is one server's page as the principal may see it.
func (g *Gate) page(ctx context.Context, p *passage, o registry.Offer, params json.RawMessage) (json.RawMessage, *Failure) {
	p.server = o.Server
	result, err := g.enquire(ctx, o.Server, registry.Ask{Method: p.in.Message.Method, Params: params, From: g.from(p)})
	if err != nil {
		return nil, p.askFailure(err)
	}
	return p.filter(result, p.method.list, p.method.key, func(name string, element json.RawMessage) (json.RawMessage, bool) {
		if p.in.Route == "" {
			g.memory.place(p, o, name)
		}
		if !g.usable(ctx, p, name) {
			return nil, false
		}
		return p.exposed(o, name, element)
	})
}

// exposed is an element as the route lists it: prompts of several servers are
// told apart as their tools are.
func (p *passage) exposed(o registry.Offer, name string, element json.RawMessage) (json.RawMessage, bool) {
	if p.method.list != "prompts" || o.Prefix == "" {
		return element, true
	}
	renamed, err := jsonrpc.Set(element, "name", jsonrpc.Quote(o.Prefix+name))
	return renamed, err == nil
}

// filter takes out of a list what keep does not keep. An element without a name
// is taken out too.
func (p *passage) filter(answer json.RawMessage, list, key string, keep func(name string, element json.RawMessage) (json.RawMessage, bool)) (json.RawMessage, *Failure) {
	elements, ok := jsonrpc.Get(answer, list)
	if !ok || len(elements) == 0 || elements[0] != '[' {
		return nil, p.fail(signal.CodeOutputInvalid, "the answer holds no list")
	}
	kept := []byte{'['}
	for element := range jsonrpc.Elements(elements) {
		raw, _ := jsonrpc.Get(element, key)
		name, ok := jsonrpc.Text(raw)
		if ok {
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
		return nil, p.fail(signal.CodeOutputInvalid, "the answer cannot be read")
	}
	return out, nil
}

// usable asks the policy about one element of a list. A task is one that the
// session has.
func (g *Gate) usable(ctx context.Context, p *passage, name string) bool {
	p.resource, p.prompt, p.whole = nil, nil, nil
	switch p.method.list {
	case "prompts":
		p.prompt = &policy.Prompt{Server: p.server, Name: name}
	case "tasks":
		t := g.memory.task(p.owner(), name, p.now)
		if t == nil || t.server != p.server {
			return false
		}
		p.whole = &policy.Server{Name: p.server, Tools: []string{t.tool.Exposed}}
	default:
		p.resource = &policy.Resource{Server: p.server, URI: name}
	}
	d, err := p.engine.Decide(ctx, p.relayInput())
	if err != nil {
		g.opts.Log.Error("asking the policy what is visible", "server", p.server, "name", name, "error", err)
	}
	return err == nil && d.Effect == policy.Allow
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
func (g *Gate) gather(ctx context.Context, p *passage) (json.RawMessage, *Failure) {
	w := &gathering{offers: slices.DeleteFunc(g.opts.Servers.Offers(ctx), func(o registry.Offer) bool {
		return !offers(o.Capabilities, p.method.needs...)
	})}
	if f := w.begin(p); f != nil {
		return nil, f
	}
	if own := g.ownTasks(ctx, p); own != nil {
		w.answered = true
		w.add(own, p.method.list)
	}
	for asked := 0; w.at < len(w.offers) && asked < pageRequests && w.count < pageElements; asked++ {
		if given := w.cursor != ""; !g.gatherOne(ctx, p, w) && asked == 0 && given {
			return nil, w.failure // the place that the caller named is not there
		}
	}
	if !w.answered && w.failure != nil && w.at == len(w.offers) {
		return nil, w.failure
	}
	out := append(append([]byte(`{"`+p.method.list+`":[`), w.elements...), ']')
	if w.at < len(w.offers) {
		out = append(append(out, `,"nextCursor":`...), jsonrpc.Quote(w.next(p))...)
	}
	return append(out, '}'), nil
}

// gatherOne adds the next page of the server whose turn it is, and goes on to
// the next server after its last. It reports whether the server gave one.
func (g *Gate) gatherOne(ctx context.Context, p *passage, w *gathering) (ok bool) {
	o := w.offers[w.at]
	params, f := w.params(p)
	if f != nil {
		w.failure, w.at = f, len(w.offers)
		return false
	}
	page, f := g.page(ctx, p, o, params)
	next := ""
	if f == nil {
		w.answered = true
		w.add(page, p.method.list)
		raw, _ := jsonrpc.Get(page, "nextCursor")
		next, _ = jsonrpc.Text(raw)
	} else {
		g.opts.Log.Warn("leaving a server out of a list", "server", o.Server, "method", p.in.Message.Method, "error", f.Reason)
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
func (w *gathering) params(p *passage) (json.RawMessage, *Failure) {
	params, err := jsonrpc.Delete(p.params, "cursor")
	if err == nil && w.cursor != "" {
		params, err = jsonrpc.Set(params, "cursor", jsonrpc.Quote(w.cursor))
	}
	if err != nil {
		return nil, p.fail(signal.CodeEnvelopeInvalid, "params cannot be read")
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
func (w *gathering) whole(p *passage, page json.RawMessage) (json.RawMessage, *Failure) {
	out, err := jsonrpc.Set(page, p.method.list, append(append([]byte{'['}, w.elements...), ']'))
	if err != nil {
		return nil, p.fail(signal.CodeOutputInvalid, "the answer cannot be read")
	}
	return out, nil
}

// Our own cursors say of which list they are, whose turn it is, and the cursor
// that this server gave.
const cursorMark = "list"

func (w *gathering) next(p *passage) string {
	parts := []string{cursorMark, p.in.Message.Method, w.offers[w.at].Server, w.cursor}
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
}

// begin goes to where the cursor of the request leads.
func (w *gathering) begin(p *passage) *Failure {
	raw, ok := jsonrpc.Get(p.params, "cursor")
	if !ok {
		return nil
	}
	text, _ := jsonrpc.Text(raw)
	plain, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.SplitN(string(plain), "\x00", 4)
	if err == nil && len(parts) == 4 && parts[0] == cursorMark && parts[1] == p.in.Message.Method && len(parts[3]) <= cursorBytes {
		w.cursor = parts[3]
		if w.at = slices.IndexFunc(w.offers, func(o registry.Offer) bool { return o.Server == parts[2] }); w.at >= 0 {
			return nil
		}
	}
	return p.fail(signal.CodeEnvelopeParams, "the cursor is none of ours or the list has changed: list again from the start")
}
