package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// A holding is a service and the connection that calls run with there, for a page.
type holding struct {
	Name, Page string
	Whose      string      // subject, where that is somebody else than the visitor
	Connection *Connection // nil = there is none
	CSRF       string
}

// holdingAt returns what v has connected at a service, of all connections.
func holdingAt(v people.Visitor, s Service, all []Connection) holding {
	who := s.owner(v.Principal)
	i := slices.IndexFunc(all, func(k Connection) bool { return k.Server == s.Name && k.Person == who && k.Live() })
	if i < 0 {
		return holding{Name: page.Visible(s.Name), Page: servicePath(s.Name), CSRF: v.CSRF}
	}
	return holdingOf(v, all[i])
}

// holdingOf returns k for a page of v.
func holdingOf(v people.Visitor, k Connection) holding {
	k = k.shown()
	return holding{Name: page.Visible(k.Server), Page: servicePath(k.Server), Connection: &k, CSRF: v.CSRF}
}

func servicePath(name string) string { return page.ConnectionsPath + "/" + url.PathEscape(name) }

// connectionsPage lists holdings.
type connectionsPage struct {
	page.Shell
	Own, Toolgate, Others []holding
	Operates, SeesOthers  bool
}

// listPage lists the services with the visitor's connections and, for operators, with those
// of toolgate and of everybody.
func (c *connections) listPage(r *http.Request, v people.Visitor) (templ.Component, error) {
	all, err := c.made.List(r.Context())
	if err != nil {
		return nil, err
	}
	data := connectionsPage{Operates: c.May(r.Context(), v.Principal, policy.Operates), SeesOthers: c.May(r.Context(), v.Principal, policy.Connections)}
	if data.Shell, err = c.Shell(r.Context(), v, "Connections", page.ConnectionsPath, page.ConnectionsPath); err != nil {
		return nil, err
	}
	for _, s := range c.made.Services() {
		switch {
		case !s.Shared:
			data.Own = append(data.Own, holdingAt(v, s, all))
		case data.Operates:
			data.Toolgate = append(data.Toolgate, holdingAt(v, s, all))
		}
	}
	if data.SeesOthers {
		data.Others = othersThan(v, all)
	}
	return connectionsView(data), nil
}

// othersThan returns the live connections of other people.
func othersThan(v people.Visitor, all []Connection) (found []holding) {
	for _, k := range all {
		if k.Live() && k.Person != personOf(v.Principal) && k.Person != (Person{}) {
			h := holdingOf(v, k)
			h.Whose = h.Connection.Person.Subject
			found = append(found, h)
		}
	}
	return found
}

// connectPage says who asks for what at a service. Nothing begins before the visitor sends its
// form. Its address is that of Options.URL, where the browser has the visitor's cookies when the
// authorization server sends it back.
func (c *connections) connectPage(w http.ResponseWriter, r *http.Request) error {
	if c.url != "" && !c.guard.AtHome(r.Host) {
		return c.guard.MoveHome(w, r)
	}
	return c.guard.VisitAs(c.guard.Anybody, c.askToConnect)(w, r)
}

// connectPage asks whether to connect.
type connectPage struct {
	page.Shell
	holding
	Address string // of the server
	Shared  bool
	Asker   string // address of toolgate
	Plan    Plan
	Refused *page.Problem // why nobody can connect now
}

func (c *connections) askToConnect(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	s, err := c.service(r.Context(), r.PathValue("server"), v.Principal)
	if err != nil {
		return err
	}
	frame, err := c.Shell(r.Context(), v, page.Visible(s.Name), page.ConnectionsPath, servicePath(s.Name))
	if err != nil {
		return err
	}
	all, err := c.made.List(r.Context())
	if err != nil {
		return err
	}
	d := connectPage{Shell: frame, holding: holdingAt(v, s, all), Address: s.Address, Shared: s.Shared, Asker: cmp.Or(c.url, r.Host)}
	status := http.StatusOK
	if d.Plan, err = c.connector.Plan(r.Context(), s.Name, personOf(v.Principal)); err != nil {
		c.Log.Error("asking how to connect", "server", s.Name, "error", err)
		status, d.Refused = unreachableService.Status, &unreachableService
	}
	return page.Render(w, connectCSP, status, connectView(d))
}
