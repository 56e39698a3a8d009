package console

import (
	"context"
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

// A Client is an MCP client that can be connected to toolgate.
type Client struct {
	ID   string `json:"id"`   // as toolgate connect takes it
	Name string `json:"name"` // what people call it
	Text string `json:"text"` // of a file that has toolgate only, without a token
}

// guide is how clients reach toolgate, and those of a person that do.
type guide struct {
	Address  string          `json:"address"` // of the agents' listener
	Clients  []Client        `json:"clients"`
	Sessions []ClientSession `json:"sessions"`
}

const connectPath = "/console/connect"

// clients are the pages that connect clients.
type clients struct {
	*people.Site
	known    func() (address string, all []Client) // Options.Clients
	sessions ClientSessions                        // nil = nobody knows them
}

// Routes are the routes of what connects clients.
func (c *clients) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		connectPath:   {http.MethodGet: g.Visit(people.Shows(c.page))},
		"/v1/connect": {http.MethodGet: g.As(page.NoQuery(page.Answers(c.guideFor)))},
	}
}

// guideFor returns how clients reach toolgate, with the sessions of p, the last used first. Everybody
// who is known sees it: the sessions are their own, and the rest is no secret.
func (c *clients) guideFor(r *http.Request, p policy.Principal) (k guide, err error) {
	k.Address, k.Clients = c.known()
	var all []ClientSession
	if c.sessions != nil {
		all, err = c.sessions.List(r.Context())
	}
	k.Sessions = slices.DeleteFunc(append([]ClientSession{}, all...), func(s ClientSession) bool { return s.Principal != p.Subject || s.Tenant != p.Tenant })
	for i := range k.Sessions {
		k.Sessions[i] = k.Sessions[i].shown()
	}
	slices.SortFunc(k.Sessions, func(a, b ClientSession) int { return b.Used.Compare(a.Used) })
	return k, err
}

type clientsPage struct {
	page.Shell
	guide
	One Client // that was asked for, or the first
}

var noClient = page.Problem{Status: http.StatusNotFound, Code: "NO_CLIENT", Detail: "toolgate does not know this client", Hint: "see /console/connect"}

// page says how to connect a client, and whether one of the visitor is connected.
func (c *clients) page(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d clientsPage
	if err := page.ReadQuery(r.URL, map[string]func(string) error{"client": page.String(&d.One.ID)}); err != nil {
		return nil, err
	}
	if d.guide, err = c.guideFor(r, v.Principal); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(d.Clients, func(k Client) bool { return k.ID == d.One.ID || d.One.ID == "" })
	if i < 0 {
		return nil, noClient
	}
	d.One = d.Clients[i]
	d.Shell, err = c.Shell(r.Context(), v, "Connect", connectPath, connectPath+"?"+url.Values{"client": {d.One.ID}}.Encode())
	return clientsView(d), err
}

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
	act := people.Act{Name: audit.EventSessionEnded, Principal: p}
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
