package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/eventlog"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// clientGroup is what the door keeps between requests of clients without a
// session: the principal, the client, the route and the declared capabilities identify
// it. Upstream connections are kept for a group as they are for a session, and the
// group is the Home peer for notifications that belong to no request.
type clientGroup struct {
	account
	key   string // what the road sees
	route string
	named bool // the name of the client is part of key
	began time.Time
	names string // name/version that the client gave of itself, "" = none, or it shares the group

	extensions []string // that the client declares, as registry.ExtensionsIn names them

	streams eventlog.Streams
	onEnd   func(*clientGroup) // called once, under the table's mu
	work    atomic.Int64       // pieces of work under way

	mu        sync.Mutex   // protects the fields below
	calls     []*multiCall // under way that may ask, the oldest first
	listeners map[*listener]struct{}

	// watching protects the field below. It is held while the server is asked, so
	// that the last stream to leave and the next to come do not overtake each other.
	watching sync.Mutex
	watches  map[string]int // :: uri of a resource -> streams that it is subscribed for
}

// clientGroups holds the groups that are at work or were recently, and what principals
// use of limited resources.
type clientGroups struct {
	*table[*clientGroup]
	onEnd func(key string)

	// table.mu protects the fields below.
	named   map[owner]int      // groups of named clients
	listens map[owner]int      // open streams of notifications
	parked  *share.Pool[owner] // of calls that wait for their clients
}

// maxNamed bounds the groups that one principal has because its clients have names. Any
// further client shares the groups of those without a name.
const maxNamed = 64

// groupKey returns the key of a group. It can be computed only from all of who,
// client, route and capabilities: the name that a client claims separates clients of one
// principal, and joins none of two.
func groupKey(who policy.Principal, client, route string, capabilities json.RawMessage) string {
	sum := digestOf(who.Subject, who.Tenant, who.ClientID, client, route, string(capabilities))
	key := [4 + 32]byte{'p', 'r', 'n', '_'}
	hex.Encode(key[4:], sum[:16])
	return string(key[:])
}

// A digest names a row of texts.
type digest [sha256.Size]byte

func digestOf(parts ...string) digest {
	all := make([]byte, 0, 8*sha256.Size) // on the stack, where it is enough
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part))
		all = append(all, sum[:]...)
	}
	return sha256.Sum256(all)
}

// enter returns the group of a client of who on route and counts one unit of work until
// leave. It returns nil when the table is full of groups at work.
func (t *clientGroups) enter(who policy.Principal, client, route string, capabilities json.RawMessage) *clientGroup {
	key := groupKey(who, client, route, capabilities)
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.byKey[key]
	if g == nil && client != "" && t.named[ownerOf(who)] >= maxNamed {
		client, key = "", groupKey(who, "", route, capabilities)
		g = t.byKey[key]
	}
	if g == nil {
		g = &clientGroup{
			account: account{owner: ownerOf(who)}, streams: eventlog.Streams{Owner: ownerOf(who)}, key: key, route: route, named: client != "", began: t.now(), names: client, extensions: registry.ExtensionsIn(capabilities),
			onEnd: t.endedLocked, listeners: make(map[*listener]struct{}), watches: make(map[string]int),
		}
		if !t.putLocked(key, g) {
			return nil
		}
		if g.named {
			t.named[g.owner]++
		}
	}
	g.work.Add(1)
	return g
}

// endedLocked frees the place of g, and ends what the road keeps for it unless g is at
// work: that ends with the process. The caller must hold t.mu.
func (t *clientGroups) endedLocked(g *clientGroup) {
	if g.named {
		if t.named[g.owner]--; t.named[g.owner] == 0 {
			delete(t.named, g.owner)
		}
	}
	if !g.busy(false) {
		t.onEnd(g.key)
	}
}

// leave ends one unit of work.
func (t *clientGroups) leave(g *clientGroup) {
	g.touch(t.now())
	g.work.Add(-1)
}

// busy implements client.
func (g *clientGroup) busy(bool) bool { return g.work.Load() > 0 }

// end implements client.
func (g *clientGroup) end() { g.onEnd(g) }

// addStream counts a stream of notifications. It returns false when the owner of g has
// most of them.
func (t *clientGroups) addStream(g *clientGroup, most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listens[g.owner] >= most {
		return false
	}
	t.listens[g.owner]++
	return true
}

// removeStream ends what addStream counted.
func (t *clientGroups) removeStream(g *clientGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listens[g.owner]--; t.listens[g.owner] == 0 {
		delete(t.listens, g.owner)
	}
}

