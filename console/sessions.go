package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// ClientSessions are the sessions of MCP clients that this process has. Implementations are safe for
// concurrent use.
type ClientSessions interface {
	// List returns the sessions, and the clients without sessions that were there lately.
	List(ctx context.Context) ([]ClientSession, error)
	// End ends a session by its ID, and reports whether there was one.
	End(ctx context.Context, id string) (bool, error)
}

// A ClientSession is the session of an MCP client, or what is kept of a client of a revision without
// sessions.
type ClientSession struct {
	ID          string              `json:"id"` // as in the audit trail; nobody can use the session with it
	Principal   string              `json:"principal"`
	Tenant      string              `json:"tenant,omitempty"`
	Server      string              `json:"server,omitempty"` // the one that the client reaches, "" = all
	Transport   string              `json:"transport"`        // http or sse
	Revision    string              `json:"revision"`         // of MCP
	Client      string              `json:"client,omitempty"` // name/version that it gave of itself
	Since       time.Time           `json:"since,omitzero"`
	Used        time.Time           `json:"used"`
	Calls       int                 `json:"calls"`       // under way
	Connections []SessionConnection `json:"connections"` // to servers, that belong to it alone
}

// A SessionConnection is the connection to a server that one session has for itself.
type SessionConnection struct {
	Server   string    `json:"server"`
	Revision string    `json:"revision,omitempty"` // of MCP, "" = it is being opened, or has none
	PID      int       `json:"pid,omitempty"`      // of the process that was started for it, 0 = none was
	Used     time.Time `json:"used"`
	Calls    int       `json:"calls"` // under way
}

// clientSessions are the pages about sessions of clients.
type clientSessions struct {
	*people.Site
	open ClientSessions
}

// Routes are the routes of sessions of clients.
func (c *clientSessions) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		sessionsPath:               {http.MethodGet: g.Visit(people.Shows(c.page))},
		sessionsPath + "/{id}/end": {http.MethodPost: g.Submit(people.Leads(c.submitEnd))},

		"/v1/sessions":      {http.MethodGet: g.As(page.Parts("sessions", c.ask))},
		"/v1/sessions/{id}": {http.MethodDelete: g.As(page.Answers(c.end))},
	}
}

var noSession = page.Problem{Status: http.StatusNotFound, Code: "NO_SESSION", Detail: "no session with this ID is open here", Hint: "GET /v1/sessions lists them; another replica has its own"}

// visibleTo returns the sessions that p may see, of a principal and with a connection to a
// server of their own, where these are not "".
func (c *clientSessions) visibleTo(ctx context.Context, p policy.Principal, principal, server string) ([]ClientSession, error) {
	if !c.May(ctx, p, policy.Operates) {
		return nil, people.NotOperator
	}
	all, err := c.open.List(ctx)
	found := slices.DeleteFunc(all, func(s ClientSession) bool {
		return principal != "" && s.Principal != principal || server != "" && !slices.ContainsFunc(s.Connections, func(k SessionConnection) bool { return k.Server == server })
	})
	for i := range found {
		found[i] = found[i].shown()
	}
	return found, err
}

// shown returns s with the texts that others wrote in their visible form.
func (s ClientSession) shown() ClientSession {
	s.Principal, s.Tenant, s.Client = page.Visible(s.Principal), page.Visible(s.Tenant), page.Visible(s.Client)
	return s
}

// order returns a key that sorts sessions by principal.
func (s ClientSession) order() string { return s.Principal + "\x00" + s.ID }

// ask returns the sessions for which r asks, and p may see.
func (c *clientSessions) ask(r *http.Request, p policy.Principal) (d clientSessionsPage, err error) {
	var part page.Paging
	if err := page.ReadQuery(r.URL, part.Parameters(map[string]func(string) error{"principal": page.String(&d.Principal), "server": page.String(&d.Server)})); err != nil {
		return d, err
	}
	found, err := c.visibleTo(r.Context(), p, d.Principal, d.Server)
	d.List = page.PartOf(r.URL, part, found, ClientSession.order)
	return d, err
}

// end ends the session that the path names for p, and returns it as it was. It is recorded first.
func (c *clientSessions) end(r *http.Request, p policy.Principal) (ClientSession, error) {
	act := people.Act{Name: people.ActSessionEnded, Principal: p}
	id := r.PathValue("id")
	all, err := c.visibleTo(r.Context(), p, "", "")
	if err != nil {
		return ClientSession{}, c.RecordRefusal(r, act, err)
	}
	i := slices.IndexFunc(all, func(s ClientSession) bool { return s.ID == id })
	if i < 0 {
		return ClientSession{}, noSession
	}
	act.Removed = []string{"session " + all[i].ID + " of " + all[i].Principal}
	if err := c.Record(r, act); err != nil {
		return ClientSession{}, err
	}
	was, err := c.open.End(r.Context(), id)
	if err == nil && !was {
		err = noSession
	}
	return all[i], err
}

const sessionsPath = "/console/sessions"

type clientSessionsPage struct {
	page.Shell
	page.List[ClientSession]
	Principal, Server string // that were asked for, "" = all
}

// page lists sessions of clients.
func (c *clientSessions) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	d, err := c.ask(r, v.Principal)
	if err != nil {
		return nil, err
	}
	d.Shell, err = c.Shell(r.Context(), v, "Sessions", sessionsPath, "")
	return clientSessionsView(d), err
}

// submitEnd ends the session that the path names.
func (c *clientSessions) submitEnd(r *http.Request, v people.Visitor) (string, error) {
	_, err := c.end(r, v.Principal)
	return sessionsPath, err
}
