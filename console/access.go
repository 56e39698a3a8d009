package console

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// Tokens are the bearer tokens of the configuration. It is a file that toolgate does not write: a token
// that is made here is valid once its entry is in the file. Implementations are safe for concurrent use.
type Tokens interface {
	// Make makes a token of t's subject, person, tenant and roles until its end. Nothing keeps it. The
	// error is for a t that no entry can have, and hides nothing from the sender.
	Make(t Token) (MadeToken, error)
	// List returns the tokens.
	List(ctx context.Context) ([]Token, error)
	// Revoke refuses a token for ever, by its ID, in every process; reason is for the list of revoked ones.
	Revoke(ctx context.Context, id, reason string) error
}

// A Token is a configured bearer token, without the token.
type Token struct {
	ID      string    `json:"id"` // the beginning of its SHA-256
	Subject string    `json:"subject"`
	Person  string    `json:"person,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"`
	Expires time.Time `json:"expires,omitzero"` // zero = never
	State   string    `json:"state"`            // valid, expired or revoked
}

// A MadeToken is a new token, which nobody sees again.
type MadeToken struct {
	ID    string          `json:"id"` // as in the list
	Token string          `json:"token"`
	Entry json.RawMessage `json:"entry"` // what the configuration needs, with the token's hash only
}

const revokedToken = "revoked"

// access are the pages about tokens, and about who came with one.
type access struct {
	*people.Site
	tokens Tokens
	tail   AuditTail
}

// Routes are the routes of tokens.
func (a *access) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		accessPath:                         {http.MethodGet: g.Visit(people.Shows(a.page))},
		seenPath:                           {http.MethodGet: g.Visit(people.Shows(a.seenPage))},
		accessPath + "/tokens":             {http.MethodPost: g.Submit(people.Shows(a.submitMake))},
		accessPath + "/tokens/{id}/revoke": {http.MethodPost: g.Submit(people.Leads(a.submitRevoke))},

		"/v1/tokens":      {http.MethodGet: g.As(page.Parts("tokens", a.ask)), http.MethodPost: g.As(a.create)},
		"/v1/audit/seen":  {http.MethodGet: g.As(page.Answers(a.seenFor))},
		"/v1/tokens/{id}": {http.MethodDelete: g.As(page.Answers(a.revoke))},
	}
}

var noToken = page.Problem{Status: http.StatusNotFound, Code: "NO_TOKEN", Detail: "no token with this ID is configured", Hint: "GET /v1/tokens lists them; toolgate token revoke also takes hashes of others"}

// tokensFor returns the tokens that p may see, of a subject where that is not "".
func (a *access) tokensFor(ctx context.Context, p policy.Principal, subject string) ([]Token, error) {
	if !a.May(ctx, p, policy.Operates) {
		return nil, people.NotOperator
	}
	all, err := a.tokens.List(ctx)
	return slices.DeleteFunc(all, func(t Token) bool { return subject != "" && t.Subject != subject }), err
}

// order returns a key that sorts tokens by subject.
func (t Token) order() string { return t.Subject + "\x00" + t.ID }

// ask returns the tokens for which r asks, and p may see.
func (a *access) ask(r *http.Request, p policy.Principal) (d accessPage, err error) {
	var part page.Paging
	if err := page.ReadQuery(r.URL, part.Parameters(map[string]func(string) error{"subject": page.String(&d.Asked)})); err != nil {
		return d, err
	}
	found, err := a.tokensFor(r.Context(), p, d.Asked)
	d.List = page.PartOf(r.URL, part, found, Token.order)
	return d, err
}

// makeFor makes a token for p that lasts for within, a duration, or "" = for ever. It is recorded first.
func (a *access) makeFor(r *http.Request, p policy.Principal, t Token, within string) (MadeToken, error) {
	act := people.Act{Name: audit.EventTokenMade, Principal: p}
	if !a.May(r.Context(), p, policy.Operates) {
		return MadeToken{}, a.RecordRefusal(r, act, people.NotOperator)
	}
	if within != "" {
		d, err := time.ParseDuration(within)
		if err != nil || d <= 0 {
			return MadeToken{}, page.BadRequest("for is no duration above zero", "720h")
		}
		t.Expires = a.Now().Add(d).UTC().Truncate(time.Second)
	}
	made, err := a.tokens.Make(t)
	if err != nil {
		return MadeToken{}, page.BadRequest(err.Error(), "")
	}
	act.Added = []string{"token " + page.Visible(t.Subject) + " " + made.ID}
	return made, a.Record(r, act)
}

