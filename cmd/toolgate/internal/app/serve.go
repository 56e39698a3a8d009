package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/front"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/ndjson"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// Run serves agents, people and other replicas until ctx ends. Then it reports that it is not ready,
// still takes requests for the configured delay, accepts no more connections of agents, and drains: requests
// of the connections that are there have the configured time to arrive and to finish. What is left
// is cancelled and answered. Meanwhile it
// reloads as r says, polls the server of a policy at a URL, and asks the shadow policy.
// It may be called once.
func (a *App) Run(ctx context.Context, l *Listeners, r Reload) error {
	cfg := a.Config()
	opts := a.doorOptions(cfg)
	opts.HasServer = func(name string) bool { return a.upstreams.Catalogue().HasServer(name) }
	opts.Hosts, opts.Origins = agentHosts(cfg), cfg.AllowedOrigins
	router, stopKeeping, err := a.openRouter(cfg, l, &opts)
	if err != nil {
		return err
	}
	defer stopKeeping()
	door, err := mcp.New(opts)
	if err != nil {
		return err
	}
	jobs, err := a.newREST(cfg)
	if err != nil {
		return err
	}
	pages, err := a.newConsole(cfg, door)
	if err != nil {
		return err
	}
	a.connect(door)
	a.state.begin(releaseMemory)
	a.listeners.Store(l)
	a.addDoorGauges(door)
	a.logFindings(l.findings(time.Now()))
	mostAgents, mostPeople, mostReplicas := front.Shares(front.OpenFiles())
	agents := a.newServer("agents", l.Agents, l.agents, mostAgents, a.fromClients(router.Before(a.route(guard.NewHosts(opts.Hosts), door, jobs))))
	servers := []*front.Server{agents, a.newServer("people", l.People, l.people, mostPeople, a.fromClients(withSource(pages)))}
	if router != nil {
		servers = append(servers, a.newServer("replicas", l.Replicas, l.replicas, mostReplicas, router.Own(door)))
	}
	stopped := ctx
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range servers {
		group.Go(s.Serve)
	}
	if router != nil {
		router.Announce(door.KeepSessions)
	}
	a.maintain(ctx, group, r)
	group.Go(func() error {
		<-ctx.Done()
		a.withdraw()
		if delay := a.Config().Shutdown.Delay; delay > 0 && stopped.Err() != nil { // not for a listener that failed
			a.log.Info("not ready any more, and still serving", "seconds", delay.Seconds())
			wait.For(context.WithoutCancel(ctx), delay)
		}
		agents.Stop()
		pages.Close()
		router.Leave()
		door.EndStreams()
		jobs.EndStreams()
		a.drain(context.WithoutCancel(ctx), a.worker.Close, router.AwaitForgotten, func(ctx context.Context) error {
			_ = agents.Shutdown(ctx) // what it leaves is cancelled by the doors
			return together(ctx, door.Close, jobs.Drain, router.Close)
		})
		for _, s := range servers {
			s.HangUp()
		}
		return nil
	})
	return group.Wait()
}

// beforeIndex is how long the index of calls is not opened yet: the first calls come before it.
const beforeIndex = 100 * time.Millisecond

// maintain begins what a does besides serving, until ctx ends.
func (a *App) maintain(ctx context.Context, group *errgroup.Group, r Reload) {
	group.Go(func() error { return a.reloads.watch(ctx, r) })
	group.Go(func() error { return a.shadow.worker.Run(ctx) })
	started := time.Now()
	for _, work := range []func(){
		func() { a.policy.poll(ctx) },
		func() { a.shadow.poll(ctx) },
		func() { // before their first token comes: readiness says whether the keys of issuers can be had
			for more := true; more; more = wait.For(ctx, wait.Beat(10*time.Second)) {
				a.auth.FetchKeys(ctx)
			}
		},
		func() {
			a.state.peers.Follow(ctx, a.state.db, a.log, func() store.Replica {
				return store.Replica{ID: a.state.instance, Version: a.options.Version, Policy: a.Revision(), Configuration: a.Config().SHA256, Started: started}
			})
		},
		func() { a.logSights(ctx) },
		func() {
			if a.state.index != nil && wait.For(ctx, beforeIndex) {
				a.state.index.Run(ctx)
			}
		},
	} {
		group.Go(func() error { work(); return nil })
	}
}

