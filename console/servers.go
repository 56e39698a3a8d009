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

	"github.com/toolgate/toolgate/policy"
)

var notOperator = problem{Status: http.StatusForbidden, Code: "NOT_OPERATOR", Detail: "the policy does not let you operate servers",
	Hint: "see data.operators of the policy"}

// may reports whether the policy gives p a right. It fails closed: the log has the cause.
func (c *Console) may(ctx context.Context, p policy.Principal, right policy.Right) bool {
	if c.opts.May == nil {
		return false
	}
	may, err := c.opts.May(ctx, p, right)
	if err != nil {
		c.opts.Log.Error("asking for a right", "right", string(right), "subject", p.Subject, "error", err)
	}
	return err == nil && may
}

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

// servers returns all servers, without their stderr.
func (c *Console) servers() []Server {
	all := append([]Server{}, serversOf(c.opts.Status().Upstreams)...)
	for i := range all {
		all[i].Latency = c.opts.Latency(all[i].Name)
	}
	return all
}

var noServer = problem{Status: http.StatusNotFound, Code: "NO_SERVER", Detail: "no server of this name runs", Hint: "toolgate server list"}

// listServers lists the servers for those whom the policy lets operate them.
func (c *Console) listServers(r *http.Request, p policy.Principal) (any, error) {
	if !c.may(r.Context(), p, policy.Operates) {
		return nil, notOperator
	}
	return map[string][]Server{"servers": c.servers()}, nil
}

// server returns the server that the path names, with the end of its stderr, for those whom the policy lets
// operate servers.
func (c *Console) server(r *http.Request, p policy.Principal) (Server, error) {
	if !c.may(r.Context(), p, policy.Operates) {
		return Server{}, notOperator
	}
	name, all := r.PathValue("name"), c.opts.Status().Upstreams
	i := slices.IndexFunc(all, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return Server{}, noServer
	}
	found := Server{Upstream: all[i], Latency: c.opts.Latency(name)}
	if c.opts.Stderr != nil {
		found.Stderr = c.opts.Stderr(name)
	}
	return found, nil
}

// restarted restarts the server that the path names, for those whom the policy lets operate
// servers, and returns its state. It is recorded first.
func (c *Console) restarted(r *http.Request, p policy.Principal) (Upstream, error) {
	name := r.PathValue("name")
	act := Act{Name: ActServerRestart, Principal: p, Server: Visible(name)}
	found, err := c.server(r, p)
	if errors.Is(err, notOperator) {
		err = c.recordRefusal(r, act, err)
	}
	switch {
	case err != nil:
		return Upstream{}, err
	case !c.restartable(found):
		return Upstream{}, noServer
	}
	if err := c.record(r, act); err != nil {
		return Upstream{}, err
	}
	return c.opts.Restart(r.Context(), name)
}

// restartable reports whether a server is configured and not disabled.
func (c *Console) restartable(s Server) bool { return c.opts.Restart != nil && s.State != "disabled" }

// serversPage lists servers, or is about one of them.
type serversPage struct {
	shell
	All         []Server
	One         Server
	Restartable bool
	Tools       bool // the visitor may open the pages of tools
}

// serversPage lists the servers.
func (c *Console) serversPage(r *http.Request, v visitor) (templ.Component, error) {
	if !c.may(r.Context(), v.Principal, policy.Operates) {
		return nil, notOperator
	}
	frame, err := c.shell(r.Context(), v, "Servers", serversPath, serversPath)
	return serversView(serversPage{shell: frame, All: c.servers()}), err
}

// serverPage shows the server that the path names.
func (c *Console) serverPage(r *http.Request, v visitor) (templ.Component, error) {
	found, err := c.server(r, v.Principal)
	if err != nil {
		return nil, err
	}
	frame, err := c.shell(r.Context(), v, Visible(found.Name), serversPath, serverPath(found.Name))
	return serverView(serversPage{shell: frame, One: found, Restartable: c.restartable(found), Tools: c.seesTools(r.Context(), v)}), err
}

// submitRestart restarts the server that the path names.
func (c *Console) submitRestart(r *http.Request, v visitor) (string, error) {
	_, err := c.restarted(r, v.Principal)
	return serverPath(r.PathValue("name")), err
}

const serversPath = "/console/servers"

// serverPath returns the path of the page of a server.
func serverPath(name string) string { return serversPath + "/" + url.PathEscape(name) }

// serverRoutes are the routes of servers.
func (c *Console) serverRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		serversPath:                     {http.MethodGet: c.visit(shows(c.serversPage))},
		serversPath + "/{name}":         {http.MethodGet: c.visit(shows(c.serverPage))},
		serversPath + "/{name}/restart": {http.MethodPost: c.submit(leads(c.submitRestart))},
		"/v1/servers":                   {http.MethodGet: c.as(answers(c.listServers))},
		"/v1/servers/{name}":            {http.MethodGet: c.as(answers(c.server))},
		"/v1/servers/{name}/restart":    {http.MethodPost: c.as(answers(c.restarted))},
	}
}
