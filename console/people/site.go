package people

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

// A Site is what all areas of the console share: the frame around their pages, what people may, and
// the record of what they did. It is safe for concurrent use.
type Site struct {
	Now func() time.Time
	Log hclog.Logger

	o        Options
	places   Places
	awaiting Awaiting
	ctx      context.Context // ends streams
}

// Places returns the pages that a visitor finds in the navigation.
type Places func(ctx context.Context, v Visitor) []page.Place

// Awaiting returns how many tickets wait for a person.
type Awaiting func(ctx context.Context, p policy.Principal) (int, error)

// Refusals of people who lack a right.
var (
	// NotOperator is the refusal of somebody who may not operate servers.
	NotOperator = page.Problem{Status: http.StatusForbidden, Code: "NOT_OPERATOR", Detail: "the policy does not let you operate servers",
		Hint: "see data.operators of the policy"}
	// NotAuditor is the refusal of somebody who may not read the trail.
	NotAuditor = page.Problem{Status: http.StatusForbidden, Code: "NOT_AUDITOR", Detail: "the policy does not let you read the audit trail", Hint: "see data.trail of the policy"}
)

// May reports whether the policy gives p a right. It fails closed: the log has the cause.
func (s *Site) May(ctx context.Context, p policy.Principal, right policy.Right) bool {
	if s.o.May == nil {
		return false
	}
	may, err := s.o.May(ctx, p, right)
	if err != nil {
		s.Log.Error("asking for a right", "right", string(right), "subject", p.Subject, "error", err)
	}
	return err == nil && may
}

// Record records an act of the sender of r, whom a page knows by the session and all else by a bearer token
// unless the act says otherwise. What must not happen without a record fails
// with its error; for refusals the log has the cause.
func (s *Site) Record(r *http.Request, a Act) error {
	if s.o.Record == nil {
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
	if err := s.o.Record(a); err != nil {
		s.Log.Error("recording an act", "act", a.Name, "subject", a.Principal.Subject, "error", err)
		return page.Problem{Status: http.StatusServiceUnavailable, Code: codeUnrecorded, Detail: "this cannot be recorded, so it is not done", Hint: "the log says why"}
	}
	return nil
}

// TrailRight returns which records p may read. It fails closed: the log has the cause.
func (s *Site) TrailRight(ctx context.Context, p policy.Principal) policy.TrailRight {
	if s.o.TrailRight == nil {
		return policy.TrailNone
	}
	right, err := s.o.TrailRight(ctx, p)
	if err != nil {
		s.Log.Error("asking who reads the trail", "subject", p.Subject, "error", err)
		return policy.TrailNone
	}
	return right
}

// RecordRefusal records that act was refused, and returns err, which says why. The log has the cause
// when that cannot be recorded. What was refused because it could not be recorded is not recorded either.
func (s *Site) RecordRefusal(r *http.Request, act Act, err error) error {
	if act.Reason = page.ProblemOf(err).Code; act.Reason != codeUnrecorded {
		_ = s.Record(r, act)
	}
	return err
}

// Moment reads a time: RFC 3339, or how long ago.
func (s *Site) Moment(into *time.Time) func(string) error {
	return func(value string) error {
		at, err := time.Parse(time.RFC3339, value)
		if ago, bad := time.ParseDuration(value); bad == nil && ago >= 0 {
			at, err = s.Now().Add(-ago), nil
		}
		if err != nil {
			return page.BadRequest("a time is RFC 3339, or how long ago", "2026-01-31T08:00:00Z, or 24h")
		}
		*into = at
		return nil
	}
}

// inForce returns the stops in force here, in visible form, for the banner of pages.
func (s *Site) inForce() (all []stop.Stop) {
	if s.o.InForce == nil {
		return nil
	}
	for _, s := range s.o.InForce() {
		s.Name, s.Reason, s.By = page.Visible(s.Name), page.Visible(page.OneLine(s.Reason)), page.Visible(s.By)
		all = append(all, s)
	}
	return all
}

// Shell returns what the page of v has around its content. The page belongs to the place at; path is its own,
// to fetch it again, "" = it is not.
func (s *Site) Shell(ctx context.Context, v Visitor, title, at, path string) (page.Shell, error) {
	awaiting, err := s.awaiting(ctx, v.Principal)
	return page.Shell{Title: title, Environment: page.Visible(s.o.Environment), At: at, Path: path, Places: s.places(ctx, v), Subject: page.Visible(v.Subject), CSRF: v.CSRF,
		Alone: v.Alone, InForce: s.inForce(), Awaiting: awaiting}, err
}

// Outside returns the shell of a page for those who have not signed in. Where not everybody may watch
// toolgate, its banner has the kinds of stops only.
func (s *Site) Outside(title string) page.Shell {
	shell := page.Shell{Title: title, Environment: page.Visible(s.o.Environment), InForce: s.inForce()}
	if !s.o.Watches(policy.Principal{}) {
		for i := range shell.InForce {
			shell.InForce[i].Name, shell.InForce[i].Reason = "", ""
		}
	}
	return shell
}

// RefusePage answers with err as a page, in the frame of v if that is somebody.
func (s *Site) RefusePage(w http.ResponseWriter, r *http.Request, v Visitor, err error) error {
	return s.ShowProblem(w, r, v, s.Problem(r, err))
}

// ShowProblem answers with p as a page, in the frame of v if that is somebody.
func (s *Site) ShowProblem(w http.ResponseWriter, r *http.Request, v Visitor, p page.Problem) error {
	frame, csp := s.Outside(p.Title), page.PlainCSP
	if v.Subject != "" {
		if own, err := s.Shell(r.Context(), v, p.Title, "", ""); err == nil {
			frame, csp = own, page.ScriptCSP
		}
	}
	return page.Render(w, csp, p.Status, page.ProblemView(frame, p))
}

// Problem returns the refusal for err and logs internal errors.
func (s *Site) Problem(r *http.Request, err error) page.Problem {
	p := page.ProblemOf(err)
	if p.Status == http.StatusInternalServerError {
		s.Log.Error("serving the console", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	p.Title = http.StatusText(p.Status)
	p.Type = "urn:toolgate:problem:" + strings.ReplaceAll(strings.ToLower(p.Code), "_", "-")
	return p
}

// UntilClosed returns the request's context, which Close ends too.
func (s *Site) UntilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// An Act is something that a person did or tried at this listener and that changed no
// ticket.
type Act struct {
	Name       string           // one of audit.Event…
	Principal  policy.Principal // the zero Principal is nobody
	Source     string           // IP address that the request came from
	Credential string           // bearer, session, token or provider
	Ticket     string           // that the act is about, "" = none
	Server     string           // that the act is about, "" = none
	Tool       string           // of Server, by its name there, that the act is about; "" = none
	Reason     string           // why it was refused, "" = it was not
	Why        string           // what it was for, "" = not said
	Added      []string         // things that it brings, as the record names them
	Removed    []string         // things that it takes away
}

// codeUnrecorded is the code of what is not done because it cannot be recorded.
const codeUnrecorded = "AUDIT_UNAVAILABLE"
