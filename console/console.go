package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/stop"
)

// Approvals are the held calls. Implementations are safe for concurrent use and
// return the errors of package approval.
type Approvals interface {
	List(ctx context.Context, f approval.Filter) ([]approval.Ticket, error)
	Get(ctx context.Context, id string) (approval.Ticket, error)
	Decide(ctx context.Context, v approval.Vote) (approval.Ticket, error)
}

// A Reconciler records what a person found out about a call of unknown outcome.
// Implementations are safe for concurrent use and return the errors of package
// approval.
type Reconciler interface {
	Reconcile(ctx context.Context, f approval.Finding) (approval.Ticket, error)
}

// A Feed yields every change of a ticket with a number above after, or from the
// moment of the call when after is negative, until ctx ends. Implementations
// are safe for concurrent use.
type Feed interface {
	Follow(ctx context.Context, after int64) iter.Seq2[approval.Event, error]
}

// An Archive finds the last approved call of the tool of ticket id, or returns
// approval.ErrNotFound. Implementations are safe for concurrent use.
type Archive interface {
	Similar(ctx context.Context, id string) (approval.Ticket, error)
}

// An AuditTail yields the last n lines of the audit trail, byte for byte and
// without line feeds. With follow it also yields the lines written after them
// until ctx ends. An error ends the sequence.
type AuditTail func(ctx context.Context, n int, follow bool) iter.Seq2[[]byte, error]

// Options configure a [Console].
type Options struct {
	// Approvals are the held calls. Required.
	Approvals Approvals
	// Reconciler, Feed and Archive are further sides of the same calls. Required.
	Reconciler Reconciler
	Feed       Feed
	Archive    Archive
	// Brief returns what else is known of a held call; nil = nothing is.
	Brief func(ctx context.Context, k approval.Ticket) (Briefing, error)
	// Store keeps the sessions of the pages, and Keys has the secret that authenticates
	// them. Required.
	Store *store.DB
	Keys  *keys.Dir
	// Identify turns a bearer token, never empty, into a principal; an error
	// is a 401. Required.
	Identify func(ctx context.Context, bearer string) (policy.Principal, error)
	// Again identifies a principal that signed in earlier, with the current
	// configuration; sum is the SHA-256 of its token, 64 hexadecimal digits. Roles
	// may have changed, and an error ends the session. Required.
	Again func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error)
	// Provider signs people in elsewhere, in addition to tokens; nil = none. It
	// sends browsers back to URL + "/console/login/callback".
	Provider Provider
	// Logout verifies a logout token, as anybody can send it; nil = there are none.
	Logout func(ctx context.Context, token string) (Logout, error)
	// EndSession returns the address at which a browser signs out at Provider, and from which
	// it comes back with state; "" or nil = nowhere.
	EndSession func(ctx context.Context, back, state string) (address string, err error)
	// Anonymous identifies a caller without a credential; nil or an error = it is nobody. It may see and
	// make its connections, and nothing else.
	Anonymous func(ctx context.Context) (policy.Principal, error)
	// Connections and Connector are two sides of the accounts of people at servers; nil = there are none.
	Connections Connections
	Connector   Connector
	// URL is where browsers find this listener, without a slash at its end. With
	// https, TLS ends at a proxy in front. "" = they use its address.
	URL string
	// Session is how long one stays signed in; 0 = 8 hours.
	Session time.Duration
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
	// TrailRight says which records of the trail a principal may read; nil or an
	// error = none.
	TrailRight func(ctx context.Context, p policy.Principal) (policy.TrailRight, error)
	// May reports whether a principal has a right; nil or an error = no.
	May func(ctx context.Context, p policy.Principal, right policy.Right) (bool, error)
	// Stderr returns the last lines of a server's processes on stderr, without secrets; nil = none are kept.
	Stderr func(server string) []string
	// Latency returns how long the last calls of a server took, nil before the first; a nil Latency = nobody knows.
	Latency func(server string) *Latency
	// Restart restarts a server that Status lists, and returns its state when it has
	// answered, failed or taken long. Nil = there is no such server.
	Restart func(ctx context.Context, server string) (Upstream, error)
	// Knows reports whether something that a stop may name is known; nil = everything is.
	Knows func(kind stop.Kind, name string) bool
	// Stops stop calls; nil = nobody does. InForce returns what they have stopped, at once.
	Stops   Stops
	InForce func() []stop.Stop
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
	// Record records an act; nil = nothing is recorded. Without their record, nobody
	// signs in, nobody reads the trail, arguments or results of others, no server is restarted, nothing stopped or resumed, no profile
	// taken, no connection begun, made or revoked, no definition of a tool accepted or
	// refused, no session of a client ended, and no token
	// revoked.
	Record func(a Act) error
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Watches reports whether a principal may read metrics and details of the status; of the
	// zero principal, whether everybody may. Nil = everybody.
	Watches func(p policy.Principal) bool
	// Hosts are the names and addresses by which people reach this listener, in
	// addition to the loopback ones: see guard.NewHosts. An unspecified address
	// (0.0.0.0, ::) stands for every IP address literal; a DNS name is always listed.
	Hosts []string
	// Environment is the name of this toolgate among others, which every page shows to everybody; "" = none.
	Environment string
	// TraceURL is the page of a trace in a viewer, with {trace_id} for its id; "" = none.
	TraceURL string
	// Version of the program, for the page.
	Version string
	// Throttle bounds refused credentials; nil = one of the console's own.
	Throttle *guard.Throttle
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Log receives the causes of internal errors; nil = nothing is logged.
	Log hclog.Logger
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
	opts     Options
	home     *url.URL // Options.URL
	hosts    guard.Hosts
	mux      *http.ServeMux
	sessions *sessions
	throttle *guard.Throttle
	jobs     *jobs
	ctx      context.Context // ends with Close
	close    context.CancelFunc
}

