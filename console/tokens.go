package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

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
	act := people.Act{Name: people.ActTokenMade, Principal: p}
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
	act := people.Act{Name: people.ActTokenRevoked, Principal: p}
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
