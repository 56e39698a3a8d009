package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

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
func (c *Console) listServers(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	if !c.may(r.Context(), p, policy.Operates) {
		return notOperator
	}
	return answer(w, map[string][]Server{"servers": c.servers()})
}

// server returns the server with a name, with the end of its stderr, for those whom the policy lets
// operate servers.
func (c *Console) server(ctx context.Context, name string, p policy.Principal) (Server, error) {
	if !c.may(ctx, p, policy.Operates) {
		return Server{}, notOperator
	}
	all := c.opts.Status().Upstreams
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

// showServer shows the server that the path names.
func (c *Console) showServer(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	found, err := c.server(r.Context(), r.PathValue("name"), p)
	if err != nil {
		return err
	}
	return answer(w, found)
}

// restart restarts the server that the path names.
func (c *Console) restart(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	after, err := c.restarted(r, p, "bearer")
	if err != nil {
		return err
	}
	return answer(w, after)
}

// restarted restarts the server that the path names, for those whom the policy lets operate
// servers, and returns its state. It is recorded first.
func (c *Console) restarted(r *http.Request, p policy.Principal, credential string) (Upstream, error) {
	name := r.PathValue("name")
	act := Act{Name: ActServerRestart, Principal: p, Credential: credential, Server: Visible(name)}
	found, err := c.server(r.Context(), name, p)
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
func (c *Console) serversPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	if !c.may(r.Context(), v.Principal, policy.Operates) {
		return notOperator
	}
	frame, err := c.shell(r.Context(), v, "Servers", serversPath, serversPath)
	if err != nil {
		return err
	}
	return render(w, appCSP, http.StatusOK, serversView(serversPage{shell: frame, All: c.servers()}))
}

// serverPage shows the server that the path names.
func (c *Console) serverPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	found, err := c.server(r.Context(), r.PathValue("name"), v.Principal)
	if err != nil {
		return err
	}
	frame, err := c.shell(r.Context(), v, Visible(found.Name), serversPath, serverPath(found.Name))
	if err != nil {
		return err
	}
	return render(w, appCSP, http.StatusOK, serverView(serversPage{shell: frame, One: found, Restartable: c.restartable(found), Tools: c.seesTools(r.Context(), v)}))
}

// submitRestart restarts the server that the path names.
func (c *Console) submitRestart(w http.ResponseWriter, r *http.Request, v visitor) error {
	if _, err := c.restarted(r, v.Principal, "session"); err != nil {
		return err
	}
	http.Redirect(w, r, serverPath(r.PathValue("name")), http.StatusSeeOther)
	return nil
}

const serversPath = "/console/servers"

// serverPath returns the path of the page of a server.
func serverPath(name string) string { return serversPath + "/" + url.PathEscape(name) }

// serverRoutes are the routes of servers.
func (c *Console) serverRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		serversPath:                     {http.MethodGet: c.visit(c.serversPage)},
		serversPath + "/{name}":         {http.MethodGet: c.visit(c.serverPage)},
		serversPath + "/{name}/restart": {http.MethodPost: c.submit(c.submitRestart)},
		"/v1/servers":                   {http.MethodGet: c.as(c.listServers)},
		"/v1/servers/{name}":            {http.MethodGet: c.as(c.showServer)},
		"/v1/servers/{name}/restart":    {http.MethodPost: c.as(c.restart)},
	}
}
