package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/decisionlog"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/policy/notice"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/signal"
)

// instance is one running toolgate behind its doors: everything that serve and
// stdio have in common.
type instance struct {
	log      hclog.Logger
	db       *store.DB
	trail    *audit.Log
	notices  *notice.Sender
	told     *decisionlog.Shipper
	tickets  *approval.Tickets
	auth     *identity.Authenticator
	limits   *limit.Limiter
	upstream *registry.Registry
	gate     *proxy.Gate
	steward  *proxy.TicketWorker
	files    *artifact.Store
	bus      *bus.Bus
	seen     *audit.EnvelopeLog
	metrics  *metrics
	verify   *verification
	role     string
	stateKey []byte         // see mcp.Options
	begun    *config.Config // what it was opened with

	changedTools func() // tells agents that their lists may be others; does nothing until there is a door
	// tellAgents tells those of one principal; nil until there is a door.
	tellAgents atomic.Pointer[func(policy.Principal)]

	swap sync.Mutex // held while what serves is exchanged; taken before mu

	mu      sync.Mutex // protects the fields below
	cfg     *config.Config
	engine  *rego.Engine
	origin  *origin     // of engine
	stale   string      // why engine is not what origin has, "" when it is
	shadow  *understudy // nil where nobody is asked beside the policy
	reload  string      // why the last reload failed, "" when it went well
	waiting []string    // settings that were changed and need a restart
}

// open builds an instance from cfg, upstreams starting. On an error nothing is
// left open.
func open(ctx context.Context, cfg *config.Config, role string, log hclog.Logger) (in *instance, err error) {
	in = &instance{log: log, cfg: cfg, begun: cfg, role: role, metrics: newMetrics(), changedTools: func() {}}
	if cfg.Deterministic {
		signal.Reproducible(deterministicEpoch)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.close())
			in = nil
		}
	}()
	if err = in.openPolicy(ctx, cfg); err != nil {
		return in, &exit{code: exitUsage, err: err}
	}
	if in.auth, err = identity.New(identityConfig(cfg, role)); err != nil {
		return in, &exit{code: exitUsage, err: err}
	}
	in.limits = limit.New(limitRules(cfg))
	in.bus = bus.New(bus.Options{})
	if err = in.openState(ctx, cfg); err != nil {
		return in, err
	}
	in.upstream = registry.New(registry.Options{DB: in.db, Logger: log.Named("registry"), Version: version})
	prepare(cfg)
	if err = in.upstream.Apply(ctx, cfg); err != nil {
		return in, &exit{code: exitUsage, err: err}
	}
	in.verify = in.startVerification()
	in.gate, err = proxy.New(proxy.Options{
		Identifier: in.auth, Policy: in.verify.watch(in.engine), Limiter: in.limits, Usage: limit.NewUsage(in.db, nil), Tickets: in.tickets, Waiter: in.tickets, Book: in.tickets,
		Recorder: in.trail, Upstreams: in.upstream, Servers: in.upstream, Artifacts: in.files, Bus: in.bus, Settings: settings(cfg),
		Observe: in.metrics.observe, Log: log.Named("gate"),
	})
	if err != nil {
		return in, err
	}
	in.upstream.OnListChanged(in.gate.ListChanged)
	if in.steward, err = proxy.NewTicketWorker(proxy.TicketWorkerOptions{
		Gate: in.gate, Ledger: in.tickets, Waited: in.metrics.waited, Asked: in.askedFor, Log: log.Named("steward"),
	}); err == nil {
		in.upstream.OnChange(in.steward.Recheck)
		in.metrics.pending(in.tickets.Held)
	}
	return in, err
}

// openPolicy loads the policy, and says when it is not what it should be.
func (in *instance) openPolicy(ctx context.Context, cfg *config.Config) error {
	o, engine, stale, err := openPolicy(ctx, &cfg.Policy.PolicySource, policyDir(cfg))
	if err != nil {
		return err
	}
	in.origin, in.engine = o, engine
	in.metrics.policy(in.revision)
	in.metrics.loads.WithLabelValues(loadTaken).Inc()
	in.loaded(o, stale)
	return nil
}

