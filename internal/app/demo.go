package app

import (
	"strings"

	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// DemoTokens are the tokens of the shipped mcp.json. Everybody knows them.
var DemoTokens = []string{"demo-observer", "demo-researcher", "demo-creator", "demo-treasurer", "demo-approver"}

// DemoToken returns the well-known token that t is, "" for none.
func DemoToken(t config.Token) string {
	for _, d := range DemoTokens {
		if t.SHA256 == identity.HashToken(d) {
			return d
		}
	}
	return ""
}

// demoTokens warns of tokens that everybody knows.
func demoTokens(cfg *config.Config) []Finding {
	var known []string
	for _, t := range cfg.Identity.Tokens {
		if d := DemoToken(t); d != "" {
			known = append(known, d)
		}
	}
	if len(known) == 0 {
		return nil
	}
	return []Finding{warning("toolgate.identity.tokens", "a demo token is known to everybody: "+strings.Join(known, ", "),
		"make your own with toolgate token create, and take these out")}
}
