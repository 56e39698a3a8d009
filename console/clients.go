package console

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/a-h/templ"

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
		"/v1/connect": {http.MethodGet: g.As(page.Answers(c.show))},
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

func (c *clients) show(r *http.Request, p policy.Principal) (any, error) {
	if err := page.ReadQuery(r.URL, nil); err != nil {
		return nil, err
	}
	return c.guideFor(r, p)
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
