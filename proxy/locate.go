package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of looking for what no list of the session has named.
const (
	lookFor   = 5 * time.Second // all servers together
	lookPages = 20              // of each list
	maxLooks  = 3               // for one request, while the lists change under it
)

// findServer is for requests about the one server of the route.
func (r *relayed) findServer(context.Context) *Failure {
	r.about.Arguments, r.about.Server = r.body, &policy.Server{Name: r.server}
	return nil
}

// findTools is for requests about the tools of the route, all servers' where all
// servers are.
func (r *relayed) findTools(ctx context.Context) *Failure {
	names := []string{}
	for _, t := range r.gate.opts.Upstreams.View(ctx, r.in.Route, r.from(r.server)).Tools() {
		names = append(names, t.Exposed)
	}
	r.about.Arguments, r.about.Server = r.body, &policy.Server{Name: r.server, Tools: names}
	return nil
}

// findResource finds the server of a resource. A subscription ends where it was
// begun, wherever the resource is by now.
func (r *relayed) findResource(ctx context.Context) *Failure {
	kinds := []string{session.Resource, session.Skill, session.Template}
	switch r.method {
	case "skills/get":
		kinds = []string{session.Skill, session.Resource, session.Template}
	case "resources/unsubscribe":
		kinds = []string{session.Subscription, session.Resource, session.Template}
	case "completion/complete": // of a template, or of a resource that is none
		kinds = []string{session.Template, session.Resource}
	}
	at, ok := r.locate(ctx, kinds...)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no server has the resource %q", r.name)).remedy("list the resources with resources/list")
	}
	r.server, r.about.Resource = at.Server, &policy.Resource{Server: at.Server, URI: at.Name}
	return nil
}

// findPrompt finds the server of a prompt, and puts the server's own name in
// place of the exposed one, which is a member of params or, for a completion, of
// its ref.
func (r *relayed) findPrompt(ctx context.Context) *Failure {
	at, ok := r.locate(ctx, session.Prompt)
	if !ok {
		return r.fail(signal.CodeNotFound, fmt.Sprintf("no prompt is called %q", r.name)).remedy("list the prompts with prompts/list")
	}
	r.server, r.about.Prompt = at.Server, &policy.Prompt{Server: at.Server, Name: at.Name}
	if at.Name == r.name {
		return nil
	}
	named := jsonrpc.Change{Name: "name", Value: jsonrpc.Quote(at.Name)}
	if r.method == "completion/complete" {
		named = jsonrpc.Change{Name: "ref", Members: []jsonrpc.Change{named}}
	}
	return r.setParams(named)
}

// findReference finds what a completion is for: a prompt, or a resource by its uri.
func (r *relayed) findReference(ctx context.Context) *Failure {
	if ref, _ := jsonrpc.Get(r.body, "ref"); textMember(ref, "type") == "ref/prompt" {
		return r.findPrompt(ctx)
	}
	return r.findResource(ctx)
}

// locate finds where something of one of kinds is. On the route of one server it
// is there. Where all servers are, it is where a list of the session had it, else the
// server whose tool linked to it, for this session or this principal, else
// where a look at all lists finds it: the first configured server that lists it,
// then the first whose template describes it.
func (r *relayed) locate(ctx context.Context, kinds ...string) (at session.Place, ok bool) {
	if r.in.Route != "" {
		return session.Place{Server: r.in.Route, Name: r.name}, true
	}
	s := r.session()
	if at, ok = s.Find(r.name, kinds...); !ok && slices.Contains(kinds, session.Resource) {
		at, ok = r.ownLinks().Linked(r.name)
	}
	for look := 0; !ok && look < maxLooks; look++ {
		read := s.Look(r.start, func() { r.readLists(ctx) })
		at, ok = s.Find(r.name, kinds...)
		if !read { // no list has changed since they were read
			break
		}
	}
	return at, ok
}

// readLists reads all lists of all servers, side by side: a slow server keeps
// nobody longer than lookFor.
func (r *relayed) readLists(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, lookFor)
	defer stop()
	var servers sync.WaitGroup
	for _, o := range r.gate.opts.Servers.Offers(ctx) {
		servers.Go(func() {
			defer survive(r.gate.opts.Log.With("decision", r.decisionID), "looking for a resource")
			for name, m := range lists {
				if m.list != "tasks" && offers(o.Capabilities, m.needs...) {
					r.readList(ctx, o, name, m)
				}
			}
		})
	}
	servers.Wait()
}

// survive keeps a panic in a goroutine of a request from ending the program.
func survive(log hclog.Logger, doing string) {
	if v := recover(); v != nil {
		log.Error("panic while "+doing, "panic", fmt.Sprint(v))
	}
}

// readList reads one list of one server, for the places of what it names.
func (r *relayed) readList(ctx context.Context, o registry.Offer, name string, m method) {
	own := *r
	own.row, own.method, own.body = m, name, noMembers
	own.origin = nil // its peers are changed
	w := gathering{relayed: &own, offers: []registry.Offer{o}, look: true}
	for pages := 0; pages < lookPages && w.at == 0; pages++ {
		_ = w.addPage(ctx) // logs its error
	}
}

// session returns what is remembered of the session of c, which may be nothing so far.
func (c *call) session() *session.Session {
	return c.gate.sessions.Of(session.Owner{Session: c.in.Session, Subject: c.principal.Subject, Tenant: c.principal.Tenant})
}

// EndSession forgets what the gate remembers of a session that is over: its
// tasks, and where its resources and prompts are.
func (g *Gate) EndSession(session string) { g.sessions.End(session) }

// ListChanged forgets where resources and prompts are, because a server says to
// everybody that one of its lists has changed.
func (g *Gate) ListChanged(string, string) { g.sessions.Unlist() }

// rememberLinks remembers, for the session and for the principal, that the server of t
// has what its result links to (MCP server/tools, "Resource Links").
func (t *toolCall) rememberLinks(result json.RawMessage) {
	content, _ := jsonrpc.Get(result, "content")
	for block := range jsonrpc.Elements(content) {
		if uri := textMember(block, "uri"); textMember(block, "type") == "resource_link" && uri != "" {
			t.session().Link(uri, t.tool.Server)
			t.ownLinks().Link(uri, t.tool.Server)
		}
	}
}

// ownLinks returns what is remembered of the principal, whatever its session: a client
// that connects again reads what it was given.
func (c *call) ownLinks() *session.Session {
	return c.gate.sessions.Of(session.Owner{Subject: c.principal.Subject, Tenant: c.principal.Tenant})
}