// newServer returns the server of one listener.
func (a *App) newServer(name string, l net.Listener, secure *certificate, most int, h http.Handler) *front.Server {
	o := front.Options{
		Listener: l, Most: most, Handler: h, Quick: name == "agents", Dropped: a.metrics.dropped.WithLabelValues(name).Inc,
		Errors: log.New(httpLog{a.log.Named("http"), a.metrics.handshakes.WithLabelValues(name)}, "", 0), Log: a.log,
	}
	if secure != nil {
		o.TLS = secure.current
	}
	return front.New(o)
}

// openRouter returns what passes requests on to the owners of their sessions, nil without
// toolgate.replica. The sessions of a door with opts are reachable at other replicas, and it takes over
// theirs. The caller must call stop after the door has closed.
func (a *App) openRouter(cfg *config.Config, l *Listeners, opts *mcp.Options) (router *fleet.Router, stop func(), err error) {
	if cfg.Replica == nil {
		return nil, func() {}, nil
	}
	hosts := guard.NewHosts(agentHosts(cfg), cfg.AllowedOrigins...)
	router, err = fleet.New(fleet.Options{
		Secret: a.state.key, Directory: fleet.Shared{Client: a.valkey}, Address: cfg.Replica.Address, TLS: l.replicas.current, Admits: hosts.Admits, Log: a.log.Named("replica"),
		Passed: func(result string) { a.metrics.passedOn.WithLabelValues(result).Inc() },
	})
	if err != nil {
		return nil, nil, err
	}
	const life = 30 * time.Minute // of an idle session
	keeper := router.NewKeeper(a.valkey, life)
	opts.SessionID, opts.Replica, opts.PassOn, opts.Keeper, opts.SessionTTL = router.SessionID, router.ID(), router.PassOn, keeper, life
	opts.TakenOver = func(whole bool) {
		a.metrics.takenOver.WithLabelValues(map[bool]string{true: "taken", false: "told"}[whole]).Inc()
	}
	return router, keeper.Close, nil
}

// route sends requests under /v1/ to the REST door, those for the metadata of the protected
// resources to who knows the issuers, answers those for toolgate's own metadata as a client and those of
// people, and sends all others to the MCP door.
func (a *App) route(hosts guard.Hosts, door *mcp.Door, jobs *rest.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && lost(r) && hosts.Knows(r):
			page.ForAgents(a.auth.Resource(identity.Resource{Door: "/mcp"}), ConsoleURL(a.Config())+"/console/").ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, "/v1/"):
			jobs.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, identity.MetadataPath) && hosts.Knows(r): // a page of any origin may read it
			a.auth.ServeMetadata(w, r)
		case r.URL.Path == clientPath && hosts.Knows(r):
			a.connections.serveMetadata(w, r)
		case r.URL.Path == "/" && r.Method == http.MethodGet && hosts.Knows(r): // the documentation that the metadata names
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, "toolgate: agents reach tools here, each call by policy.\n\nGive your MCP client the address %s and sign in when it asks.\nWithout a sign-in page, ask whoever operates toolgate for a token.\n", a.auth.Resource(identity.Resource{Door: "/mcp"}))
		default:
			door.ServeHTTP(w, r)
		}
	})
}

// lost reports whether a person with a browser sent r, a GET, to the listener of agents. The metadata and the
// description of the REST door are for people too.
func lost(r *http.Request) bool {
	path := r.URL.Path
	document := strings.HasPrefix(path, identity.MetadataPath) || path == clientPath || path == "/v1/openapi.json"
	return path == page.StylePath || guard.WantsPage(r) && r.Header["Authorization"] == nil && !document
}

