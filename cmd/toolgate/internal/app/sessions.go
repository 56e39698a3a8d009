package app

import (
	"context"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
)

// sessionDesk is what people see of the sessions of clients. It implements console.ClientSessions.
type sessionDesk struct {
	upstreams *registry.Registry
	door      *mcp.Door
}

// List implements console.ClientSessions.
func (d sessionDesk) List(context.Context) ([]console.ClientSession, error) {
	connections := make(map[string][]console.SessionConnection)
	for _, c := range d.upstreams.SessionConnections() {
		shown := console.SessionConnection{Server: c.Server, Revision: c.Revision, PID: c.PID, Used: c.Used, Calls: c.Calls}
		connections[c.Session] = append(connections[c.Session], shown)
	}
	var all []console.ClientSession
	for _, s := range d.door.Open() {
		all = append(all, console.ClientSession{
			ID: s.Key, Principal: s.Owner.Subject, Tenant: s.Owner.Tenant, Server: s.Route, Transport: s.Transport, Revision: s.Revision, Client: s.Client,
			Since: s.Began, Used: s.Used, Calls: s.Calls, Connections: append([]console.SessionConnection{}, connections[s.Key]...),
		})
	}
	return all, nil
}

// End implements console.ClientSessions.
func (d sessionDesk) End(_ context.Context, id string) (bool, error) {
	return d.door.EndSession(id), nil
}
