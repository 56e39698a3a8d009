package console

import (
	"context"
	"net/http"

	"github.com/toolgate/toolgate/policy"
)

var notOperator = problem{Status: http.StatusForbidden, Code: "NOT_OPERATOR", Detail: "the policy does not let you operate servers",
	Hint: "see data.operators of the policy"}

// operates reports whether the policy lets p operate servers. It fails closed: the log has the
// cause.
func (c *Console) operates(ctx context.Context, p policy.Principal) bool {
	if c.opts.Operates == nil {
		return false
	}
	may, err := c.opts.Operates(ctx, p)
	if err != nil {
		c.opts.Log.Error("asking who operates servers", "subject", p.Subject, "error", err)
	}
	return err == nil && may
}

// restart restarts the server that the path names, for those whom the policy lets operate
// servers. It is recorded first.
func (c *Console) restart(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	server := r.PathValue("name")
	act := Act{Name: ActServerRestart, Principal: p, Credential: "bearer", Server: Visible(server)}
	if !c.operates(r.Context(), p) {
		act.Reason = notOperator.Code
		_ = c.record(r, act)
		return notOperator
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