// ServeStdio serves one MCP client on a pair of streams until in ends or ctx
// does, and drains.
func (a *App) ServeStdio(ctx context.Context, who identity.Credential, in io.Reader, out io.Writer) error {
	opts := a.doorOptions(a.Config())
	opts.Stdio = who
	door, err := mcp.New(opts)
	if err != nil {
		return err
	}
	a.connect(door)
	a.state.begin(releaseMemory)
	looking, stop := context.WithCancel(ctx)
	var sights sync.WaitGroup
	sights.Go(func() { a.logSights(looking) })
	err = door.Serve(ctx, in, out)
	stop()
	sights.Wait()
	a.drain(context.WithoutCancel(ctx), door.Close, a.worker.Close)
	return err
}

// ServeNDJSON serves one client of the NDJSON action protocol on a pair of
// streams until in ends or ctx does.
func (a *App) ServeNDJSON(ctx context.Context, who identity.Credential, in io.Reader, out io.Writer) error {
	door, err := ndjson.New(ndjson.Options{
		Gate: a.gate, Refuser: a.gate, Credential: who, Budget: a.budget, MaxDepth: a.Config().Limits.MaxDepth,
		Drain: a.Config().Shutdown.Drain, Ended: a.endSession, Log: a.log.Named("ndjson"),
	})
	if err != nil {
		return err
	}
	a.state.begin(releaseMemory)
	return door.Serve(ctx, in, out)
}

// connect makes a door hear of changes that its clients should know.
func (a *App) connect(door *mcp.Door) {
	a.toolsChanged.Store(new(door.ToolsChanged))
	a.toolsChangedFor.Store(new(door.ToolsChangedFor))
	a.upstreams.OnChange(door.ToolsChanged)
	a.upstreams.OnListChanged(door.ListChanged)
}

// withdraw makes a report that it is not ready any more.
func (a *App) withdraw() {
	if !a.health.draining.Swap(true) && a.options.Draining != nil {
		a.options.Draining()
	}
}

// drain waits for the calls under way, for shutdown.drain at most. It then cancels those
// that are left; they are answered too.
func (a *App) drain(ctx context.Context, ends ...func(context.Context) error) {
	a.withdraw()
	limit := a.Config().Shutdown.Drain
	a.log.Info("draining", "seconds", limit.Seconds())
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if err := together(ctx, ends...); err != nil {
		a.log.Warn("calls under way were cancelled: they took longer than draining may", "seconds", limit.Seconds())
	}
}

// together calls all ends at once, and returns the first of their errors when all have returned.
func together(ctx context.Context, ends ...func(context.Context) error) error {
	var group errgroup.Group
	for _, end := range ends {
		group.Go(func() error { return end(ctx) })
	}
	return group.Wait()
}

// doorOptions is what every door for MCP clients has.
func (a *App) doorOptions(cfg *config.Config) mcp.Options {
	return mcp.Options{
		Gate: a.gate, Refuser: a.gate, Challenges: a.auth, Relayer: a.gate, Listens: a.gate.Listens, Notifier: a.gate, Offers: a.upstreams.Offered, Introductions: a.upstreams.Introductions,
		Version: a.options.Version, Errors: wire.Dialect(cfg.Errors),
		Limits: limitsOf(cfg), Budget: a.budget, Profile: wire.Profile(cfg.Envelope), Deterministic: cfg.Deterministic, Observe: a.state.envelopes.Write, Tasks: true, StateKey: a.state.key,
		Drain: cfg.Shutdown.Drain, Ended: a.endSession, Session: a.measureSession, Log: a.log.Named("mcp"), Crowded: a.metrics.crowded.WithLabelValues("").Inc,
		MinRevision: cfg.MinRevision, Deprecated: func(feature string) { a.metrics.deprecated.WithLabelValues(feature).Inc() },
	}
}

// limitsOf returns what a message of a client may be.
func limitsOf(cfg *config.Config) jsonrpc.Limits {
	return jsonrpc.Limits{Bytes: cfg.Limits.MaxMessage << 20, Depth: cfg.Limits.MaxDepth}
}

