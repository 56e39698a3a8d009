package console

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/stop"
)

// An AuditTail yields the last n lines of the audit trail, byte for byte and
// without line feeds. With follow it also yields the lines written after them
// until ctx ends. An error ends the sequence.
type AuditTail func(ctx context.Context, n int, follow bool) iter.Seq2[[]byte, error]

// Options configure a [Console].
type Options struct {
	// Options are those of the people who are served. The console sets what is nil and has a default.
	people.Options
	// Approvals are the held calls. Required.
	Approvals tickets.Approvals
	// Reconciler, Feed and Archive are further sides of the same calls. Required.
	Reconciler tickets.Reconciler
	Feed       tickets.Feed
	Archive    tickets.Archive
	// Brief returns what else is known of a held call; nil = nothing is.
	Brief func(ctx context.Context, k approval.Ticket) (tickets.Briefing, error)
	// Connections and Connector are two sides of the accounts of people at servers; nil = there are none.
	Connections Connections
	Connector   Connector
	// Status returns the status. Every request for a page calls it, so it must be
	// quick. Required.
	Status func() Status
	// Held counts the calls that wait for a decision, for the page. Required.
	Held func(ctx context.Context) (int, error)
	// Activity counts the calls since a time in so many equal spans up to now, the oldest first; since
	// the zero time, all that are known. Nil = nobody counts them.
	Activity func(ctx context.Context, since time.Time, buckets int) ([]Bucket, error)
	// Audit is the audit trail. Required.
	Audit AuditTail
	// Stderr returns the last lines of a server's processes on stderr, without secrets; nil = none are kept.
	Stderr func(server string) []string
	// Latency returns how long the last calls of a server took, nil before the first; a nil Latency = nobody knows.
	Latency func(server string) *Latency
	// Restart restarts a server that Status lists, and returns its state when it has
	// answered, failed or taken long. Nil = there is no such server.
	Restart func(ctx context.Context, server string) (Upstream, error)
	// Knows reports whether something that a stop may name is known; nil = everything is.
	Knows func(kind stop.Kind, name string) bool
	// Stops stop calls; nil = nobody does.
	Stops Stops
	// Policy and Judge are two sides of the policy that serves; nil = nobody asks about it.
	Policy PolicyReader
	Judge  PolicyJudge
	// Shadow returns what shadow policies would have decided otherwise; its error may wrap
	// shadow.ErrNoCandidate. Nil = nobody sees it.
	Shadow func(ctx context.Context, q ShadowQuery) (shadow.Report, error)
	// TrialText returns a trial as Markdown for a pull request, without arguments of calls; nil = nobody does.
	TrialText func(t PolicyTrial) string
	// Verify verifies the trail, and returns what it found. Export returns the lines of records, an
	// error for a query that cannot be read. Nil = nobody does.
	Verify func(ctx context.Context, report func(Progress)) (notary.Verified, error)
	Export func(ctx context.Context, q ExportQuery) (iter.Seq2[[]byte, error], error)
	// Anchors returns what receives the signed checkpoints of this process, and why the last one was not signed
	// or kept, nil for no reason. Required with Verify.
	Anchors func() (all []notary.AnchorState, unsigned error)
	// Calls is the search index of calls; nil = there is none.
	Calls Calls
	// Tools are the tools of all servers; nil = nobody sees or judges them.
	Tools Tools
	// Sessions are those of clients; nil = nobody sees or ends them.
	Sessions ClientSessions
	// Clients returns the address of the agents' listener and the clients that can be connected to it, one
	// at least; nil = nobody is told.
	Clients func() (address string, all []Client)
	// Limits returns what is used of rate limits and meters, in any order, and whether that is all; nil =
	// nobody sees it.
	Limits func(ctx context.Context) (all []Limit, whole bool, err error)
	// Tokens are those of the configuration; nil = nobody sees or revokes them.
	Tokens Tokens
	// Profiles reports whether a principal may take profiles of toolgate; nil = nobody.
	Profiles func(p policy.Principal) bool
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Hosts are the names and addresses by which people reach this listener, in
	// addition to the loopback ones: see guard.NewHosts. An unspecified address
	// (0.0.0.0, ::) stands for every IP address literal; a DNS name is always listed.
	Hosts []string
	// TraceURL is the page of a trace in a viewer, with {trace_id} for its id; "" = none.
	TraceURL string
	// Version of the program, for the page.
	Version string
}