// New builds a Console. An option that is required and missing is an error.
func New(opts Options) (*Console, error) {
	if opts.Approvals == nil || opts.Reconciler == nil || opts.Feed == nil || opts.Archive == nil || opts.Store == nil || opts.Keys == nil ||
		opts.Identify == nil || opts.Again == nil || opts.Status == nil || opts.Held == nil || opts.Audit == nil || opts.Metrics == nil {
		return nil, errors.New("building the console: approvals, reconciler, feed, archive, store, keys, identify, again, status, held, audit and metrics are required")
	}
	home, err := url.Parse(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("building the console: %w", err)
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
	sessions, err := newSessions(opts)
	if err != nil {
		return nil, fmt.Errorf("building the console: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	running := &jobs{ctx: ctx, now: opts.Now, fail: func(kind string, err error) { opts.Log.Error("a job failed", "kind", kind, "error", err) }}
	c := &Console{jobs: running, opts: opts, home: home, hosts: guard.NewHosts(opts.Hosts), mux: http.NewServeMux(), sessions: sessions, ctx: ctx, close: cancel}
	c.throttle = cmp.Or(opts.Throttle, guard.NewThrottle(opts.Now))
	document, err := schemas.OpenAPI("openapi-admin.json", opts.Version)
	if err != nil {
		return nil, fmt.Errorf("building the console: %w", err)
	}
	routes := c.allRoutes()
	routes["/v1/openapi.json"] = map[string]handler{http.MethodGet: asset("application/json", document)} // it shows nothing of this installation
	for pattern, methods := range routes {
		c.mux.Handle(pattern, c.serve(methods))
	}
	return c, nil
}

// allRoutes are the routes of what the options have.
func (c *Console) allRoutes() map[string]map[string]handler {
	routes := c.routes()
	for _, part := range []struct {
		there  bool
		routes func() map[string]map[string]handler
	}{
		{true, c.serverRoutes},
		{c.opts.Connections != nil, c.connectionRoutes},
		{c.opts.Stops != nil, c.stopRoutes},
		{c.opts.Policy != nil && c.opts.Judge != nil, c.policyRoutes},
		{c.opts.Policy != nil && c.opts.Judge != nil && c.opts.Shadow != nil, c.shadowRoutes},
		{c.opts.Verify != nil && c.opts.Export != nil && c.opts.Anchors != nil, c.trailRoutes},
		{c.opts.Tools != nil, c.toolRoutes},
		{c.opts.Tokens != nil, c.tokenRoutes},
		{c.opts.Limits != nil, c.limitRoutes},
		{c.opts.Sessions != nil, c.clientSessionRoutes},
		{c.opts.Clients != nil, c.connectRoutes},
		{c.opts.Calls != nil, c.callRoutes},
	} {
		if part.there {
			maps.Copy(routes, part.routes())
		}
	}
	return routes
}

// Close ends every stream that follows the trail or the tickets, so that the
// server can shut down, and every job, for which it waits. It does not wait for the streams:
// the server does.
func (c *Console) Close() {
	c.close()
	c.jobs.wait.Wait()
}

// A handler answers a request, or returns the reason for a refusal, which serve
// writes. A handler that returns an error must not have written anything.
type handler func(w http.ResponseWriter, r *http.Request) error

func (c *Console) routes() map[string]map[string]handler {
	return map[string]map[string]handler{
		"/{$}":                              {http.MethodGet: redirect},
		"/":                                 {},
		"/livez":                            {http.MethodGet: live},
		"/readyz":                           {http.MethodGet: c.ready},
		"/metrics":                          {http.MethodGet: c.metrics},
		"/console":                          {http.MethodGet: redirect},
		"/console/{$}":                      {http.MethodGet: c.overview},
		StylePath:                           {http.MethodGet: asset("text/css", styleText)},
		"/console/login":                    {http.MethodGet: c.signInPage, http.MethodPost: c.signIn},
		"/console/login/provider":           {http.MethodGet: c.beginProviderSignIn},
		"/console/login/callback":           {http.MethodGet: c.finishProviderSignIn},
		"/console/backchannel-logout":       {http.MethodPost: c.providerLogout},
		"/console/logout":                   {http.MethodPost: c.submit(c.signOut)},
		approvalsPath:                       {http.MethodGet: c.visit(c.inbox)},
		denyPath:                            {http.MethodPost: c.submit(c.denySeveral)},
		"/console/approvals/{id}":           {http.MethodGet: c.visit(c.ticketPage)},
		"/console/approvals/{id}/arguments": {http.MethodGet: c.visit(c.arguments)},
		"/console/approvals/{id}/vote":      {http.MethodPost: c.submit(c.vote)},
		"/console/approvals/{id}/reconcile": {http.MethodPost: c.submit(c.finding)},
		"/console/events":                   {http.MethodGet: c.visit(c.events)},
		"/console/htmx-4.0.1.js":            {http.MethodGet: asset("text/javascript", htmxScript)},
		"/console/hx-sse-4.0.1.js":          {http.MethodGet: asset("text/javascript", sseScript)},
		"/console/console.js":               {http.MethodGet: asset("text/javascript", ownScript)},
		"/v1/approvals":                     {http.MethodGet: c.as(answers(c.list))},
		"/v1/approvals/{id}":                {http.MethodGet: c.as(answers(c.show))},
		"/v1/approvals/{id}/{action}":       {http.MethodPost: c.as(c.decide)},
		"/v1/approvals/watch":               {http.MethodGet: c.as(c.watch)},
		"/v1/approvals/{id}/reconcile":      {http.MethodPost: c.as(c.reconcile)},
		"/v1/audit/tail":                    {http.MethodGet: c.as(c.audit)},
		"/debug/pprof/{name}":               {http.MethodGet: c.as(c.profile)},
	}
}

// connectionRoutes are the routes of connections. Their pages are at addresses that agents pass on
// to people.
func (c *Console) connectionRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		connectionsPath:                          {http.MethodGet: c.visitAs(c.anybody, shows(c.connectionsPage))},
		connectionsPath + "/{server}":            {http.MethodGet: c.connectPage, http.MethodPost: c.submitAs(c.anybody, readForm, c.connect)},
		connectionsPath + "/{server}/disconnect": {http.MethodPost: c.submitAs(c.anybody, readForm, leads(c.disconnect))},
		connectionsPath + "/callback":            {http.MethodGet: c.finishConnection},
		"/v1/connections":                        {http.MethodGet: c.asAnybody(answers(c.listConnections))},
		"/v1/connections/{id}":                   {http.MethodGet: c.asAnybody(answers(c.showConnection)), http.MethodDelete: c.asAnybody(answers(c.revokeConnection))},
	}
}

// stopRoutes are the routes of stops.
func (c *Console) stopRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		stopPath:             {http.MethodGet: c.visit(shows(c.stopPage)), http.MethodPost: c.submit(leads(c.submitStop))},
		stopPath + "/resume": {http.MethodPost: c.submit(leads(c.submitResume))},
		"/v1/stop":           {http.MethodGet: c.as(answers(c.listStops)), http.MethodPost: c.as(c.addStop)},
		"/v1/stop/{id}":      {http.MethodDelete: c.as(answers(c.endStop))},
	}
}

// ServeHTTP answers one request. It first refuses requests that a page of
// another origin may have caused.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := c.admit(r); err != nil {
		c.refuse(w, r, err)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// serve returns the handler of a path, which chooses by method.
func (c *Console) serve(methods map[string]handler) http.Handler {
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

func wrongMethod(w http.ResponseWriter, methods map[string]handler) error {
	if len(methods) == 0 {
		return problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is nothing here", Hint: "see /console/"}
	}
	for m := range methods {
		w.Header().Add("Allow", m)
	}
	return problem{Status: http.StatusMethodNotAllowed, Code: "METHOD_NOT_ALLOWED", Detail: "this path does not take that method"}
}

func redirect(w http.ResponseWriter, r *http.Request) error {
	http.Redirect(w, r, "/console/", http.StatusSeeOther)
	return nil
}

func (c *Console) metrics(w http.ResponseWriter, r *http.Request) error {
	return c.watched(func(w http.ResponseWriter, r *http.Request) error {
		c.opts.Metrics.ServeHTTP(w, r)
		return nil
	})(w, r)
}
