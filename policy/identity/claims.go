package identity

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/toolgate/toolgate/policy"
)

// claimNames are the members of a token that hold facts about its principal, "" = none, and
// the roles that values of scope and of groups grant.
type claimNames struct {
	subject, roles, person, tenant, groups string
	byScope, byGroup                       map[string][]string
}

// members are the claims of a token by name.
type members map[string]json.RawMessage

// readClaims reads everything about the principal of a verified token; of its subject, what
// the issuer calls it. Actors are named like subjects: with several issuers, "issuer|sub".
func readClaims(t *oidc.IDToken, names claimNames, several bool) (policy.Principal, error) {
	var all members
	err := t.Claims(&all)
	p := policy.Principal{Issuer: t.Issuer}
	read := func(what string, from func() error) {
		if err == nil && from() != nil {
			err = refuse(Claims, "the "+what+" claim of the token is malformed")
		}
	}
	var groups []string
	read("subject", func() (err error) { p.Subject, err = all.text(names.subject); return err })
	read("roles", func() (err error) { p.Roles, err = all.list(names.roles); return err })
	read("groups", func() (err error) { groups, err = all.list(names.groups); return err })
	read("scope or scp", func() (err error) { p.Scopes, err = all.scopes(); return err })
	for _, scope := range p.Scopes {
		p.Roles = append(p.Roles, names.byScope[scope]...)
	}
	for _, group := range groups {
		p.Roles = append(p.Roles, names.byGroup[group]...)
	}
	p.Roles = distinct(p.Roles)
	read("person", func() (err error) { p.Person, err = all.text(names.person); return err })
	read("tenant", func() (err error) { p.Tenant, err = all.text(names.tenant); return err })
	read("client_id or azp", func() (err error) {
		if p.ClientID, err = all.text("client_id"); err == nil && p.ClientID == "" {
			p.ClientID, err = all.text("azp")
		}
		return err
	})
	name := func(issuer, sub string) string {
		if several || issuer != t.Issuer {
			return issuer + "|" + sub
		}
		return sub
	}
	read("act", func() (err error) { p.Actors, err = all.chain("act", t.Issuer, name, maxActors); return err })
	read("may_act", func() (err error) { p.MayAct, err = all.chain("may_act", t.Issuer, name, 1); return err })
	if err == nil && len(p.Actors) > 0 && len(p.MayAct) > 0 && !slices.Contains(p.MayAct, p.Actors[0]) {
		err = refuse(Claims, "the actor of the token may not act for its subject")
	}
	if err != nil {
		return policy.Principal{}, err
	}
	return p, nil
}

// find returns a claim, nil when it is absent or null. Dots in its name descend, unless a
// claim has the whole name.
func (m members) find(name string) (json.RawMessage, error) {
	for name != "" {
		if value, ok := m[name]; ok {
			if string(value) == "null" {
				return nil, nil
			}
			return value, nil
		}
		head, rest, dotted := strings.Cut(name, ".")
		if !dotted || m[head] == nil {
			return nil, nil
		}
		var inner members
		if err := json.Unmarshal(m[head], &inner); err != nil {
			return nil, err
		}
		m, name = inner, rest
	}
	return nil, nil
}

// list reads a string or a list of strings.
func (m members) list(name string) (list []string, err error) {
	value, err := m.find(name)
	if value == nil {
		return nil, err
	}
	var one string
	if json.Unmarshal(value, &one) == nil {
		return []string{one}, nil
	}
	err = json.Unmarshal(value, &list)
	return list, err
}

// scopes reads the scopes of an access token: scope with spaces between (RFC 9068 section
// 2.2.3), or scp, which is that or a list.
func (m members) scopes() ([]string, error) {
	name := "scope"
	if m[name] == nil {
		name = "scp"
	}
	list, err := m.list(name)
	if len(list) == 1 {
		list = strings.Fields(list[0])
	}
	return list, err
}

// distinct returns a list without repetitions, in its order.
func distinct(list []string) (out []string) {
	for _, text := range list {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// text reads a string; an empty one is malformed, because it names nobody.
func (m members) text(name string) (text string, err error) {
	value, err := m.find(name)
	if value == nil {
		return "", err
	}
	if err = json.Unmarshal(value, &text); err == nil && text == "" {
		err = errors.New("it is empty")
	}
	return text, err
}

// chain reads the nested objects of act (RFC 8693 section 4.1), at most as many as most:
// each has a sub, or the client_id of a program, and the iss of the token unless it says
// another.
func (m members) chain(name, issuer string, named func(issuer, sub string) string, most int) (parties []string, err error) {
	for value := m[name]; value != nil && string(value) != "null"; value = m[name] {
		m = nil
		if err := json.Unmarshal(value, &m); err != nil {
			return nil, err
		}
		sub, err := m.text("sub")
		if err == nil && sub == "" {
			sub, err = m.text("client_id")
		}
		iss, issErr := m.text("iss")
		switch {
		case issErr != nil:
			return nil, errors.Join(err, issErr)
		case sub == "" || len(parties) == most:
			return nil, errors.New("it names nobody, or too many")
		case iss == "":
			iss = issuer
		}
		parties = append(parties, named(iss, sub))
	}
	return parties, nil
}