// Status describes a running toolgate.
type Status struct {
	Ready     bool       `json:"ready"`
	Status    string     `json:"status"`             // ready, degraded or not ready; set when it is shown
	Degraded  []string   `json:"degraded,omitempty"` // parts that are missing, of a toolgate that serves without them
	Revision  string     `json:"policy_revision"`    // "sha256:<hex>" of the policy that judges
	Shadow    string     `json:"shadow,omitempty"`   // counts of the shadow policy; "" = none
	Upstreams []Upstream `json:"upstreams"`
	Sights    []Sight    `json:"visible"` // by role
	Warnings  []string   `json:"warnings"`
}

// Upstream describes one upstream.
type Upstream struct {
	Name        string            `json:"name"`
	State       string            `json:"state"`
	Tools       int               `json:"tools"`
	Quarantined int               `json:"quarantined"`
	Withheld    map[string]string `json:"withheld,omitempty"` // why, by the server's name of each quarantined tool
	Error       string            `json:"error,omitempty"`
	Warnings    []string          `json:"warnings,omitempty"`
	Since       time.Time         `json:"since,omitzero"`
	Sandbox     string            `json:"sandbox,omitempty"`  // how its command is confined, "" = it has none
	Transport   string            `json:"transport"`          // stdio, http, sse or ndjson
	Revision    string            `json:"revision,omitempty"` // MCP revision of the shared connection, "" = not known
	// Capabilities and Extensions are the names of what it declared last.
	Capabilities []string `json:"capabilities,omitempty"`
	Extensions   []string `json:"extensions,omitempty"`
	Restarts     int      `json:"restarts,omitempty"` // how often it was ready again after the first time
	Sessions     int      `json:"sessions"`           // connections that belong to one client session each
	Dropped      int64    `json:"dropped,omitempty"`  // messages that nobody could use
}

// Console is the handler of the people's listener. It is safe for concurrent
// use.
type Console struct {
	opts  Options
	hosts guard.Hosts
	mux   *http.ServeMux
	guard *people.Guard
	jobs  *jobs
	close context.CancelFunc // ends streams and jobs
}

