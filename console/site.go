package console

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/stop"
)

// A site is what all areas share: the frame around their pages, what people may, and the record of
// what they did.
type site struct {
	environment string
	approvals   Approvals // that wait for the visitor
	places      func(ctx context.Context, v visitor) []page.Place
	stopped     func() []stop.Stop                                                              // Options.InForce
	watches     func(p policy.Principal) bool                                                   // Options.Watches
	right       func(ctx context.Context, p policy.Principal, right policy.Right) (bool, error) // Options.May
	trail       func(ctx context.Context, p policy.Principal) (policy.TrailRight, error)        // Options.TrailRight
	recorder    func(a Act) error                                                               // Options.Record
	now         func() time.Time
	log         hclog.Logger
	ctx         context.Context // ends with Close
}

var notOperator = page.Problem{Status: http.StatusForbidden, Code: "NOT_OPERATOR", Detail: "the policy does not let you operate servers",
	Hint: "see data.operators of the policy"}

// may reports whether the policy gives p a right. It fails closed: the log has the cause.
func (s *site) may(ctx context.Context, p policy.Principal, right policy.Right) bool {
	if s.right == nil {
		return false
	}
	may, err := s.right(ctx, p, right)
	if err != nil {
		s.log.Error("asking for a right", "right", string(right), "subject", p.Subject, "error", err)
	}
	return err == nil && may
}

// record records an act of the sender of r, whom a page knows by the session and all else by a bearer token
// unless the act says otherwise. What must not happen without a record fails
// with its error; for refusals the log has the cause.
func (s *site) record(r *http.Request, a Act) error {
	if s.recorder == nil {
		return nil
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		a.Source = host
	}
	if a.Credential == "" {
		a.Credential = "bearer"
		if ours(r.URL.Path) {
			a.Credential = "session"
		}
	}
	if err := s.recorder(a); err != nil {
		s.log.Error("recording an act", "act", a.Name, "subject", a.Principal.Subject, "error", err)
		return page.Problem{Status: http.StatusServiceUnavailable, Code: codeUnrecorded, Detail: "this cannot be recorded, so it is not done", Hint: "the log says why"}
	}
	return nil
}

var notAuditor = page.Problem{Status: http.StatusForbidden, Code: "NOT_AUDITOR", Detail: "the policy does not let you read the audit trail", Hint: "see data.trail of the policy"}

// trailRight returns which records p may read. It fails closed: the log has the cause.
func (s *site) trailRight(ctx context.Context, p policy.Principal) policy.TrailRight {
	if s.trail == nil {
		return policy.TrailNone
	}
	right, err := s.trail(ctx, p)
	if err != nil {
		s.log.Error("asking who reads the trail", "subject", p.Subject, "error", err)
		return policy.TrailNone
	}
	return right
}

// recordRefusal records that act was refused, and returns err, which says why. The log has the cause
// when that cannot be recorded.
func (s *site) recordRefusal(r *http.Request, act Act, err error) error {
	act.Reason = page.ProblemOf(err).Code
	_ = s.record(r, act)
	return err
}

// looks reports whether p may look at tools: to operate servers, or to judge definitions.
func (s *site) looks(ctx context.Context, p policy.Principal) bool {
	return s.may(ctx, p, policy.Operates) || s.may(ctx, p, policy.Definitions)
}

// mayTry returns why p may not try policies, nil where it may: whoever does sees recorded calls.
func (s *site) mayTry(r *http.Request, p policy.Principal) error {
	if !s.may(r.Context(), p, policy.Operates) {
		return notOperator
	}
	if s.trailRight(r.Context(), p) != policy.TrailAll {
		return notAuditor
	}
	return nil
}

// moment reads a time: RFC 3339, or how long ago.
func (s *site) moment(into *time.Time) func(string) error {
	return func(value string) error {
		at, err := time.Parse(time.RFC3339, value)
		if ago, bad := time.ParseDuration(value); bad == nil && ago >= 0 {
			at, err = s.now().Add(-ago), nil
		}
		if err != nil {
			return page.BadRequest("a time is RFC 3339, or how long ago", "2026-01-31T08:00:00Z, or 24h")
		}
		*into = at
		return nil
	}
}

// inForce returns the stops in force here, in visible form, for the banner of pages.
func (s *site) inForce() (all []stop.Stop) {
	if s.stopped == nil {
		return nil
	}
	for _, s := range s.stopped() {
		s.Name, s.Reason, s.By = page.Visible(s.Name), page.Visible(page.OneLine(s.Reason)), page.Visible(s.By)
		all = append(all, s)
	}
	return all
}

// banner is inForce for pages without a session: where not everybody may watch toolgate, it has the
// kinds only.
func (s *site) banner() []stop.Stop {
	all := s.inForce()
	if !s.watches(policy.Principal{}) {
		for i := range all {
			all[i].Name, all[i].Reason = "", ""
		}
	}
	return all
}

func (s *site) shell(ctx context.Context, v visitor, title, at, path string) (page.Shell, error) {
	waiting, err := s.approvals.List(ctx, approval.Filter{Awaiting: v.Principal, Limit: mostAwaiting})
	return page.Shell{Title: title, Environment: page.Visible(s.environment), At: at, Path: path, Places: s.places(ctx, v), Subject: page.Visible(v.Subject), CSRF: v.csrf,
		Alone: v.alone, InForce: s.inForce(), Awaiting: len(waiting)}, err
}

// outside returns the shell of a page for those who have not signed in.
func (s *site) outside(title string) page.Shell {
	return page.Shell{Title: title, Environment: page.Visible(s.environment), InForce: s.banner()}
}

// refusePage answers with err as a page, in the frame of v if that is somebody.
func (s *site) refusePage(w http.ResponseWriter, r *http.Request, v visitor, err error) error {
	return s.showProblem(w, r, v, s.problem(r, err))
}

func (s *site) showProblem(w http.ResponseWriter, r *http.Request, v visitor, p page.Problem) error {
	frame, csp := s.outside(p.Title), page.PlainCSP
	if v.Subject != "" {
		if own, err := s.shell(r.Context(), v, p.Title, "", ""); err == nil {
			frame, csp = own, page.ScriptCSP
		}
	}
	return page.Render(w, csp, p.Status, page.ProblemView(frame, p))
}

// problem returns the refusal for err and logs internal errors.
func (s *site) problem(r *http.Request, err error) page.Problem {
	p := page.ProblemOf(err)
	if p.Status == http.StatusInternalServerError {
		s.log.Error("serving the console", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	p.Title = http.StatusText(p.Status)
	p.Type = "urn:toolgate:problem:" + strings.ReplaceAll(strings.ToLower(p.Code), "_", "-")
	return p
}

// untilClosed returns the request's context, which Close ends too.
func (s *site) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// mayDecide returns a function that reports whether p may decide on a ticket. It remembers its answers.
func (s *site) mayDecide(ctx context.Context, p policy.Principal) func(ticket string) bool {
	may := map[string]bool{}
	return func(ticket string) bool {
		if _, known := may[ticket]; !known {
			k, err := s.approvals.Get(ctx, ticket)
			may[ticket] = err == nil && k.MayDecide(p)
		}
		return may[ticket]
	}
}
