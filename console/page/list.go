package page

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
)

const (
	DefaultListed = 100 // things in one list
	maxListed     = 1000
)

// Paging is the part of a list that a query asks for.
type Paging struct {
	Limit int
	After string // key of the last thing that the caller has, "" = none
}

// Parameters adds those of p to the known parameters of a query.
func (p *Paging) Parameters(known map[string]func(string) error) map[string]func(string) error {
	p.Limit = DefaultListed
	known["limit"] = Number(&p.Limit, 1, maxListed, fmt.Sprintf("limit is a number from 1 to %d", maxListed))
	known["cursor"] = func(value string) error {
		key, err := base64.RawURLEncoding.DecodeString(value)
		if p.After = string(key); err != nil || value == "" {
			return BadRequest("this is no cursor", "take next of the last answer, or leave cursor out")
		}
		return nil
	}
	return known
}

// A List is the part of a list that somebody asked for.
type List[T any] struct {
	All  []T
	Next string // address of more, "" = that is all

	cursor string // in Next
}

// PartOf sorts all by their keys, which differ, and returns the part that p asks for. The list is at an address.
func PartOf[T any](at *url.URL, p Paging, all []T, key func(T) string) (part List[T]) {
	type keyed struct {
		key string
		one T
	}
	rest := make([]keyed, 0, len(all))
	for _, one := range all {
		if k := key(one); k > p.After || p.After == "" {
			rest = append(rest, keyed{k, one})
		}
	}
	slices.SortFunc(rest, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	part.All = make([]T, 0, p.Limit)
	for _, k := range rest[:min(len(rest), p.Limit)] {
		part.All = append(part.All, k.one)
	}
	if len(rest) > p.Limit {
		part.cursor = CursorOf(rest[p.Limit-1].key)
		part.Next = WithCursor(at, part.cursor)
	}
	return part
}

// CursorOf returns the cursor of what comes after a key.
func CursorOf(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// WithCursor returns the address of more of a list at an address.
func WithCursor(at *url.URL, cursor string) string {
	query := at.Query()
	query.Set("cursor", cursor)
	return at.Path + "?" + query.Encode()
}

// Object is the answer with the part under a name. It has the member next where there are more.
func (l List[T]) Object(name string) map[string]any {
	out := map[string]any{name: l.All}
	if l.cursor != "" {
		out["next"] = l.cursor
	}
	return out
}
