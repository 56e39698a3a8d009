package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// Server is an upstream as those who operate servers see it.
type Server struct {
	Upstream
	Latency *Latency `json:"latency,omitempty"` // nil = not known
	Stderr  []string `json:"stderr,omitempty"`  // its last lines
}

// Latency says how long the last calls of a server took, from handing them to it to its answers.
type Latency struct {
	Calls    int     `json:"calls"` // that it is about
	MedianMS float64 `json:"median_ms"`
	P99MS    float64 `json:"p99_ms"` // 99 of 100 took at most so long
}

// String gives both times as people read them, "" for what is not known.
func (l *Latency) String() string {
	if l == nil {
		return ""
	}
	short := func(ms float64) time.Duration {
		d := time.Duration(ms * float64(time.Millisecond))
		if d > 100*time.Millisecond {
			return d.Round(time.Millisecond)
		}
		return d.Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%v, 99 %% within %v", short(l.MedianMS), short(l.P99MS))
}

// serversOf returns servers of which no more is known.
func serversOf(all []Upstream) (servers []Server) {
	for _, u := range all {
		servers = append(servers, Server{Upstream: u})
	}
	return servers
}

// servers are the pages about servers.
type servers struct {
	*people.Site
	status  func() Status
	latency func(server string) *Latency
	stderr  func(server string) []string                               // Options.Stderr
	restart func(ctx context.Context, server string) (Upstream, error) // Options.Restart
}

// all returns all servers, without their stderr.
func (s *servers) all() []Server {
	all := append([]Server{}, serversOf(s.status().Upstreams)...)
	for i := range all {
		all[i].Latency = s.latency(all[i].Name)
	}
	return all
}

var noServer = page.Problem{Status: http.StatusNotFound, Code: "NO_SERVER", Detail: "no server of this name runs", Hint: "toolgate server list"}

// list lists the servers for those whom the policy lets operate them.
func (s *servers) list(r *http.Request, p policy.Principal) (any, error) {
	if !s.May(r.Context(), p, policy.Operates) {
		return nil, people.NotOperator
	}
	return map[string][]Server{"servers": s.all()}, nil
}

// server returns the server that the path names, with the end of its stderr, for those whom the policy lets
// operate servers.
func (s *servers) server(r *http.Request, p policy.Principal) (Server, error) {
	if !s.May(r.Context(), p, policy.Operates) {
		return Server{}, people.NotOperator
	}
	name, all := r.PathValue("name"), s.status().Upstreams
	i := slices.IndexFunc(all, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return Server{}, noServer
	}
	found := Server{Upstream: all[i], Latency: s.latency(name)}
	if s.stderr != nil {
		found.Stderr = s.stderr(name)
	}
	return found, nil
}

// restarted restarts the server that the path names, for those whom the policy lets operate
// servers, and returns its state. It is recorded first.
func (s *servers) restarted(r *http.Request, p policy.Principal) (Upstream, error) {
	name := r.PathValue("name")
	act := people.Act{Name: audit.EventRestarted, Principal: p, Server: page.Visible(name)}
	found, err := s.server(r, p)
	if errors.Is(err, people.NotOperator) {
		err = s.RecordRefusal(r, act, err)
	}
	switch {
	case err != nil:
		return Upstream{}, err
	case !s.restartable(found):
		return Upstream{}, noServer
	}
	if err := s.Record(r, act); err != nil {
		return Upstream{}, err
	}
	return s.restart(r.Context(), name)
}

// restartable reports whether a server is configured and not disabled.
func (s *servers) restartable(one Server) bool { return s.restart != nil && one.State != "disabled" }

// serversPage lists servers, or is about one of them.
type serversPage struct {
	page.Shell
	All         []Server
	One         Server
	Restartable bool
}

// listPage lists the servers.
func (s *servers) listPage(r *http.Request, v people.Visitor) (templ.Component, error) {
	if !s.May(r.Context(), v.Principal, policy.Operates) {
		return nil, people.NotOperator
	}
	frame, err := s.Shell(r.Context(), v, "Servers", serversPath, serversPath)
	return serversView(serversPage{Shell: frame, All: s.all()}), err
}

// page shows the server that the path names.
func (s *servers) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	found, err := s.server(r, v.Principal)
	if err != nil {
		return nil, err
	}
	frame, err := s.Shell(r.Context(), v, page.Visible(found.Name), serversPath, serverPath(found.Name))
	return serverView(serversPage{Shell: frame, One: found, Restartable: s.restartable(found)}), err
}

// submitRestart restarts the server that the path names.
func (s *servers) submitRestart(r *http.Request, v people.Visitor) (string, error) {
	_, err := s.restarted(r, v.Principal)
	return serverPath(r.PathValue("name")), err
}

const serversPath = "/console/servers"

// serverPath returns the path of the page of a server.
func serverPath(name string) string { return serversPath + "/" + url.PathEscape(name) }

// Routes are the routes of servers.
func (s *servers) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		serversPath:                     {http.MethodGet: g.Visit(people.Shows(s.listPage))},
		serversPath + "/{name}":         {http.MethodGet: g.Visit(people.Shows(s.page))},
		serversPath + "/{name}/restart": {http.MethodPost: g.Submit(people.Leads(s.submitRestart))},
		"/v1/servers":                   {http.MethodGet: g.As(page.Answers(s.list))},
		"/v1/servers/{name}":            {http.MethodGet: g.As(page.Answers(s.server))},
		"/v1/servers/{name}/restart":    {http.MethodPost: g.As(page.Answers(s.restarted))},
	}
}