var _ registry.Peer = (*clientGroup)(nil)

// Ask puts questions that belong to no known request into the newest request
// that can carry questions: it comes from the same client. Without such a
// request the client cannot be asked.
func (g *clientGroup) Ask(ctx context.Context, round []registry.Question) []registry.Answer {
	g.mu.Lock()
	var e *multiCall
	if n := len(g.calls); n > 0 {
		e = g.calls[n-1]
	}
	g.mu.Unlock()
	if e == nil {
		return unanswered(round, "the client can be asked in the course of its own requests only")
	}
	return e.Ask(ctx, round)
}

// addCall registers a call whose servers may ask the client.
func (g *clientGroup) addCall(e *multiCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, e)
}

// removeCall unregisters m.
func (g *clientGroup) removeCall(e *multiCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = slices.DeleteFunc(g.calls, func(other *multiCall) bool { return other == e })
}

// Tell sends a notification to the listeners that want it.
func (g *clientGroup) Tell(method string, params json.RawMessage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for l := range g.listeners {
		if l.wants(method, params) {
			l.deliver(method, params)
		}
	}
}

// unanswered gives an error for each question.
func unanswered(round []registry.Question, reason string) []registry.Answer {
	all := make([]registry.Answer, len(round))
	for i := range all {
		all[i].Error = failed(reason)
	}
	return all
}

// resourceUpdated reports a change of a resource that a client listens for.
const resourceUpdated = "notifications/resources/updated"

// listenable are the notifications that a client can listen for (MCP
// 2026-07-28, subscriptions/listen).
var listenable = append(slices.Clone(listMethods), resourceUpdated)

// filters maps the members of a filter that ask for list changes to the
// notification, and to the capability that promises it.
var filters = []struct{ member, method, capability string }{
	{"toolsListChanged", toolsChanged, "tools"},
	{"promptsListChanged", "notifications/prompts/list_changed", "prompts"},
	{"resourcesListChanged", "notifications/resources/list_changed", "resources"},
}

// maxWatched bounds the resources of one stream. Those beyond are not
// acknowledged.
const maxWatched = 256

// maxWaiting bounds the notifications that wait for one reader.
const maxWaiting = 512

// Bounds of what one listener wants beyond what toolgate knows.
const (
	maxOtherBytes   = 4 << 10         // of the members of its filter
	maxOtherServers = 8               // that get them
	otherTimeout    = 5 * time.Second // for the acknowledgement of one
)

// A listener is one open subscriptions/listen request. As a registry.Peer it receives the
// notifications that toolgate does not know.
type listener struct {
	id     json.RawMessage  // of the request
	lists  []string         // the changes of lists that it wants
	uris   []string         // the resources whose updates it wants
	others []jsonrpc.Change // members that toolgate does not know, as servers have acknowledged them
	lost   chan struct{}    // holds a token when a server has ended its stream for others
	wake   chan struct{}    // holds a token when something waits

	mu      sync.Mutex // protects the field below
	waiting [][]byte   // messages to send
}

// wants reports whether l listens for a notification. An update may name a part
// of the resource that l listens for.
func (l *listener) wants(method string, params json.RawMessage) bool {
	if method != resourceUpdated {
		return slices.Contains(l.lists, method)
	}
	uri, ok := jsonrpc.TextAt(params, "uri")
	return ok && slices.ContainsFunc(l.uris, func(own string) bool { return within(uri, own) })
}

// within reports whether uri is own or below own.
func within(uri, own string) bool {
	if len(uri) <= len(own) || own == "" {
		return uri == own
	}
	next := uri[len(own)]
	return uri[:len(own)] == own && (own[len(own)-1] == '/' || next == '/' || next == '#' || next == '?')
}

// deliver queues a notification under the id of l. It never blocks: it drops a
// notification that is queued already, and one beyond maxWaiting.
func (l *listener) deliver(method string, params json.RawMessage) {
	message, ok := l.tagged(method, params)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(other []byte) bool { return string(other) == string(message) }
	if len(l.waiting) < maxWaiting && !slices.ContainsFunc(l.waiting, same) {
		l.waiting = append(l.waiting, message)
		wait.Signal(l.wake)
	}
}

// take returns and clears the queue.
func (l *listener) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// tagged returns a notification that names the request of l.
func (l *listener) tagged(method string, params json.RawMessage) ([]byte, bool) {
	if params == nil {
		params = json.RawMessage("{}")
	}
	message, err := wire.CreateNotification(method, setIn(params, l.id, "_meta", metaSubscription))
	return message, err == nil
}