// New builds a Console. An option that is required and missing is an error.
func New(opts Options) (*Console, error) {
	if opts.Approvals == nil || opts.Reconciler == nil || opts.Feed == nil || opts.Archive == nil || opts.Store == nil || opts.Keys == nil ||
		opts.Identify == nil || opts.Again == nil || opts.Status == nil || opts.Held == nil || opts.Audit == nil || opts.Metrics == nil {
		return nil, errors.New("building the console: approvals, reconciler, feed, archive, store, keys, identify, again, status, held, audit and metrics are required")
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Watches == nil {
		opts.Watches = func(policy.Principal) bool { return true }
	}
	if opts.Latency == nil {
		opts.Latency = func(string) *Latency { return nil }
	}
	opts.Log = cmp.Or(opts.Log, hclog.NewNullLogger())
	opts.Throttle = cmp.Or(opts.Throttle, guard.NewThrottle(opts.Now))
	ctx, cancel := context.WithCancel(context.Background())
	c := &Console{opts: opts, hosts: guard.NewHosts(opts.Hosts), mux: http.NewServeMux(), close: cancel}
	c.jobs = &jobs{ctx: ctx, now: opts.Now, fail: func(kind string, err error) { opts.Log.Error("a job failed", "kind", kind, "error", err) }}
	var err error
	if c.guard, err = people.New(ctx, opts.Options, c.places, c.awaiting); err != nil {
		cancel()
		return nil, fmt.Errorf("building the console: %w", err)
	}
	all := c.routes()
	document := schemas.OpenAPI("openapi-admin.json", opts.Version)
	all["/v1/openapi.json"] = map[string]page.Handler{http.MethodGet: func(w http.ResponseWriter, r *http.Request) error { // it shows nothing of this installation
		return page.Asset("application/json", document())(w, r)
	}}
	for pattern, methods := range all {
		c.mux.Handle(pattern, c.serve(methods))
	}
	return c, nil
}

// An area is some of the pages, and the routes under /v1 that answer with the same.
type area interface {
	Routes(g *people.Guard) page.Routes
}

// routes are the routes of what the options have.
func (c *Console) routes() page.Routes {
	all := page.Routes{
		"/{$}":                     {http.MethodGet: redirect},
		"/":                        {},
		"/console":                 {http.MethodGet: redirect},
		page.StylePath:             {http.MethodGet: page.Style},
		"/console/htmx-4.0.1.js":   {http.MethodGet: page.Asset("text/javascript", htmxScript)},
		"/console/hx-sse-4.0.1.js": {http.MethodGet: page.Asset("text/javascript", sseScript)},
		"/console/console.js":      {http.MethodGet: page.Asset("text/javascript", ownScript)},
	}
	for _, a := range c.areas() {
		maps.Copy(all, a.Routes(c.guard))
	}
	return all
}

// areas are those of what the options have.
func (c *Console) areas() []area {
	o, s, g := &c.opts, c.guard.Site, c.guard
	all := []area{
		g,
		&health{Guard: g, status: o.Status, watches: o.Watches, registry: o.Metrics, profiles: o.Profiles},
		&overview{Guard: g, status: o.Status, version: o.Version, watches: o.Watches, held: o.Held, counts: o.Activity},
		&tickets.Area{Guard: g, Approvals: o.Approvals, Reconciler: o.Reconciler, Feed: o.Feed, Archive: o.Archive, Brief: o.Brief},
		&servers{Site: s, status: o.Status, latency: o.Latency, stderr: o.Stderr, restart: o.Restart},
		&trail{Site: s, approvals: o.Approvals, lines: o.Audit, verifier: o.Verify, records: o.Export, anchors: o.Anchors, jobs: c.jobs},
	}
	add := func(there bool, a area) {
		if there {
			all = append(all, a)
		}
	}
	add(o.Connections != nil, &connections{Guard: g, url: o.URL, made: o.Connections, connector: o.Connector})
	add(o.Stops != nil, &stops{Site: s, stops: o.Stops, knows: o.Knows})
	add(o.Policy != nil && o.Judge != nil, &advice{Site: s, policy: o.Policy, judge: o.Judge, shadow: o.Shadow, trialText: o.TrialText, jobs: c.jobs})
	add(o.Tools != nil, &tools{Site: s, offered: o.Tools, status: o.Status})
	add(o.Tokens != nil, &access{Site: s, tokens: o.Tokens, tail: o.Audit})
	add(o.Limits != nil, &limits{Site: s, used: o.Limits})
	add(o.Sessions != nil, &clientSessions{Site: s, open: o.Sessions})
	add(o.Clients != nil, &clients{Site: s, known: o.Clients, sessions: o.Sessions})
	add(o.Calls != nil, &calls{Guard: g, approvals: o.Approvals, index: o.Calls, traceURL: o.TraceURL})
	return all
}

// Close ends every stream that follows the trail or the tickets, so that the
// server can shut down, and every job, for which it waits. It does not wait for the streams:
// the server does.
func (c *Console) Close() {
	c.close()
	c.jobs.wait.Wait()
}

// ServeHTTP answers one request. It first refuses requests that a page of
// another origin may have caused.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page.Secure(w.Header())
	if err := c.admit(r); err != nil {
		c.refuse(w, r, err)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// serve returns the handler of a path, which chooses by method.
func (c *Console) serve(methods map[string]page.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		h, ok := methods[method]
		if !ok {
			c.refuse(w, r, wrongMethod(w, methods))
			return
		}
		if err := h(w, r); err != nil {
			c.refuse(w, r, err)
		}
	})
}

func wrongMethod(w http.ResponseWriter, methods map[string]page.Handler) error {
	if len(methods) == 0 {
		return page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is nothing here", Hint: "see /console/"}
	}
	for m := range methods {
		w.Header().Add("Allow", m)
	}
	return page.Problem{Status: http.StatusMethodNotAllowed, Code: "METHOD_NOT_ALLOWED", Detail: "this path does not take that method"}
}

func redirect(w http.ResponseWriter, r *http.Request) error {
	http.Redirect(w, r, "/console/", http.StatusSeeOther)
	return nil
}

