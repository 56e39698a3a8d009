package console

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/toolgate/toolgate/policy"
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

// A listPart is the part of a list that somebody asked for.
type listPart[T any] struct {
	All  []T
	Next string // address of more, "" = that is all

	cursor string // in Next
}

// partOf sorts all by their keys, which differ, and returns the part that p asks for. The list is at an address.
func partOf[T any](at *url.URL, p paging, all []T, key func(T) string) (part listPart[T]) {
	type keyed struct {
		key string
		one T
	}
	rest := make([]keyed, 0, len(all))
	for _, one := range all {
		if k := key(one); k > p.after || p.after == "" {
			rest = append(rest, keyed{k, one})
		}
	}
	slices.SortFunc(rest, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	part.All = make([]T, 0, p.limit)
	for _, k := range rest[:min(len(rest), p.limit)] {
		part.All = append(part.All, k.one)
	}
	if len(rest) > p.limit {
		part.cursor = cursorOf(rest[p.limit-1].key)
		part.Next = withCursor(at, part.cursor)
	}
	return part
}

// cursorOf returns the cursor of what comes after a key.
func cursorOf(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// withCursor returns the address of more of a list at an address.
func withCursor(at *url.URL, cursor string) string {
	query := at.Query()
	query.Set("cursor", cursor)
	return at.Path + "?" + query.Encode()
}

// object is the answer with the part under a name. It has the member next where there are more.
func (l listPart[T]) object(name string) map[string]any {
	out := map[string]any{name: l.All}
	if l.cursor != "" {
		out["next"] = l.cursor
	}
	return out
}

// parts returns an asker that answers with the part of a list that ask returns, under a name.
func parts[L interface{ object(string) map[string]any }](name string, ask func(*http.Request, policy.Principal) (L, error)) asker {
	return answers(func(r *http.Request, p policy.Principal) (map[string]any, error) {
		found, err := ask(r, p)
		return found.object(name), err
	})
}

// anyText reads any text into s.
func anyText(s *string) func(string) error {
	return func(value string) error {
		*s = value
		return nil
	}
}