// endSession forgets a session that is over, and closes its connections.
func (a *App) endSession(session string) {
	a.gate.EndSession(session)
	a.upstreams.EndSession(session)
}

// newREST makes the door for HTTP clients that do not speak MCP.
func (a *App) newREST(cfg *config.Config) (*rest.Handler, error) {
	own := registry.NewSchemaRegistry()
	return rest.New(rest.Options{
		Gate: a.gate, Refuser: a.gate, Artifacts: a.state.artifacts, Bus: a.bus,
		ToolIO: func(exposed string) (*registry.ToolIO, error) {
			io, err := a.upstreams.LoadToolIO(exposed)
			if errors.Is(err, registry.ErrUnknownTool) && exposed == proxy.StatusName { // the one tool that toolgate itself serves
				return own.LoadToolIO(exposed, proxy.StatusTool())
			}
			return io, err
		},
		Envelope: wire.Envelope{Deterministic: cfg.Deterministic, Limits: limitsOf(cfg)}, Budget: a.budget, Observe: a.state.envelopes.Write,
		Hosts: agentHosts(cfg), Origins: cfg.AllowedOrigins, Challenges: a.auth, Version: a.options.Version, Log: a.log.Named("rest"),
	})
}

// Listeners are the addresses that Run serves.
type Listeners struct {
	Agents   net.Listener
	People   net.Listener
	Replicas net.Listener // nil without toolgate.replica

	agents, people, replicas *certificate // nil = plain HTTP, or no replicas
}