// mostAwaiting is where the count of tickets that wait stops.
const mostAwaiting = 99

// awaiting returns how many tickets wait for p.
func (c *Console) awaiting(ctx context.Context, p policy.Principal) (int, error) {
	waiting, err := c.opts.Approvals.List(ctx, approval.Filter{Awaiting: p, Limit: mostAwaiting})
	return len(waiting), err
}

// places returns the pages that v finds in the navigation.
func (c *Console) places(ctx context.Context, v people.Visitor) (all []page.Place) {
	o, operates, trail := &c.opts, c.guard.May(ctx, v.Principal, policy.Operates), c.guard.TrailRight(ctx, v.Principal)
	add := func(there bool, path, name string) {
		if there {
			all = append(all, page.Place{Path: path, Name: name})
		}
	}
	add(true, page.OverviewPath, "Overview")
	add(!v.Alone && o.Calls != nil && trail != policy.TrailNone, callsPath, "Calls")
	add(!v.Alone, page.ApprovalsPath, "Approvals")
	add(!v.Alone && operates, serversPath, "Servers")
	add(!v.Alone && o.Tools != nil && (operates || c.guard.May(ctx, v.Principal, policy.Definitions)), toolsPath, "Tools")
	add(!v.Alone && o.Policy != nil && operates, policyPath, "Policy")
	add(!v.Alone && o.Verify != nil && trail == policy.TrailAll, auditPath, "Audit")
	add(!v.Alone && o.Sessions != nil && operates, sessionsPath, "Sessions")
	add(!v.Alone && o.Limits != nil && operates, limitsPath, "Limits")
	add(!v.Alone && o.Tokens != nil && operates, accessPath, "Access")
	add(!v.Alone && o.Clients != nil, connectPath, "Connect")
	add(o.Connections != nil && len(o.Connections.Services()) > 0, page.ConnectionsPath, "Connections")
	add(!v.Alone && o.Stops != nil, page.StopPath, "Stop")
	return all
}

// admit refuses what a browser may have been made to send: a Host that is not
// ours (DNS rebinding), an Origin that is not this host, a state change from
// another site.
func (c *Console) admit(r *http.Request) error {
	if !c.knows(r) {
		return page.Problem{Status: http.StatusForbidden, Code: "HOST_REFUSED", Detail: "this listener does not answer to that host name",
			Hint: "add the name to toolgate.allowed_hosts, or use a loopback name or the host of toolgate.console.url"}
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) {
			return page.Problem{Status: http.StatusForbidden, Code: "ORIGIN_REFUSED", Detail: "requests from pages of another origin are refused",
				Hint: "a proxy in front has to pass the Host header on as it came"}
		}
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return page.Problem{Status: http.StatusForbidden, Code: "ORIGIN_REFUSED", Detail: "requests from pages of another site are refused"}
	}
	return nil
}

// knows reports whether the Host of r names this listener.
func (c *Console) knows(r *http.Request) bool {
	host := guard.HostName(r.Host)
	_, err := netip.ParseAddr(host)
	return guard.Loopback(host) || c.guard.AtHome(r.Host) || c.hosts.Knows(r) || err == nil && slices.ContainsFunc(c.opts.Hosts, func(ours string) bool {
		every, err := netip.ParseAddr(ours)
		return err == nil && every.IsUnspecified()
	})
}

// refuse answers with the problem details of err, to a browser as a page. The cause of an
// internal error goes to the log alone.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := c.guard.Problem(r, err)
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if guard.WantsPage(r) {
		v, err := people.Visitor{}, c.admit(r)
		if err == nil {
			v, err = c.guard.Visitor(w, r)
		}
		if err != nil {
			v = people.Visitor{}
		}
		if c.guard.ShowProblem(w, r, v, p) == nil {
			return
		}
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a reader that went away needs no answer
}

// The scripts of the pages. The first two are as their makers publish them, see
// docs/evidence/dependencies.md; the policy of every page forbids them to evaluate text.
var (
	//go:embed assets/htmx-4.0.1.min.js
	htmxScript []byte
	//go:embed assets/hx-sse-4.0.1.min.js
	sseScript []byte
	//go:embed console.js
	ownScript []byte
)
