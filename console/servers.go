package console

import (
	"net/http"

	"github.com/toolgate/toolgate/policy"
)

// restart restarts the server that the path names, for those whom the policy lets operate
// servers. It is recorded first.
func (c *Console) restart(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	server, may := r.PathValue("name"), false
	var err error
	if c.opts.Operates != nil {
		may, err = c.opts.Operates(r.Context(), p)
	}
	if err != nil {
		c.opts.Log.Error("restarting a server", "subject", p.Subject, "error", err)
	}
	act := Act{Name: ActServerRestart, Principal: p, Credential: "bearer", Server: Visible(server)}
	if err != nil || !may {
		act.Reason = "NOT_OPERATOR"
		_ = c.record(r, act)
		return problem{Status: http.StatusForbidden, Code: act.Reason, Detail: "the policy does not let you operate servers", Hint: "see data.operators of the policy"}
	}
	if !c.runs(server) {
		return problem{Status: http.StatusNotFound, Code: "NO_SERVER", Detail: "no server of this name runs", Hint: "toolgate server list"}
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