// Listen reads the certificates that cfg names, and opens its listeners. The error is a
// *ConfigError when a certificate cannot be used.
func Listen(cfg *config.Config) (*Listeners, error) {
	l, err := openCertificates(cfg)
	if err != nil {
		return nil, configError(err)
	}
	if l.Agents, err = listenOn(cfg.Listen); err == nil {
		l.People, err = listenOn(cfg.Admin)
	}
	if err == nil && cfg.Replica != nil {
		l.Replicas, err = listenOn(cfg.Replica.Listen)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close closes the listeners. Run does so too.
func (l *Listeners) Close() {
	for _, open := range []net.Listener{l.Agents, l.People, l.Replicas} {
		if open != nil {
			_ = open.Close()
		}
	}
}

// Bound returns cfg with the ports that the listeners got where cfg leaves the
// port open, so that addresses made from cfg are right.
func (l *Listeners) Bound(cfg *config.Config) *config.Config {
	c := *cfg
	all := map[*string]net.Listener{&c.Listen: l.Agents, &c.Admin: l.People}
	if cfg.Replica != nil {
		replica := *cfg.Replica
		c.Replica, all[&replica.Address] = &replica, l.Replicas
	}
	for address, l := range all {
		if host, port, err := net.SplitHostPort(*address); err == nil && strings.Trim(port, "0") == "" {
			*address = net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		}
	}
	return &c
}

func listenOn(address string) (net.Listener, error) {
	l, err := front.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w\nhint: is another toolgate serving there? choose another address with --listen or --admin", address, err)
	}
	return l, nil
}

// hostsOf returns the host names that a listener answers to.
func hostsOf(cfg *config.Config, address string) []string {
	host, _, _ := net.SplitHostPort(address) // "" = every interface
	return append([]string{host}, cfg.AllowedHosts...)
}

// agentHosts returns the host names that the agents' listener answers to.
func agentHosts(cfg *config.Config) []string {
	u, err := url.Parse(cfg.PublicURL)
	if err != nil || u.Host == "" {
		return hostsOf(cfg, cfg.Listen)
	}
	return append(hostsOf(cfg, cfg.Listen), u.Host)
}

// newConsole makes the handler of the people's listener.
func (a *App) newConsole(cfg *config.Config, door *mcp.Door) (*console.Console, error) {
	d := &desk{&a.serving, a.state, a.limits, a.refused}
	opts := console.Options{
		Options: people.Options{
			URL: ConsoleURL(cfg), Session: cfg.Console.Session, Environment: cfg.Console.Environment,
			Store: a.state.db, Keys: a.state.keys, Throttle: a.callers.throttle, InForce: a.state.stops.InForce, Record: a.state.recordAct, Log: a.log.Named("console"),
			Identify: func(ctx context.Context, bearer string) (policy.Principal, error) {
				source, _ := ctx.Value(sourceKey{}).(string)
				c := identity.Credential{Bearer: bearer, Source: source}
				who, err := a.auth.Identify(ctx, c)
				if !store.Away(err) {
					a.callers.note(c, err)
				}
				return who, err
			},
			Again: func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) { // the token must still be good, and the roles are the present ones
				return a.auth.Identify(ctx, identity.Credential{Earlier: &p, Hash: sum})
			},
			Anonymous: func(ctx context.Context) (policy.Principal, error) {
				return a.auth.Identify(ctx, identity.Credential{})
			},
			TrailRight: func(ctx context.Context, p policy.Principal) (policy.TrailRight, error) {
				return a.policy.current().TrailRight(ctx, p)
			},
			May: func(ctx context.Context, p policy.Principal, right policy.Right) (bool, error) {
				return a.policy.current().May(ctx, p, right)
			},
			Watches: func(p policy.Principal) bool { return mayWatch(a.Config(), p) },
		},
		TraceURL:  cfg.Console.TraceURL,
		Approvals: a.state.tickets, Reconciler: a.state.tickets, Feed: a.state.tickets, Archive: a.state.tickets, Brief: d.brief, Status: a.status, Held: a.state.tickets.Held,
		Connections: a.connections, Connector: a.connections,
		Stops: a.state.stops, Knows: a.knows,
		Profiles: func(p policy.Principal) bool {
			role := a.Config().PprofRole
			return role != "" && p.Has(role)
		},
		Tools: toolDesk{&a.serving}, Sessions: sessionDesk{a.upstreams, door}, Limits: d.limitsNow, Tokens: tokenDesk{a.state},
		Clients: d.entries,
		Stderr:  a.upstreams.Stderr, Latency: a.metrics.latencies.of,
		Restart: func(ctx context.Context, server string) (console.Upstream, error) {
			after, err := a.upstreams.Restart(ctx, server)
			return console.Upstream(after), err
		},
		Audit: func(ctx context.Context, n int, follow bool) iter.Seq2[[]byte, error] {
			return audit.Tail(ctx, trail.Dir(cfg.State), audit.TailOptions{Records: n, Follow: follow})
		},
		Metrics: promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{EnableOpenMetrics: a.telemetry != nil}), Hosts: hostsOf(cfg, cfg.Admin), Version: a.options.Version,
	}
	a.withAdvice(&opts, d)
	if a.state.index != nil {
		opts.Calls, opts.Activity = a.state.index, activityOf(a.state.index)
	}
	if o := cfg.Console.OIDC; o != nil {
		provider, err := a.auth.NewProvider(identity.ProviderConfig{
			Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Redirect: ConsoleURL(cfg) + "/console/login/callback",
			Scopes: o.Scopes, RolesClaim: o.RolesClaim, PersonClaim: o.PersonClaim, TenantClaim: o.TenantClaim,
		})
		if err != nil {
			return nil, configError(err)
		}
		opts.Provider, opts.EndSession = provider, provider.EndSession
		opts.Logout = func(ctx context.Context, token string) (people.Logout, error) {
			l, err := provider.Logout(ctx, token)
			return people.Logout(l), err
		}
	}
	return console.New(opts)
}

// mayWatch reports whether a principal may read metrics and details of the status; of the zero
// principal, whether everybody may: toolgate.metrics_role, or else whoever reaches loopback.
func mayWatch(cfg *config.Config, p policy.Principal) bool {
	if role := cfg.MetricsRole; role != "" {
		return p.Has(role)
	}
	host, _, _ := net.SplitHostPort(cfg.Admin)
	return p.Valid() || guard.Loopback(host)
}
