package console

import (
	"bytes"
	"context"
	_ "embed"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/stop"
)

//go:embed style.css
var styleText []byte

// A place is a page that the navigation lists.
type place struct {
	path, name string
	there      bool // for the visitor
}

// places returns the pages that v finds in the navigation.
func (c *Console) places(ctx context.Context, v visitor) []place {
	operates := c.may(ctx, v.Principal, policy.Operates)
	return slices.DeleteFunc([]place{
		{overviewPath, "Overview", true},
		{callsPath, "Calls", !v.alone && c.opts.Calls != nil && c.trailRight(ctx, v.Principal) != policy.TrailNone},
		{approvalsPath, "Approvals", !v.alone},
		{serversPath, "Servers", !v.alone && operates},
		{toolsPath, "Tools", !v.alone && c.seesTools(ctx, v)},
		{policyPath, "Policy", !v.alone && c.opts.Policy != nil && operates},
		{auditPath, "Audit", !v.alone && c.opts.Verify != nil && c.trailRight(ctx, v.Principal) == policy.TrailAll},
		{sessionsPath, "Sessions", !v.alone && c.opts.Sessions != nil && operates},
		{limitsPath, "Limits", !v.alone && c.opts.Limits != nil && operates},
		{accessPath, "Access", !v.alone && c.opts.Tokens != nil && operates},
		{connectPath, "Connect", !v.alone && c.opts.Clients != nil},
		{connectionsPath, "Connections", c.opts.Connections != nil && len(c.opts.Connections.Services()) > 0},
		{stopPath, "Stop", !v.alone && c.opts.Stops != nil},
	}, func(p place) bool { return !p.there })
}

const approvalsPath = "/console/approvals"

// shell is what every page has around its content.
type shell struct {
	Title         string
	Environment   string // Options.Environment
	At            string // path of the place that the page belongs to
	Path          string // of the page itself, to fetch it anew; "" = it is not
	Places        []place
	Subject, CSRF string // of the visitor; Subject "" = nobody has signed in
	Enter         bool   // the page offers to sign in
	Alone         bool   // nobody has to sign in, and nobody decides
	InForce       []stop.Stop
	Follows       bool // the page follows a feed of its own, and not tickets
	Refresh       bool // the page shows work that goes on: a browser fetches it again
	Awaiting      int  // tickets that wait for the visitor's vote
}

func (c *Console) shell(ctx context.Context, v visitor, title, at, path string) (shell, error) {
	waiting, err := c.opts.Approvals.List(ctx, approval.Filter{Awaiting: v.Principal, Limit: mostAwaiting})
	return shell{Title: title, Environment: Visible(c.opts.Environment), At: at, Path: path, Places: c.places(ctx, v), Subject: Visible(v.Subject), CSRF: v.csrf,
		Alone: v.alone, InForce: c.inForce(), Awaiting: len(waiting)}, err
}

// outside returns the shell of a page for those who have not signed in.
func (c *Console) outside(title string) shell {
	return shell{Title: title, Environment: Visible(c.opts.Environment), InForce: c.banner()}
}

// live reports whether the page follows tickets.
func (s *shell) live() bool { return s.Subject != "" && !s.Alone && s.Path != "" }

// moves reports whether the page follows anything, for which it needs scripts.
func (s *shell) moves() bool { return s.live() || s.Follows }

// windowTitle names the page, after the number of tickets that wait.
func (s *shell) windowTitle() string {
	title := s.Title + " · toolgate" + prefixed(" ", s.Environment)
	if s.Awaiting > 0 {
		title = "(" + strconv.Itoa(s.Awaiting) + ") " + title
	}
	return title
}

// stamp returns t for programs.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// pageCSP allows a page our style sheet and forms that are sent to us.
const pageCSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; style-src 'self'"

// appCSP also allows the pages of approvals our scripts, which may not evaluate
// text, and requests to us.
const appCSP = pageCSP + "; script-src 'self'; connect-src 'self'"

// render answers with a page, whole or not at all.
func render(w http.ResponseWriter, csp string, status int, page templ.Component) error {
	var body bytes.Buffer
	if err := page.Render(context.Background(), &body); err != nil { // a reader that goes away is no error
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", csp)
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // a reader that went away needs no answer
	return nil
}

// refusePage answers with err as a page, in the frame of v if that is somebody.
func (c *Console) refusePage(w http.ResponseWriter, r *http.Request, v visitor, err error) error {
	return c.showProblem(w, r, v, c.problem(r, err))
}

func (c *Console) showProblem(w http.ResponseWriter, r *http.Request, v visitor, p problem) error {
	frame, csp := c.outside(p.Title), pageCSP
	if v.Subject != "" {
		if own, err := c.shell(r.Context(), v, p.Title, "", ""); err == nil {
			frame, csp = own, appCSP
		}
	}
	return render(w, csp, p.Status, problemView(frame, p))
}

// The scripts of the pages. The first two are as their makers publish them, see
// docs/evidence/dependencies.md; the policy of every page forbids them to evaluate text.
var (
	//go:embed assets/htmx-4.0.1.min.js
	htmxScript []byte
	//go:embed assets/hx-sse-4.0.1.min.js
	sseScript []byte
	//go:embed console.js
	ownScript []byte
)

// asset serves a script or the style sheet.
func asset(kind string, text []byte) handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write(text) // a reader that went away needs no answer
		return nil
	}
}
