package app

import (
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/replica"
	"github.com/toolgate/toolgate/registry/config"
)

// newRouter returns what passes requests on to the owners of their sessions, nil without
// toolgate.replica.
func (a *App) newRouter(cfg *config.Config, l *Listeners) (*replica.Router, error) {
	if cfg.Replica == nil {
		return nil, nil
	}
	hosts := guard.NewHosts(hostsOf(cfg, cfg.Listen), cfg.AllowedOrigins...)
	return replica.New(replica.Options{
		Secret: a.state.key, Directory: a.shared.client, Address: cfg.Replica.Address, TLS: l.replicas.current, Admits: hosts.Admits, Log: a.log.Named("replica"),
	})
}

// serveReplicas serves the requests that other replicas pass on to sessions of this one, in
// group, and lets them find it. It returns what ends the server. Without a router there is
// nothing to serve.
func (a *App) serveReplicas(group *errgroup.Group, router *replica.Router, door *mcp.Door, l *Listeners) (hangUp func()) {
	if router == nil {
		return func() {}
	}
	server, most := newServer(router.Own(door)), min(mostAgents, openFiles()/8)
	server.ErrorLog = a.httpLog("replicas")
	replicas := newListener(l.Replicas, most, a.metrics.dropped.WithLabelValues("replicas").Inc)
	group.Go(func() error { return serveHTTP(server, l.replicas.secure(replicas)) })
	router.Announce()
	return func() { a.hangUp(server, replicas) }
}
