// Package app is one running toolgate: policy, upstreams, state and the road of
// tool calls, behind the listeners of agents and people or behind one pair of
// streams.
//
// Open builds it from a configuration and starts the upstreams. Run serves two
// listeners until its context ends and then drains; ServeStdio and ServeNDJSON
// serve one client instead. Apply exchanges the configuration while calls go on:
// what is new is built next to what serves, and swapped in whole or not at all.
// Close ends everything in the order in which nothing is lost.
//
//	cfg, err := config.Load(config.Options{Path: "mcp.json"})
//	...
//	listeners, err := app.Listen(cfg)
//	...
//	a, err := app.Open(ctx, listeners.Bound(cfg), app.Options{Role: "observer", Log: log})
//	...
//	err = errors.Join(a.Run(ctx, listeners, app.Reload{}), a.Close())
//
// Several Apps may share one state directory, in one process or in several. The
// methods of an App are safe for concurrent use, except Close, which comes last.
package app

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/internal/telemetry"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/verify"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/hold"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
	"github.com/toolgate/toolgate/signal"
)

// Options are what Open needs beyond the configuration.
type Options struct {
	Role    string       // of the principal local
	Version string       // of the program, for records, metrics and handshakes
	Log     hclog.Logger // nil = nothing is logged
	Calls   hclog.Logger // gets one line at info for each call; nil = calls are not logged

	// TrialText is console.Options.TrialText.
	TrialText func(console.PolicyTrial) string
	// Draining is called once, when toolgate begins to stop; nil = nobody has to know.
	Draining func()
}

// ConfigError reports a configuration or a policy that cannot serve.
type ConfigError struct{ Err error }

// Error returns the text of the cause.
func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

func configError(err error) error {
	if err == nil {
		return nil
	}
	return &ConfigError{err}
}

// App is one running toolgate.
type App struct {
	options Options
	serving
	metrics     *metrics
	shadow      *shadowPolicy
	state       *state
	auth        *identity.Authenticator
	health      *health
	reloads     *reloader
	inventory   *inventory
	callers     *callers
	proxies     atomic.Pointer[[]netip.Prefix] // toolgate.trusted_proxies
	limits      *limit.Limiter
	refused     *limit.Limiter // of refused calls
	shared      *fleet.Limits  // nil = the limits are of this process alone
	valkey      *valkey.Client // of toolgate.shared; nil = none
	connections connections
	confined    map[string]string // how each server is confined, as the trail has it
	gate        *proxy.Gate
	worker      *hold.Worker
	sampler     *verify.Sampler
	bus         *bus.Bus
	budget      *share.Budget        // of messages in flight
	telemetry   *telemetry.Telemetry // nil = nothing is sent

	// toolsChanged notifies agents that their lists may be others, and
	// toolsChangedFor those of one principal. Both are nil until agents are served.
	toolsChanged    atomic.Pointer[func()]
	toolsChangedFor atomic.Pointer[func(policy.Principal)]
}

