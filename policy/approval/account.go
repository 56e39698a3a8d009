package approval

import (
	"slices"
	"time"
)

// Account is what the requests of one call to its server are made with: a credential that its
// requester has there. It holds no secret.
type Account struct {
	ID      string    `json:"id"`                // of the credential
	Type    string    `json:"type"`              // oauth, exchange or command
	Issuer  string    `json:"issuer,omitempty"`  // of the authorization server; "" = not known
	Account string    `json:"account,omitempty"` // of the person at the server; "" = not known
	Scopes  []string  `json:"scopes,omitempty"`  // that were granted; nil = not known
	Until   time.Time `json:"until,omitzero"`    // when it ends unless it is renewed; zero = not known
}

// Disconnected returns why the call of t, as held describes it now, may not run with the credential
// that it has, "" when it may. What approvers saw has to hold: the requester, and the issuer, the
// account and the scopes of the credential, of which there may be more by now. Another
// credential of the same kind is good, such as one after the person has connected again.
func (t Ticket) Disconnected(held Held) string {
	was, now := t.RunsAs, held.RunsAs
	switch {
	case held.Unconnected != "":
		return held.Unconnected
	case was == nil && now == nil:
		return ""
	case was == nil || now == nil || was.Type != now.Type:
		return "the call was approved to run with another kind of credential"
	case t.Principal.Subject != held.Principal.Subject || t.Principal.Tenant != held.Principal.Tenant || t.Principal.Issuer != held.Principal.Issuer:
		return "the credential is another person's than the requester's"
	case was.Issuer != now.Issuer:
		return "the credential is of another issuer than the one that was approved"
	case was.Account != "" && was.Account != now.Account:
		return "the credential is of another account than the one that was approved"
	case slices.ContainsFunc(was.Scopes, func(scope string) bool { return !slices.Contains(now.Scopes, scope) }):
		return "the credential has fewer scopes than were approved"
	}
	return ""
}
