package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// A Service is a server at which toolgate acts with accounts that people connect.
type Service struct {
	Name    string // of the configuration
	Address string
	Shared  bool // operators connect one account for all callers
}

// A Person is whose a connection is: the issuer, tenant and subject of a principal. The zero
// Person is toolgate itself.
type Person struct {
	Issuer  string `json:"issuer,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Subject string `json:"subject,omitempty"`
}

func personOf(p policy.Principal) Person {
	return Person{Issuer: p.Issuer, Tenant: p.Tenant, Subject: p.Subject}
}

// A Connection is a grant with which toolgate acts for a person at a service. It has no secrets.
type Connection struct {
	ID      string    `json:"id"`
	Server  string    `json:"server"`
	Issuer  string    `json:"issuer,omitempty"`  // of the authorization server
	Account string    `json:"account,omitempty"` // of the person at the service, "" = not known
	Scopes  []string  `json:"scopes"`            // that were granted, nil = not known
	Created time.Time `json:"created"`
	Until   time.Time `json:"until,omitzero"` // when its token ends unless it is renewed, zero = not known
	State   string    `json:"state"`          // live or ended
	Person  Person    `json:"person"`

	Unconfirmed bool `json:"unconfirmed,omitempty"` // just revoked, which its authorization server did not confirm
}

// Live reports whether calls run with k.
func (k Connection) Live() bool { return k.State == liveConnection }

const (
	liveConnection  = "live"
	endedConnection = "ended"
)

// A Plan is what a person is asked to grant.
type Plan struct {
	Issuer   string   // the authorization server
	Resource string   // that the tokens are for
	Scopes   []string // nil = the authorization server chooses
}

// Connections are the connections of everybody. Implementations are safe for concurrent use, and
// their errors contain no secrets.
type Connections interface {
	// Services lists the services by name.
	Services() []Service
	// List returns the connections in a fixed order, those that have ended too if they are known.
	List(ctx context.Context) ([]Connection, error)
	// Revoke ends the connection with an ID. No call that begins later runs with it. confirmed is
	// false where its authorization server should have revoked its tokens, and did not confirm it.
	Revoke(ctx context.Context, id string) (confirmed bool, err error)
}

// A Connector makes connections by sending the browsers of people to authorization servers. At a
// shared service an operator connects toolgate. Implementations are safe for concurrent use, and
// their errors contain no secrets.
type Connector interface {
	// Plan says what Begin will ask for.
	Plan(ctx context.Context, service string, who Person) (Plan, error)
	// Begin returns the address to send the browser to.
	Begin(ctx context.Context, service string, who Person) (address string, err error)
	// Finish makes the connection, once for each Begin by the same person, who may operate servers or
	// not; answer is the query of the address to which the authorization server sent the browser.
	Finish(ctx context.Context, who Person, operates bool, answer url.Values) (Connection, error)
}

const (
	// connectCookie says which connection the browser went away to make.
	connectCookie = "__Host-toolgate-connection"
)

// connectCSP also lets a form be redirected to an authorization server, and from there to where
// that signs people in: form-action holds for redirects too.
const connectCSP = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; " +
	"form-action 'self' https: http://127.0.0.1:* http://localhost:*"

var (
	noService = page.Problem{Status: http.StatusNotFound, Code: "NO_SERVER", Detail: "no server of this name takes accounts that people connect",
		Hint: "see " + page.ConnectionsPath}
	noConnection = page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no such connection, or it is not yours to see",
		Hint: "toolgate connection list"}
	unconfirmed = page.Problem{Status: http.StatusBadGateway, Code: "NOT_CONFIRMED",
		Detail: "the connection has ended here, but its authorization server did not confirm that its tokens are revoked",
		Hint:   "withdraw the access of toolgate there, in the settings of your account"}
	notYourBegin = page.Problem{Status: http.StatusForbidden, Code: "NOT_BEGUN_HERE",
		Detail: "no connection was made: it was not begun in this session of this browser",
		Hint:   "did somebody send you the address? Begin yourself at " + page.ConnectionsPath}
	notConnected = page.Problem{Status: http.StatusForbidden, Code: "NOT_CONNECTED", Detail: "no connection was made: the authorization server did not grant it, or its answer does not count",
		Hint: "begin again at " + page.ConnectionsPath + "; toolgate's log says why"}
	absentConnecting = page.Problem{Status: http.StatusUnauthorized, Code: "SIGNED_OUT", Detail: "no connection was made: you are not signed in",
		Hint: "sign in, and begin again at " + page.ConnectionsPath}
	mayNotSeeConnections = page.Problem{Status: http.StatusForbidden, Code: "NOT_OPERATOR", Detail: "the policy does not let you see connections of others",
		Hint: "see data.connections of the policy"}
	unreachableService = page.Problem{Status: http.StatusServiceUnavailable, Code: "UPSTREAM_UNAVAILABLE", Detail: "the server or its authorization server does not say how to connect",
		Hint: "try again; toolgate's log says why"}
)

// connections are the pages about accounts of people at servers.
type connections struct {
	*people.Guard
	url       string // Options.URL
	made      Connections
	connector Connector
}

// service returns the service with a name, if p may connect it: a shared one is for operators alone.
func (c *connections) service(ctx context.Context, name string, p policy.Principal) (Service, error) {
	all := c.made.Services()
	i := slices.IndexFunc(all, func(s Service) bool { return s.Name == name })
	switch {
	case i < 0:
		return Service{}, noService
	case all[i].Shared && !c.May(ctx, p, policy.Operates):
		return Service{}, people.NotOperator
	}
	return all[i], nil
}

// connection returns the connection with an ID. One that p may not revoke is refused exactly like
// a missing one.
func (c *connections) connection(ctx context.Context, id string, p policy.Principal) (Connection, error) {
	all, err := c.made.List(ctx)
	if err != nil {
		return Connection{}, err
	}
	i := slices.IndexFunc(all, func(k Connection) bool { return k.ID == id })
	right := policy.Connections
	if i >= 0 && all[i].Person == (Person{}) {
		right = policy.Operates
	}
	if i < 0 || all[i].Person != personOf(p) && !c.May(ctx, p, right) {
		return Connection{}, noConnection
	}
	return all[i], nil
}

// connect sends the browser of v to the authorization server. It is recorded first.
func (c *connections) connect(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	act := people.Act{Name: audit.EventConnect, Principal: v.Principal, Server: page.Visible(r.PathValue("server"))}
	s, err := c.service(r.Context(), r.PathValue("server"), v.Principal)
	if err != nil {
		act.Name = audit.EventConnectRefused
		return c.RecordRefusal(r, act, err)
	}
	if err := c.Record(r, act); err != nil {
		return err
	}
	address, err := c.connector.Begin(r.Context(), s.Name, personOf(v.Principal))
	if err != nil {
		c.Log.Error("beginning a connection", "server", s.Name, "error", err)
		return unreachableService
	}
	people.SetCookie(w, connectCookie, connecting(v, s.Name))
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// connecting returns the cookie of a browser that v sends away from a service. Only the session
// that gets it can come back with it.
func connecting(v people.Visitor, service string) string {
	return url.QueryEscape(service) + "|" + people.FormSecret(v.CSRF+service)
}

// finishConnection makes the connection that v has begun in this browser. It is recorded first.
// The answer of the authorization server is on no page and in no link: a visitor who is not
// signed in any more begins again.
func (c *connections) finishConnection(w http.ResponseWriter, r *http.Request) error {
	sent := people.Cookie(r, connectCookie)
	name, _, _ := strings.Cut(sent, "|")
	name, _ = url.QueryUnescape(name) // what cannot be read is no service
	act := people.Act{Name: audit.EventConnected, Server: page.Visible(name)}
	v, err := c.Anybody(w, r)
	if errors.Is(err, people.SignedOut) {
		err = absentConnecting
	}
	act.Principal = v.Principal
	people.SetCookie(w, connectCookie, "")
	var k Connection
	if err == nil && !people.EqualSecrets(sent, connecting(v, name)) {
		act.Server = "" // somebody else wrote it
		err = notYourBegin
	}
	if err == nil {
		k, err = c.finish(r, v, name, act)
	}
	if err != nil {
		act.Name = audit.EventConnectRefused
		return c.RefusePage(w, r, v, c.RecordRefusal(r, act, err))
	}
	http.Redirect(w, r, page.ConnectionsPath+"/"+url.PathEscape(k.Server), http.StatusSeeOther)
	return nil
}

// finish records act and makes the connection of v to a service.
func (c *connections) finish(r *http.Request, v people.Visitor, service string, act people.Act) (Connection, error) {
	if _, err := c.service(r.Context(), service, v.Principal); err != nil {
		return Connection{}, err
	}
	answer, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Connection{}, page.BadRequest("the query cannot be read", "")
	}
	if err := c.Record(r, act); err != nil {
		return Connection{}, err
	}
	k, err := c.connector.Finish(r.Context(), personOf(v.Principal), c.May(r.Context(), v.Principal, policy.Operates), answer)
	if err != nil {
		c.Log.Warn("refusing a connection", "server", service, "error", err)
		if !store.Away(err) {
			err = notConnected
		}
		return Connection{}, err
	}
	return k, nil
}

// disconnect ends the connection that the field id names.
func (c *connections) disconnect(r *http.Request, v people.Visitor) (string, error) {
	k, err := c.connection(r.Context(), r.PostForm.Get("id"), v.Principal)
	if err == nil && k.Server != r.PathValue("server") {
		err = noConnection
	}
	if err == nil {
		err = c.revoke(r, &k, v.Principal)
	}
	if err == nil && k.Unconfirmed {
		err = unconfirmed
	}
	return page.ConnectionsPath, err
}

// revoke ends k for p, who may do so. It is recorded first.
func (c *connections) revoke(r *http.Request, k *Connection, p policy.Principal) error {
	if !k.Live() {
		return nil
	}
	if err := c.Record(r, people.Act{Name: audit.EventDisconnect, Principal: p, Server: page.Visible(k.Server), Removed: []string{"connection " + page.Visible(k.ID)}}); err != nil {
		return err
	}
	confirmed, err := c.made.Revoke(r.Context(), k.ID)
	k.State, k.Unconfirmed = endedConnection, !confirmed
	return err
}

// list answers with the connections of p and, for an operator, with those of toolgate,
// with ?all=true those of everybody, and with ?subject= those of one.
func (c *connections) list(r *http.Request, p policy.Principal) (any, error) {
	var everybody bool
	var subject string
	err := page.ReadQuery(r.URL, map[string]func(string) error{
		"all": func(value string) error {
			if everybody = value == "true"; !everybody {
				return page.BadRequest("all is true: the connections of everybody", "")
			}
			return nil
		},
		"subject": func(value string) error {
			subject, everybody = value, true
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	operates := c.May(r.Context(), p, policy.Operates)
	if everybody && !c.May(r.Context(), p, policy.Connections) {
		return nil, mayNotSeeConnections
	}
	all, err := c.made.List(r.Context())
	if err != nil {
		return nil, err
	}
	found := []Connection{}
	for _, k := range all {
		own := k.Person == personOf(p) || operates && k.Person == Person{}
		if own && subject == "" || everybody && (subject == "" || k.Person.Subject == subject) {
			found = append(found, k.shown())
		}
	}
	return map[string]any{"connections": found}, nil
}

func (c *connections) show(r *http.Request, p policy.Principal) (any, error) {
	k, err := c.connection(r.Context(), r.PathValue("id"), p)
	return k.shown(), err
}

// revokeByID ends a connection, and answers with it.
func (c *connections) revokeByID(r *http.Request, p policy.Principal) (any, error) {
	k, err := c.connection(r.Context(), r.PathValue("id"), p)
	if err == nil {
		err = c.revoke(r, &k, p)
	}
	return k.shown(), err
}

// shown returns k with the texts that others wrote in their visible form.
func (k Connection) shown() Connection {
	k.Account, k.Issuer = page.Visible(k.Account), page.Visible(k.Issuer)
	k.Person = Person{Issuer: page.Visible(k.Person.Issuer), Tenant: page.Visible(k.Person.Tenant), Subject: page.Visible(k.Person.Subject)}
	k.Scopes = page.VisibleAll(k.Scopes)
	return k
}

// Routes are the routes of connections. Their pages are at addresses that agents pass on
// to people.
func (c *connections) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		page.ConnectionsPath:                          {http.MethodGet: g.VisitAs(g.Anybody, people.Shows(c.listPage))},
		page.ConnectionsPath + "/{server}":            {http.MethodGet: c.connectPage, http.MethodPost: g.SubmitAs(g.Anybody, page.ReadForm, c.connect)},
		page.ConnectionsPath + "/{server}/disconnect": {http.MethodPost: g.SubmitAs(g.Anybody, page.ReadForm, people.Leads(c.disconnect))},
		page.ConnectionsPath + "/callback":            {http.MethodGet: c.finishConnection},
		"/v1/connections":                             {http.MethodGet: g.AsAnybody(page.Answers(c.list))},
		"/v1/connections/{id}":                        {http.MethodGet: g.AsAnybody(page.Answers(c.show)), http.MethodDelete: g.AsAnybody(page.Answers(c.revokeByID))},
	}
}

// A holding is a service and the connection that calls run with there, for a page.
type holding struct {
	Name, Page string
	Whose      string      // subject, where that is somebody else than the visitor
	Connection *Connection // nil = there is none
	CSRF       string
}

// holdingAt returns what v has connected at a service, of all connections.
func holdingAt(v people.Visitor, s Service, all []Connection) holding {
	who := personOf(v.Principal)
	if s.Shared {
		who = Person{}
	}
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
	if c.url != "" && !c.AtHome(r.Host) {
		return c.MoveHome(w, r)
	}
	return c.VisitAs(c.Anybody, c.askToConnect)(w, r)
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