// loaded notes how loading the policy went that serves now.
func (in *instance) loaded(o *origin, stale error) {
	if o.unkept != nil {
		in.log.Error("the policy serves, and will not when its server is away at the next start", "error", o.unkept)
	}
	in.mu.Lock()
	in.stale = ""
	in.mu.Unlock()
	if stale != nil {
		outcome := loadRefused
		if o.away {
			outcome = loadAway
		}
		in.metrics.loads.WithLabelValues(outcome).Inc()
		in.polled(o, stale)
		in.log.Warn("the last good policy serves", "policy", short(in.revision()), "fetched", o.copy.Fetched)
	}
}

// deterministicEpoch is when the counted time of "deterministic" begins.
var deterministicEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// openState opens what survives a restart.
func (in *instance) openState(ctx context.Context, cfg *config.Config) (err error) {
	if err = os.MkdirAll(cfg.State, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	if in.db, err = store.Open(ctx, filepath.Join(cfg.State, "state.db"), store.Migrations()); err != nil {
		return err
	}
	if in.stateKey, err = stateKey(cfg.State); err != nil {
		return err
	}
	failed := func(doing string, cause error) { in.log.Error(doing, "error", cause) }
	if in.trail, err = audit.Open(filepath.Join(cfg.State, "audit"), audit.Options{
		Durability: audit.Durability(cfg.Audit.Durability), Version: version, OnError: failed,
	}); err != nil {
		return err
	}
	if err = in.openDecisionLog(ctx, cfg); err != nil {
		return err
	}
	if err = in.openNotices(cfg); err != nil {
		return err
	}
	// The trail and the outbox are there already: tickets that a dead process was
	// running change as they are opened.
	if in.tickets, err = approval.New(ctx, in.db, approval.Options{
		Dir: filepath.Join(cfg.State, "instances"), TTL: cfg.Approvals.TTL, MaxLive: cfg.Approvals.MaxLive,
		Changed: in.ticketChanged, Standing: in.standing,
	}); err != nil {
		return err
	}
	in.notices.Start()
	if in.files, err = artifact.Open(ctx, filepath.Join(cfg.State, "artifacts"), in.db, artifact.Options{
		TTL: cfg.Artifacts.TTL, MaxBytes: int64(cfg.Artifacts.MaxMiB) << 20, Log: in.log.Named("artifacts"),
	}); err != nil {
		return err
	}
	in.seen, err = audit.OpenEnvelopes(filepath.Join(cfg.State, "runs", "mcp_server", "envelope_validation"), audit.EnvelopeOptions{
		Deterministic: cfg.Deterministic, Now: signal.Now, OnError: failed,
	})
	return err
}

// observe writes one envelope that a door has dealt with to its log.
func (in *instance) observe(e wire.Event) { in.seen.Write(audit.EnvelopeEvent(e)) }

// close ends everything in the order in which nothing is lost: steward and upstreams, so
// that no call is under way, then the trail, then the store.
func (in *instance) close() error {
	var errs []error
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if in.steward != nil {
		errs = append(errs, in.steward.Close(ctx))
	}
	if in.upstream != nil {
		errs = append(errs, in.upstream.Close(ctx))
	}
	if in.notices != nil {
		in.notices.Close()
	}
	if in.tickets != nil {
		errs = append(errs, in.tickets.Close())
	}
	if in.verify != nil {
		in.verify.close()
	}
	if in.trail != nil {
		errs = append(errs, in.trail.Close())
	}
	if in.told != nil {
		errs = append(errs, in.closeDecisionLog())
	}
	if in.bus != nil {
		in.bus.Close()
	}
	if in.seen != nil {
		errs = append(errs, in.seen.Close())
	}
	if in.files != nil {
		errs = append(errs, in.files.Close())
	}
	if in.db != nil {
		errs = append(errs, in.db.Close())
	}
	return errors.Join(errs...)
}

// apply loads cfg beside what serves, and swaps it in whole. On an error
// nothing has changed. The caller must hold in.swap.
func (in *instance) apply(ctx context.Context, cfg *config.Config) error {
	o, engine, stale, err := openPolicy(ctx, &cfg.Policy.PolicySource, policyDir(cfg))
	if err != nil {
		in.metrics.loads.WithLabelValues(loadRefused).Inc()
		return err
	}
	ids := identityConfig(cfg, in.role)
	if _, err := identity.New(ids); err != nil {
		return err
	}
	channels := noticeChannels(cfg)
	if _, err := notice.New(notice.Options{DB: in.db, Link: in.ticketPage}, channels); err != nil {
		return err
	}
	prepare(cfg)
	if err := in.upstream.Apply(ctx, cfg); err != nil {
		return err
	}
	if err := in.notices.Apply(channels); err != nil {
		return err
	}
	if err := in.told.Apply(ctx, decisionSinks(cfg)); err != nil {
		return err
	}
	if err := in.auth.Apply(ids); err != nil {
		return err
	}
	in.limits.Apply(limitRules(cfg))
	in.gate.Apply(settings(cfg))
	in.verify.sampler.SetShare(cfg.Policy.Verify.Sample)
	in.mu.Lock()
	in.cfg = cfg
	in.mu.Unlock()
	in.exchange(o, engine)
	in.loaded(o, stale)
	in.asked().apply(cfg)
	return nil
}

// prepare tells our own standard tools, where they are an upstream, that the
// state directory is theirs too.
func prepare(cfg *config.Config) {
	for i, s := range cfg.Servers {
		if s.Command != "toolgate" || s.Env[toolsDir] != "" {
			continue
		}
		env := maps.Clone(s.Env)
		if env == nil {
			env = map[string]string{}
		}
		env[toolsDir] = filepath.Join(cfg.State, "tools")
		cfg.Servers[i].Env = env
	}
}

func settings(cfg *config.Config) proxy.Settings {
	methods := make(map[string][]string)
	for _, s := range cfg.Servers {
		methods[s.Name] = s.Methods
	}
	clients := cfg.Approvals.Clients
	if clients == nil {
		clients = config.KnownClients()
	}
	patience := make([]proxy.ClientProfile, len(clients))
	for i, c := range clients {
		patience[i] = proxy.ClientProfile(c)
	}
	return proxy.Settings{
		Results: cfg.Results, Hold: cfg.Approvals.Hold, Clients: patience, Execute: cfg.Approvals.Execute,
		ConsoleURL: consoleURL(cfg),
		Inline:     cfg.Artifacts.InlineKiB << 10, ArtifactURL: "http://" + reachable(cfg.Listen), Methods: methods,
	}
}

func identityConfig(cfg *config.Config, role string) identity.Config {
	c := identity.Config{LocalRole: role, Configured: cfg.Identity.Configured}
	for _, t := range cfg.Identity.Tokens {
		c.Tokens = append(c.Tokens, identity.Token{Subject: t.Subject, Roles: t.Roles, SHA256: t.SHA256})
	}
	for _, j := range cfg.Identity.JWT {
		c.JWT = append(c.JWT, identity.JWT{Issuer: j.Issuer, Audience: j.Audience, JWKS: j.JWKS, RolesClaim: j.RolesClaim})
	}
	return c
}

func limitRules(cfg *config.Config) limit.Rules {
	var r limit.Rules
	if d := cfg.Limits.Default; d != nil {
		rate := limit.Rate(*d)
		r.Default = &rate
	}
	for _, rule := range cfg.Limits.Rules {
		r.Rules = append(r.Rules, limit.Rule{
			Tool: rule.Tool, Role: rule.Role, Server: rule.Server, Principal: rule.Principal, Rate: limit.Rate(rule.Rate),
		})
	}
	return r
}
