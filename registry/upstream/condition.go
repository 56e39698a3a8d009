package upstream

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Condition says which clients a server offers a definition to. It is canonical text: ""
// for every client, or client: and names of capabilities in their order, of which a client
// declares at least one:
//
//	client:io.modelcontextprotocol/ui
//	client:elicitation,roots,sampling
//
// or form: and what names one definition, which then is for those whose connection lists it.
//
// The word before the colon is the kind of the condition. A condition of a kind that this
// version does not know admits nobody.
type Condition string

const (
	aboutClient = "client:"
	aboutForm   = "form:"
	// maxCapabilities bounds the names of one Condition.
	maxCapabilities = 16
)

// capabilityName is the form of names that a Condition can have, of at most 128 bytes. Clients choose them.
var capabilityName = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

// ConditionOf returns the condition of clients with some capabilities, an object as MCP
// has it: the names of its members, and those within extensions and experimental. Names of
// another form are left out, and so are all but the first 16.
func ConditionOf(capabilities json.RawMessage) Condition {
	var names []string
	collect := func(name []byte, value json.RawMessage) bool {
		if len(name) <= 128 && capabilityName.Match(name) && string(value) != "null" {
			names = append(names, string(name))
		}
		return true
	}
	jsonrpc.Each(capabilities, func(name []byte, value json.RawMessage) bool {
		if string(name) == "extensions" || string(name) == "experimental" {
			jsonrpc.Each(value, collect)
			return true
		}
		return collect(name, value)
	})
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return ""
	}
	return Condition(aboutClient + strings.Join(names[:min(len(names), maxCapabilities)], ","))
}

// names returns the capabilities of a condition, nil for every client and for a condition
// of another kind.
func (c Condition) names() []string {
	names, ok := strings.CutPrefix(string(c), aboutClient)
	if !ok {
		return nil
	}
	return strings.Split(names, ",")
}

// ConditionOfForm returns the condition of those whose connection lists a definition.
func ConditionOfForm(definition json.RawMessage) Condition {
	return Condition(aboutForm + strings.TrimPrefix(Form(definition), "sha256:")[:32])
}

// Admits reports whether a definition with this condition is for clients whose own
// condition is given. A definition for those who list it is for every client but those of
// another definition.
func (c Condition) Admits(client Condition) bool {
	if strings.HasPrefix(string(c), aboutForm) {
		return c == client || !strings.HasPrefix(string(client), aboutForm)
	}
	has := client.names()
	return c == "" || slices.ContainsFunc(c.names(), func(name string) bool { return slices.Contains(has, name) })
}

// Words says for people whom a definition is for, such as "for clients with elicitation,
// roots or sampling"; "" for every client.
func (c Condition) Words() string {
	names := c.names()
	switch last := len(names) - 1; {
	case c == "":
		return ""
	case strings.HasPrefix(string(c), aboutForm):
		return "for people who are offered this definition"
	case last < 0:
		return "under the condition " + string(c)
	case last == 0:
		return "for clients with " + names[0]
	default:
		return "for clients with " + strings.Join(names[:last], ", ") + " or " + names[last]
	}
}