func (a *access) create(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var body struct {
		Subject string   `json:"subject"`
		Person  string   `json:"person"`
		Tenant  string   `json:"tenant"`
		Roles   []string `json:"roles"`
		For     string   `json:"for"`
	}
	if err := page.ReadBody(w, r, &body, "an object with the texts subject, person, tenant and for, and the array roles", `{"subject": "agent-7", "roles": ["researcher"], "for": "720h"}`); err != nil {
		return err
	}
	made, err := a.makeFor(r, p, Token{Subject: body.Subject, Person: body.Person, Tenant: body.Tenant, Roles: body.Roles}, body.For)
	if err != nil {
		return err
	}
	return page.AnswerAs(w, http.StatusCreated, made)
}

// revokeFor revokes a token for p, and returns it. It is recorded first.
func (a *access) revokeFor(r *http.Request, p policy.Principal, id, reason string) (Token, error) {
	if len(reason) > maxReasonBytes {
		return Token{}, page.BadRequest("the reason has at most 1000 bytes", "")
	}
	act := people.Act{Name: audit.EventRevoked, Principal: p}
	all, err := a.tokensFor(r.Context(), p, "")
	if err != nil {
		return Token{}, a.RecordRefusal(r, act, err)
	}
	i := slices.IndexFunc(all, func(t Token) bool { return t.ID == id })
	switch {
	case i < 0:
		return Token{}, noToken
	case all[i].State == revokedToken:
		return all[i], nil
	}
	t := all[i]
	act.Why, act.Removed = page.Visible(reason), []string{"token " + t.Subject + " " + t.ID}
	if err := a.Record(r, act); err != nil {
		return Token{}, err
	}
	t.State = revokedToken
	return t, a.tokens.Revoke(r.Context(), id, reason)
}

func (a *access) revoke(r *http.Request, p policy.Principal) (any, error) {
	var reason string
	if err := page.ReadQuery(r.URL, map[string]func(string) error{"reason": page.String(&reason)}); err != nil {
		return nil, err
	}
	return a.revokeFor(r, p, r.PathValue("id"), reason)
}

const accessPath = "/console/access"

type accessPage struct {
	page.Shell
	page.List[Token]
	Asked string // subject that was asked for, "" = all
	Trail bool   // the visitor reads the whole trail
}

// page lists the tokens of the configuration.
func (a *access) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	d, err := a.ask(r, v.Principal)
	if err != nil {
		return nil, err
	}
	d.Trail = a.TrailRight(r.Context(), v.Principal) == policy.TrailAll
	d.Shell, err = a.Shell(r.Context(), v, "Access", accessPath, "")
	return tokensView(d), err
}

// submitRevoke revokes the token that the path names.
func (a *access) submitRevoke(r *http.Request, v people.Visitor) (string, error) {
	_, err := a.revokeFor(r, v.Principal, r.PathValue("id"), r.PostForm.Get("reason"))
	return accessPath, err
}

// submitMake makes the token that the form describes, and shows it once.
func (a *access) submitMake(r *http.Request, v people.Visitor) (templ.Component, error) {
	field := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	isComma := func(r rune) bool { return r == ',' || r == ' ' }
	t := Token{Subject: field("subject"), Person: field("person"), Tenant: field("tenant"), Roles: strings.FieldsFunc(field("roles"), isComma)}
	made, err := a.makeFor(r, v.Principal, t, field("for"))
	if err != nil {
		return nil, err
	}
	frame, err := a.Shell(r.Context(), v, "New token", accessPath, "")
	return madeTokenView(madeTokenPage{frame, made}), err
}

type madeTokenPage struct {
	page.Shell
	Made MadeToken
}

const (
	seenPath = accessPath + "/seen"
	// seenRecords is how many of the last records of the trail at hand are read, and listedSeen how
	// many principals and sign-ins are shown at most.
	seenRecords, listedSeen = 5000, 100
)