// Open builds an App from cfg, upstreams starting. The error is a *ConfigError
// when configuration or policy cannot serve. On an error nothing is left open.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *App, err error) {
	o.Log = cmp.Or(o.Log, hclog.NewNullLogger())
	inFlight := int64(cfg.Limits.InFlight) << 20
	a := &App{
		options: o, serving: serving{role: o.Role, log: o.Log, cfg: cfg}, metrics: newMetrics(o.Version), confined: make(map[string]string),
		budget: share.NewBudget(inFlight, int64(float64(inFlight)*cfg.Limits.InFlightShare)),
	}
	limitMemory(os.DirFS("/"))
	if _, err := fileModes(cfg); err != nil {
		return nil, configError(err)
	}
	if cfg.Deterministic {
		signal.Reproducible(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	var trial errgroup.Group
	defer trial.Wait() //nolint:errcheck // the error was looked at, or another one says more
	if err = a.openPolicyAndStore(ctx, cfg, &trial); err != nil {
		return nil, err
	}
	if a.auth, err = identity.New(a.identityConfig(cfg)); err != nil {
		return nil, configError(err)
	}
	a.proxies.Store(trustedProxies(cfg))
	if err = a.openShared(ctx, cfg); err != nil {
		return nil, err
	}
	a.limits, a.refused = a.shared.New("calls", limitRules(cfg)), a.shared.New("refused", refusedRules(cfg))
	a.bus = bus.New(bus.Options{})
	if err = a.openState(ctx, cfg); err != nil {
		return nil, err
	}
	a.shadow = a.newShadow(cfg)
	if err = prepareTools(cfg); err != nil {
		return nil, err
	}
	if err = a.openTelemetry(ctx, cfg); err != nil {
		return nil, err
	}
	a.sandbox = sandbox.New(sandboxOptions(cfg))
	a.connections = openConnections(a.state)
	a.upstreams = registry.New(registry.Options{
		Credentials: credential.NewBroker(a.connections.grants, credential.BrokerOptions{Sandbox: a.sandbox, Log: a.log.Named("connections")}),
		DB:          a.state.db, Logger: a.log.Named("registry"), Version: o.Version, Sandbox: a.sandbox,
		Accepted: a.state.recordAccepted, Changed: a.state.definitionsChanged, Ended: a.measureSession,
		Crowded: func(server string) { a.metrics.crowded.WithLabelValues(server).Inc() },
	})
	if err = a.applyUpstreams(ctx, cfg); err != nil {
		return nil, configError(err)
	}
	if err = trial.Wait(); err != nil {
		return nil, configError(err)
	}
	trial.Go(func() error { a.inventory.record(); return nil })
	if err = a.openGate(cfg); err != nil {
		return nil, err
	}
	a.health = &health{serving: &a.serving, state: a.state, shared: a.shared, auth: a.auth}
	a.reloads = &reloader{serving: &a.serving, apply: a.Apply, inventory: a.inventory, shadow: a.shadow, outcomes: a.metrics.reloads}
	a.addGauges()
	return a, nil
}

// openPolicyAndStore compiles the policy that serves first, and opens the store at the same time. The
// policy must not judge calls before trial ends without an error: it is tried while the
// rest is opened.
func (a *App) openPolicyAndStore(ctx context.Context, cfg *config.Config, trial *errgroup.Group) error {
	source := newPolicySource(&cfg.Policy.PolicySource, policyDir(cfg))
	var opening errgroup.Group
	opening.Go(func() error { return a.openStore(ctx, cfg) })
	loaded, err := source.open(ctx, rego.LoadUntried)
	if err == nil && source.remote == nil {
		trial.Go(func() error { return loaded.engine.Try(ctx) })
	}
	if err = cmp.Or(configError(err), opening.Wait()); err != nil {
		return err
	}
	a.inventory = &inventory{&a.serving, a.state}
	a.policy = &policyFeed{
		log: a.log, role: "serves", source: source, engine: loaded.engine, copy: loaded.copy,
		count: func(outcome string) { a.metrics.loads.WithLabelValues(outcome).Inc() },
		install: func(engine *rego.Engine) { // for calls, tickets and the lists of agents
			a.gate.SetPolicy(a.sample(engine))
			a.worker.Recheck()
			if notify := a.toolsChanged.Load(); notify != nil {
				(*notify)()
			}
		},
		changed: func(refused error) {
			switch {
			case a.state.trail == nil: // while it is opened
			case refused != nil:
				a.inventory.recordRefusal(refused)
			default:
				a.inventory.record()
			}
		},
	}
	a.policy.count(loadTaken)
	a.policy.noteLoad(loaded)
	return nil
}

// openGate builds the road of tool calls, and the worker that runs approved ones.
func (a *App) openGate(cfg *config.Config) (err error) {
	tickets := a.state.tickets
	a.sampler = verify.New(verify.Options{
		Share:   cfg.Policy.Verify.Sample,
		Record:  func(_ context.Context, r *audit.Record) error { return a.state.trail.Write(audit.KindOutcome, r) },
		Observe: func(o verify.Outcome) { a.metrics.verified.WithLabelValues(string(o)).Inc() },
		Log:     a.log.Named("verify"),
	})
	a.state.begin(a.sampler.Run)
	a.callers = &callers{Authenticator: a.auth, fold: a.state.fold, refused: a.metrics.credentials, log: a.log, throttle: guard.NewThrottle(nil)}
	opts := proxy.Options{
		Identifier: a.callers, Policy: a.sample(a.policy.current()), Limiter: a.limits, Refused: a.refused, Fold: a.state.fold.Add, Usage: limit.NewUsage(a.state.db, nil),
		Tickets: tickets, Waiter: tickets, Repeats: tickets, Book: tickets, Recorder: a.state.records,
		Upstreams: a.upstreams, Servers: a.upstreams, Artifacts: a.state.artifacts, Bus: a.bus, Settings: gateSettings(cfg),
		Credentials: a.upstreams, Stops: a.state.stops, Observe: a.metrics.observe, Log: a.log.Named("gate"),
	}
	if a.telemetry != nil {
		opts.Tracer = a.telemetry
	}
	if cfg.Telemetry != nil {
		opts.Baggage = cfg.Telemetry.Baggage
	}
	if a.gate, err = proxy.New(opts); err != nil {
		return err
	}
	a.state.stops.OnChange(a.gate.CancelStopped)
	a.upstreams.OnListChanged(a.gate.ListChanged)
	a.worker, err = hold.NewWorker(hold.Options{
		Gate: a.gate, Ledger: tickets, Shutdown: proxy.ErrShutdown, Log: a.log.Named("tickets"),
		OnCreated: func(who policy.Principal) { // the first ticket adds the tool approval_status to the lists of the principal's agents
			notify := a.toolsChangedFor.Load()
			if notify == nil {
				return
			}
			ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
			defer stop()
			if own, err := tickets.Answering(ctx, who); err == nil && len(own) == 1 {
				(*notify)(who)
			}
		},
		OnDecided: func(ended approval.State, waited time.Duration) {
			a.metrics.waits.WithLabelValues(string(ended)).Observe(max(0, waited.Seconds()))
		},
	})
	if err != nil {
		return err
	}
	a.upstreams.OnChange(a.worker.Recheck)
	return nil
}

// Close ends ticket worker and upstreams first, so that no call is under way,
// then the trail, then the store. It waits 10 seconds at most for each.
func (a *App) Close() error {
	var errs []error
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if a.worker != nil {
		errs = append(errs, a.worker.Close(ctx))
	}
	if a.upstreams != nil {
		errs = append(errs, a.upstreams.Close(ctx))
	}
	if a.connections.grants != nil {
		a.connections.grants.Close()
	}
	if a.bus != nil {
		a.bus.Close()
	}
	if a.telemetry != nil { // its last metrics read the state
		a.telemetry.Close(ctx)
	}
	if a.shared != nil {
		a.shared.Close()
		errs = append(errs, a.valkey.Close())
	}
	if a.health != nil {
		a.health.trials.Wait()
	}
	if a.state != nil {
		errs = append(errs, a.state.close())
	}
	return errors.Join(errs...)
}

// Apply builds what cfg asks for next to what serves, and swaps it in whole. On
// an error nothing has changed. Some settings are only read by Open; /readyz
// names them when Run has reloaded a configuration in which they differ.
func (a *App) Apply(ctx context.Context, cfg *config.Config) error {
	if _, err := fileModes(cfg); err != nil {
		return err
	}
	a.policy.swap.Lock()
	defer a.policy.swap.Unlock()
	source := newPolicySource(&cfg.Policy.PolicySource, policyDir(cfg))
	loaded, err := source.open(ctx, rego.Load)
	if err != nil {
		a.metrics.loads.WithLabelValues(loadRefused).Inc()
		return err
	}
	ids := a.identityConfig(cfg)
	if _, err := identity.New(ids); err != nil {
		return err
	}
	channels := noticeChannels(cfg)
	if _, err := notice.New(notice.Options{DB: a.state.db, Link: a.state.ticketPage}, channels); err != nil {
		return err
	}
	if err := prepareTools(cfg); err != nil {
		return err
	}
	a.sandbox.Apply(sandboxOptions(cfg))
	if err := a.applyUpstreams(ctx, cfg); err != nil {
		return err
	}
	if err := a.state.notices.Apply(channels); err != nil {
		return err
	}
	if err := a.state.decisions.Apply(ctx, decisionSinks(cfg)); err != nil {
		return err
	}
	if err := a.auth.Apply(ids); err != nil {
		return err
	}
	a.proxies.Store(trustedProxies(cfg))
	a.limits.Apply(limitRules(cfg))
	a.refused.Apply(refusedRules(cfg))
	a.gate.Apply(gateSettings(cfg))
	a.sampler.SetShare(cfg.Policy.Verify.Sample)
	a.mu.Lock()
	a.cfg = cfg
	a.mu.Unlock()
	a.policy.exchange(source, loaded)
	a.policy.noteLoad(loaded)
	a.shadow.apply(cfg)
	return nil
}