// acknowledgement returns the first message of a stream, which names what l
// listens for.
func (l *listener) acknowledgement() []byte {
	filter := json.RawMessage("{}")
	for _, f := range filters {
		if slices.Contains(l.lists, f.method) {
			filter = setIn(filter, json.RawMessage("true"), f.member)
		}
	}
	if len(l.uris) > 0 {
		filter = setIn(filter, quoted(l.uris...), "resourceSubscriptions")
	}
	for _, other := range l.others {
		filter = setIn(filter, other.Value, other.Name)
	}
	message, _ := l.tagged("notifications/subscriptions/acknowledged", setIn(json.RawMessage("{}"), filter, "notifications"))
	return message
}

// serveListener serves the subscriptions/listen request x until its client
// leaves, its credential is no longer valid, or the door closes. It returns the
// answer that ends the stream.
func (s *statelessServer) serveListener(ctx context.Context, x *exchange, send func([]byte)) answer {
	filter, _ := x.call.Message.Param("notifications")
	if !isObject(filter) {
		return s.refuse(x, signal.CodeEnvelopeParams, "params.notifications must be an object")
	}
	p := x.stateless.group
	if !s.groups.addStream(p, s.opts.MaxListens) {
		return s.refuse(x, signal.CodeOverloaded, "too many streams are open")
	}
	defer s.groups.removeStream(p)
	life, end := context.WithCancel(ctx)
	defer end()
	l := &listener{id: x.id, lists: s.listsFor(x, filter), lost: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	l.uris = s.watchAll(ctx, x, filter)
	defer s.unwatchAll(x, l.uris)
	p.addListener(l)
	defer p.removeListener(l)
	s.listenForOthers(life, x, l, filter)
	send(l.acknowledgement())
	return s.pumpListener(ctx, x, l, send)
}

// pumpListener sends the notifications of l until its stream ends.
func (s *statelessServer) pumpListener(ctx context.Context, x *exchange, l *listener, send func([]byte)) answer {
	again := time.NewTicker(s.opts.Heartbeat)
	defer again.Stop()
	for {
		select {
		case <-l.wake:
			for _, message := range l.take() {
				send(message)
			}
		case <-ctx.Done():
			return answer{silent: true, status: http.StatusAccepted}
		case <-l.lost: // the client may listen again, and the policy decides again
			return s.endListener(x)
		case <-s.closing.Done():
			return s.endListener(x)
		case <-again.C:
			who, failure := s.opts.Gate.Identify(s.base, x.call.Credential)
			if failure != nil || who.Subject != x.call.Principal.Subject || who.Tenant != x.call.Principal.Tenant {
				return s.refuse(x, signal.CodeUnauthenticated, "the credential names nobody any more")
			}
		}
	}
}

// endListener returns the answer that ends a stream.
func (s *statelessServer) endListener(x *exchange) answer {
	meta := slices.Concat([]byte(`{"resultType":"complete","_meta":{`), jsonrpc.Quote(metaSubscription), []byte{':'}, x.id,
		[]byte{','}, jsonrpc.Quote(metaServer), []byte{':'}, s.serverInfo, []byte("}}"))
	body, _ := wire.CreateSuccessResponse(x.id, meta) // fails for no id that was decoded
	return answer{status: http.StatusOK, body: body}
}

// listenForOthers has servers send l what its filter has beyond the members that toolgate knows,
// until life ends, and adds to l what they acknowledge. The road judges a request to each server.
func (s *statelessServer) listenForOthers(life context.Context, x *exchange, l *listener, filter json.RawMessage) {
	known := []jsonrpc.Change{{Name: "resourceSubscriptions"}}
	for _, f := range filters {
		known = append(known, jsonrpc.Change{Name: f.member})
	}
	others, err := jsonrpc.Extend(filter, known...)
	some := false
	for range jsonrpc.Members(others) {
		some = true
		break
	}
	if err != nil || !some || len(others) > maxOtherBytes || s.opts.Relayer == nil || s.opts.Listens == nil {
		return
	}
	servers := s.opts.Listens(x.call.Route)
	for _, server := range servers[:min(len(servers), maxOtherServers)] {
		call := x.relayed(listenMethod, setIn(json.RawMessage("{}"), others, "notifications"))
		call.Route, call.Peer = server, l
		call.Listen = &registry.Listen{Life: life, Lost: func() { wait.Signal(l.lost) }}
		ctx, stop := context.WithTimeout(life, otherTimeout)
		reply, failure := s.opts.Relayer.Relay(ctx, call)
		stop()
		if failure != nil || reply == nil {
			continue
		}
		promised, _ := jsonrpc.Get(reply.Result, "notifications")
		jsonrpc.Each(promised, func(name []byte, value json.RawMessage) bool {
			named := func(c jsonrpc.Change) bool { return c.Name == string(name) }
			if _, asked := jsonrpc.Get(others, string(name)); asked && !slices.ContainsFunc(l.others, named) {
				l.others = append(l.others, jsonrpc.Change{Name: string(name), Value: value})
			}
			return true
		})
	}
}

var _ registry.Peer = (*listener)(nil)

// Tell implements registry.Peer. Notifications that toolgate knows come by the group.
func (l *listener) Tell(method string, params json.RawMessage) {
	if !slices.Contains(listenable, method) {
		l.deliver(method, params)
	}
}

// Ask implements registry.Peer: a stream of notifications carries no questions.
func (l *listener) Ask(_ context.Context, round []registry.Question) []registry.Answer {
	return unanswered(round, "the client can be asked in the course of its own requests only")
}

// listsFor returns the list changes that filter asks for and the route offers.
func (s *statelessServer) listsFor(x *exchange, filter json.RawMessage) []string {
	offered := s.offered(x)
	var lists []string
	for _, f := range filters {
		wanted, _ := jsonrpc.Get(filter, f.member)
		has, _ := jsonrpc.At(offered, f.capability, "listChanged")
		if string(wanted) == "true" && string(has) == "true" {
			lists = append(lists, f.method)
		}
	}
	return lists
}

// addListener subscribes l to notifications of the group.
func (g *clientGroup) addListener(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listeners[l] = struct{}{}
}

func (g *clientGroup) removeListener(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.listeners, l)
}

