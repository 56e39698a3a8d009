package console

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
)

const (
	defaultListed = 100 // things in one list
	maxListed     = 1000
)

// paging is the part of a list that a query asks for.
type paging struct {
	limit int
	after string // key of the last thing that the caller has, "" = none
}

// parameters adds those of p to the known parameters of a query.
func (p *paging) parameters(known map[string]func(string) error) map[string]func(string) error {
	p.limit = defaultListed
	known["limit"] = number(&p.limit, 1, maxListed, fmt.Sprintf("limit is a number from 1 to %d", maxListed))
	known["cursor"] = func(value string) error {
		key, err := base64.RawURLEncoding.DecodeString(value)
		if p.after = string(key); err != nil || value == "" {
			return badRequest("this is no cursor", "take next of the last answer, or leave cursor out")
		}
		return nil
	}
	return known
}

// pageOf sorts all by their keys, which differ, and returns the answer with the part that p asks
// for under a name. It has the member next where there are more.
func pageOf[T any](p paging, name string, all []T, key func(T) string) map[string]any {
	type keyed struct {
		key string
		one T
	}
	part := make([]keyed, 0, len(all))
	for _, one := range all {
		if k := key(one); k > p.after || p.after == "" {
			part = append(part, keyed{k, one})
		}
	}
	slices.SortFunc(part, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	shown := make([]T, 0, p.limit)
	for _, k := range part[:min(len(part), p.limit)] {
		shown = append(shown, k.one)
	}
	out := map[string]any{name: shown}
	if len(part) > p.limit {
		out["next"] = base64.RawURLEncoding.EncodeToString([]byte(part[p.limit-1].key))
	}
	return out
}

// shownPart is pageOf for a page at an address: it returns the part, and the address of more, "" for none.
func shownPart[T any](at *url.URL, p paging, all []T, key func(T) string) (part []T, next string) {
	page := pageOf(p, "", all, key)
	if cursor, more := page["next"].(string); more {
		query := at.Query()
		query.Set("cursor", cursor)
		next = at.Path + "?" + query.Encode()
	}
	return page[""].([]T), next
}

// anyText reads any text into s.
func anyText(s *string) func(string) error {
	return func(value string) error {
		*s = value
		return nil
	}
}
