package app

import (
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry/config"
)

// sessionTTL is how long a session may be idle.
const sessionTTL = 30 * time.Minute

// newRouter returns what passes requests on to the owners of their sessions, nil without
// toolgate.replica.
func (a *App) newRouter(cfg *config.Config, l *Listeners) (*fleet.Router, error) {
	if cfg.Replica == nil {
		return nil, nil
	}
	hosts := guard.NewHosts(hostsOf(cfg, cfg.Listen), cfg.AllowedOrigins...)
	return fleet.New(fleet.Options{
		Secret: a.state.key, Directory: fleet.Shared{Client: a.shared.client}, Address: cfg.Replica.Address, TLS: l.replicas.current, Admits: hosts.Admits, Log: a.log.Named("replica"),
		Passed: func(result string) { a.metrics.passedOn.WithLabelValues(result).Inc() },
	})
}

// shareSessions makes the sessions of a door with opts reachable at other replicas, and take over
// theirs. The caller must call stop after the door has closed.
func (a *App) shareSessions(router *fleet.Router, opts *mcp.Options) (stop func()) {
	if router == nil {
		return func() {}
	}
	keeper := router.NewKeeper(a.shared.client, sessionTTL)
	opts.SessionID, opts.Replica, opts.PassOn = router.SessionID, router.ID(), router.PassOn
	opts.Keeper, opts.SessionTTL = keeper, sessionTTL
	opts.TakenOver = func(whole bool) {
		a.metrics.takenOver.WithLabelValues(map[bool]string{true: "taken", false: "told"}[whole]).Inc()
	}
	return keeper.Close
}

// serveReplicas serves the requests that other replicas pass on to sessions of this one, in
// group, and lets them find it. It returns what ends the server. Without a router there is
// nothing to serve.
func (a *App) serveReplicas(group *errgroup.Group, router *fleet.Router, door *mcp.Door, l *Listeners) (hangUp func()) {
	if router == nil {
		return func() {}
	}
	server, most := newServer(router.Own(door)), min(mostAgents, openFiles()/8)
	server.ErrorLog = a.httpLog("replicas")
	replicas := newListener(l.Replicas, most, a.metrics.dropped.WithLabelValues("replicas").Inc)
	group.Go(func() error { return serveHTTP(server, l.replicas.secure(replicas)) })
	router.Announce(door.KeepSessions)
	return func() { a.hangUp(server, replicas) }
}
