package clients

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Connect says how toolgate is entered as a server of a client.
type Connect struct {
	Entry map[string]any              `json:"entry"` // {url}, {command} and {token} are filled in
	Token map[string]any              `json:"token"` // added to Entry where agents need a token
	Root  map[string][]map[string]any `json:"root"`  // elements with an id, added to lists of the file where agents need a token
}

// Address is where a client reaches toolgate.
type Address struct {
	URL     string // of the route, such as http://127.0.0.1:8787/mcp
	Command string // path of the toolgate binary, for clients that only start commands
	Token   string // what stands for the token that agents show; "" = none is needed
	Literal bool   // Token is the token itself: write it, also where the client expands variables
}

// Entry returns the entry for toolgate in the client's own keys. Clients that
// expand variables get a reference to TOOLGATE_TOKEN. The others get the bridge, which takes the
// token from its environment, unless a.Literal is set. The error is for clients that call no servers.
func (c Client) Entry(a Address) (map[string]any, error) {
	if c.Connect == nil {
		return nil, fmt.Errorf("%s calls no servers: there is nothing to connect", c.Name)
	}
	if a.Token != "" && !a.Literal && c.HoldsToken() {
		return map[string]any{"command": a.Command, "args": []string{"stdio", "--connect", a.URL}}, nil
	}
	entry := maps.Clone(c.Connect.Entry)
	if a.Token != "" {
		maps.Copy(entry, c.Connect.Token)
	}
	with := strings.NewReplacer("{url}", a.URL, "{command}", a.Command, "{token}", a.Token)
	return replaceTexts(entry, func(s string) string {
		if a.Literal {
			s = tokenReference.ReplaceAllLiteralString(s, a.Token)
		}
		return with.Replace(s)
	}).(map[string]any), nil
}

// tokenReference matches the place of the token in the entries of clients: what stands for the
// token itself, and references to TOOLGATE_TOKEN in the form that each client expands.
var tokenReference = regexp.MustCompile(`\{token\}|\$?\{\{? ?(?:env:|secrets\.)?TOOLGATE_TOKEN ?\}?\}`)

// TakesToken reports whether an entry may hold the token itself.
func (c Client) TakesToken() bool {
	return c.Connect != nil && tokenReference.MatchString(fmt.Sprint(c.Connect.Token))
}

// HoldsToken reports whether an entry with a token holds the token itself, since the
// client expands no variables.
func (c Client) HoldsToken() bool {
	return c.Connect != nil && strings.Contains(fmt.Sprint(c.Connect.Token), "{token}")
}

// replaceTexts returns a value with every string replaced by what with returns for it.
func replaceTexts(v any, with func(string) string) any {
	switch v := v.(type) {
	case string:
		return with(v)
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = replaceTexts(element, with)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[key] = replaceTexts(v[key], with)
		}
		return out
	}
	return v
}
