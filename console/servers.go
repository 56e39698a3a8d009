package console

import (
	"context"
	"net/http"

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
	Stderr []string `json:"stderr,omitempty"` // its last lines
}

var noServer = problem{Status: http.StatusNotFound, Code: "NO_SERVER", Detail: "no server of this name runs", Hint: "toolgate server list"}

// listServers lists the servers for those whom the policy lets operate them.
func (c *Console) listServers(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	if !c.may(r.Context(), p, policy.Operates) {
		return notOperator
	}
	return answer(w, map[string][]Upstream{"servers": append([]Upstream{}, c.opts.Status().Upstreams...)})
}

// showServer shows the server that the path names, with the end of its stderr.
func (c *Console) showServer(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	if !c.may(r.Context(), p, policy.Operates) {
		return notOperator
	}
	for _, u := range c.opts.Status().Upstreams {
		if u.Name != r.PathValue("name") {
			continue
		}
		shown := Server{Upstream: u}
		if c.opts.Stderr != nil {
			shown.Stderr = c.opts.Stderr(u.Name)
		}
		return answer(w, shown)
	}
	return noServer
}

// restart restarts the server that the path names, for those whom the policy lets operate
// servers. It is recorded first.
func (c *Console) restart(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	server := r.PathValue("name")
	act := Act{Name: ActServerRestart, Principal: p, Credential: "bearer", Server: Visible(server)}
	if !c.may(r.Context(), p, policy.Operates) {
		act.Reason = notOperator.Code
		_ = c.record(r, act)
		return notOperator
	}
	if !c.runs(server) {
		return noServer
	}
	if err := c.record(r, act); err != nil {
		return err
	}
	after, err := c.opts.Restart(r.Context(), server)
	if err != nil {
		return err
	}
	return answer(w, after)
}

// runs reports whether a server is configured and not disabled.
func (c *Console) runs(server string) bool {
	for _, u := range c.opts.Status().Upstreams {
		if u.Name == server {
			return c.opts.Restart != nil && u.State != "disabled"
		}
	}
	return false
}
