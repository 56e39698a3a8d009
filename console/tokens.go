package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// Tokens are the bearer tokens of the configuration. It is a file that toolgate does not write, so none is
// created here. Implementations are safe for concurrent use.
type Tokens interface {
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

const revokedToken = "revoked"

// tokenRoutes are the routes of tokens.
func (c *Console) tokenRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		"/v1/tokens":      {http.MethodGet: c.as(c.listTokens)},
		"/v1/tokens/{id}": {http.MethodDelete: c.as(c.revokeToken)},
	}
}

var noToken = problem{Status: http.StatusNotFound, Code: "NO_TOKEN", Detail: "no token with this ID is configured", Hint: "GET /v1/tokens lists them; toolgate token revoke also takes hashes of others"}

// tokensFor returns the tokens that p may see, of a subject where that is not "".
func (c *Console) tokensFor(ctx context.Context, p policy.Principal, subject string) ([]Token, error) {
	if !c.may(ctx, p, policy.Operates) {
		return nil, notOperator
	}
	all, err := c.opts.Tokens.List(ctx)
	return slices.DeleteFunc(all, func(t Token) bool { return subject != "" && t.Subject != subject }), err
}

func (c *Console) listTokens(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var part paging
	var subject string
	if err := readQuery(r.URL, part.parameters(map[string]func(string) error{"subject": anyText(&subject)})); err != nil {
		return err
	}
	found, err := c.tokensFor(r.Context(), p, subject)
	if err != nil {
		return err
	}
	return answer(w, pageOf(part, "tokens", found, func(t Token) string { return t.Subject + "\x00" + t.ID }))
}

// revokeFor revokes a token for p, and returns it. It is recorded first.
func (c *Console) revokeFor(r *http.Request, p policy.Principal, credential, id, reason string) (Token, error) {
	act := Act{Name: ActTokenRevoked, Principal: p, Credential: credential}
	all, err := c.tokensFor(r.Context(), p, "")
	if err != nil {
		act.Reason = problemOf(err).Code
		_ = c.record(r, act) // the log has the cause
		return Token{}, err
	}
	i := slices.IndexFunc(all, func(t Token) bool { return t.ID == id })
	switch {
	case i < 0:
		return Token{}, noToken
	case all[i].State == revokedToken:
		return all[i], nil
	}
	t := all[i]
	act.Why, act.Removed = Visible(reason), []string{"token " + t.Subject + " " + t.ID}
	if err := c.record(r, act); err != nil {
		return Token{}, err
	}
	t.State = revokedToken
	return t, c.opts.Tokens.Revoke(r.Context(), id, reason)
}

func (c *Console) revokeToken(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	var reason string
	err := readQuery(r.URL, map[string]func(string) error{"reason": func(value string) error {
		if reason = value; len(value) > maxReasonBytes {
			return badRequest("the reason has at most 1000 bytes", "")
		}
		return nil
	}})
	if err != nil {
		return err
	}
	t, err := c.revokeFor(r, p, "bearer", r.PathValue("id"), reason)
	if err != nil {
		return err
	}
	return answer(w, t)
}