// Seen is who came lately, as the last records of the trail of this process say.
type Seen struct {
	Since      time.Time       `json:"since,omitzero"` // time of the first record that was read; zero = there is none
	Principals []SeenPrincipal `json:"principals"`     // of calls, the latest first, at most 100
	SignIns    []SignIn        `json:"sign_ins"`       // the latest first, at most 100
}

// A SeenPrincipal is a principal of calls.
type SeenPrincipal struct {
	Subject string    `json:"subject"`
	Person  string    `json:"person,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"` // at the last call
	Calls   int       `json:"calls"`
	Last    time.Time `json:"last"`
}

// A SignIn is somebody who signed in or out, or whose credential or sign-in was refused.
type SignIn struct {
	At         time.Time `json:"at"`
	Event      string    `json:"event"`             // sign_in, sign_in_refused, sign_out or credential_refused
	Subject    string    `json:"subject,omitempty"` // "" = nobody knows who
	Source     string    `json:"source,omitempty"`  // IP address
	Credential string    `json:"credential,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Count      int       `json:"count,omitempty"` // that the record stands for, 0 = one
}

// seenFor returns who came lately, for those who read the whole trail. Reading is recorded first.
func (a *access) seenFor(r *http.Request, p policy.Principal) (found Seen, err error) {
	if err := page.ReadQuery(r.URL, nil); err != nil {
		return found, err
	}
	act := people.Act{Name: audit.EventTrailRead, Principal: p, Added: []string{"search principals and sign-ins"}}
	if a.TrailRight(r.Context(), p) != policy.TrailAll {
		return found, a.RecordRefusal(r, act, people.NotAuditor)
	}
	if err := a.Record(r, act); err != nil {
		return found, err
	}
	callers := map[string]*SeenPrincipal{}
	found.SignIns = []SignIn{}
	for line, err := range a.tail(r.Context(), seenRecords, false) {
		if err != nil {
			return found, err
		}
		var record struct {
			Kind      audit.Kind
			Time      time.Time
			Principal audit.Principal
			Event     *audit.Event
		}
		if json.Unmarshal(line, &record) != nil {
			continue // verification finds it
		}
		if found.Since.IsZero() {
			found.Since = record.Time
		}
		switch e := record.Event; {
		case record.Kind == audit.KindOutcome:
			sawCaller(callers, record.Principal, record.Time)
		case e != nil && slices.Contains([]string{audit.EventSignIn, audit.EventSignInRefused, audit.EventSignOut, audit.EventCredentialRefused}, e.Name):
			found.SignIns = append(found.SignIns, SignIn{At: record.Time, Event: e.Name, Subject: page.Visible(record.Principal.Subject), Source: e.Source, Credential: e.Credential, Reason: page.Visible(e.Reason), Count: e.Count})
		}
	}
	slices.Reverse(found.SignIns)
	found.SignIns = found.SignIns[:min(len(found.SignIns), listedSeen)]
	found.Principals = make([]SeenPrincipal, 0, len(callers))
	for _, s := range callers {
		found.Principals = append(found.Principals, *s)
	}
	slices.SortFunc(found.Principals, func(a, b SeenPrincipal) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Tenant+"\x00"+a.Subject+"\x00"+a.Person, b.Tenant+"\x00"+b.Subject+"\x00"+b.Person))
	})
	found.Principals = found.Principals[:min(len(found.Principals), listedSeen)]
	return found, nil
}

// sawCaller counts a call of a principal.
func sawCaller(callers map[string]*SeenPrincipal, p audit.Principal, at time.Time) {
	key := strings.Join([]string{p.Tenant, p.Subject, p.Person}, "\x00")
	s := callers[key]
	if s == nil {
		s = &SeenPrincipal{Subject: page.Visible(p.Subject), Person: page.Visible(p.Person), Tenant: page.Visible(p.Tenant)}
		callers[key] = s
	}
	s.Calls++
	s.Last, s.Roles = at, page.VisibleAll(p.Roles)
}

type seenPageData struct {
	page.Shell
	Seen
}

// seenPage shows who came lately.
func (a *access) seenPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d seenPageData
	if d.Seen, err = a.seenFor(r, v.Principal); err != nil {
		return nil, err
	}
	d.Shell, err = a.Shell(r.Context(), v, "Who came", accessPath, "")
	return seenView(d), err
}