// watchAll subscribes to the resources that filter names, and returns those
// that the road allowed.
func (s *statelessServer) watchAll(ctx context.Context, x *exchange, filter json.RawMessage) []string {
	wanted, _ := jsonrpc.Get(filter, "resourceSubscriptions")
	var uris []string
	for raw := range jsonrpc.Elements(wanted) {
		uri, ok := jsonrpc.Text(raw)
		if !ok || slices.Contains(uris, uri) || len(uris) >= maxWatched {
			continue
		}
		if s.watch(ctx, x, uri) {
			uris = append(uris, uri)
		}
	}
	return uris
}

// watch subscribes to uri unless another stream of the group has subscribed,
// and reports whether the stream may listen.
func (s *statelessServer) watch(ctx context.Context, x *exchange, uri string) bool {
	g := x.stateless.group
	g.watching.Lock()
	defer g.watching.Unlock()
	ok := g.watches[uri] > 0 || s.subscribe(ctx, x, "resources/subscribe", uri)
	if ok {
		g.watches[uri]++
	}
	return ok
}

// unwatchAll ends what watchAll began. The last stream of a group ends the
// subscription.
func (s *statelessServer) unwatchAll(x *exchange, uris []string) {
	g := x.stateless.group
	g.watching.Lock()
	defer g.watching.Unlock()
	for _, uri := range uris {
		if g.watches[uri]--; g.watches[uri] == 0 {
			delete(g.watches, uri)
			s.subscribe(s.base, x, "resources/unsubscribe", uri)
		}
	}
}

// subscribe sends the request of older revisions down the road, on the account
// of x, and reports whether it passed.
func (s *statelessServer) subscribe(ctx context.Context, x *exchange, method, uri string) bool {
	if s.opts.Relayer == nil {
		return false
	}
	reply, failure := s.opts.Relayer.Relay(ctx, x.relayed(method, slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte{'}'})))
	return failure == nil && reply != nil
}

// relayed returns a request of the door's own on the account of x.
func (x *exchange) relayed(method string, params json.RawMessage) *proxy.Call {
	m := &jsonrpc.Message{Kind: jsonrpc.Request, ID: x.id, Method: method, Params: params, Raw: jsonrpc.NewRequest(x.id, method, params)}
	return &proxy.Call{
		Message: m, Credential: x.call.Credential, Client: x.call.Client, ClientInfo: x.call.ClientInfo, Route: x.call.Route, Session: x.call.Session,
		Transport: x.call.Transport, Era: x.call.Era, Capabilities: x.call.Capabilities, Level: x.call.Level, Home: x.call.Home,
	}
}
