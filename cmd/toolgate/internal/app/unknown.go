package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
	"github.com/toolgate/toolgate/registry/config"
)

// mostUnknown bounds the warnings about names that are not known.
const mostUnknown = 20

// UnknownTools warns of tools that the policy's data names, and that neither the servers offer
// nor the lock has: the data about them bounds nothing. A name that begins with the prefix of
// a server of which no tool is known is left out, unless it is nearly the name of a known tool.
func UnknownTools(cfg *config.Config, engine *rego.Engine, offered []policy.Tool) (found []Finding) {
	var known []string
	heard := map[string]bool{}
	for _, t := range offered {
		known, heard[t.Server] = append(known, t.Exposed), true
	}
	var quiet []string // prefixes
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		if cfg.Lock != nil {
			for name := range cfg.Lock.Servers[s.Name].Tools {
				known, heard[s.Name] = append(known, s.Prefix+name), true
			}
		}
		if !heard[s.Name] {
			quiet = append(quiet, s.Prefix)
		}
	}
	slices.Sort(known)
	for _, t := range workbench.NamedTools(engine) {
		if _, ok := slices.BinarySearch(known, t.Name); ok || len(known) == 0 {
			continue
		}
		near, hint := text.Nearest(t.Name, known), "toolgate tool list shows the names"
		if near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		} else if slices.ContainsFunc(quiet, func(prefix string) bool { return strings.HasPrefix(t.Name, prefix) }) {
			continue
		}
		found = append(found, warning("unknown-tool", t.Path, fmt.Sprintf("no server offers a tool that is exposed as %q", t.Name), hint))
	}
	return found[:min(len(found), mostUnknown)]
}

// UnknownRoles warns of roles that are to approve held calls and that nobody can have, and of
// roles of tokens that the policy does not know. A policy without data.roles may know any role.
// Where roles come from elsewhere too, from an issuer, from --role of the principal local, or
// from a configuration that is not known (cfg is nil), a role of approvals is a warning only if it is nearly one of the known roles.
func UnknownRoles(cfg *config.Config, engine *rego.Engine) (found []Finding) {
	given := workbench.GivenRoles(engine)
	if given == nil {
		return nil
	}
	held, elsewhere := slices.Clone(given), true
	if cfg != nil {
		elsewhere = admitsLocal(cfg) || len(cfg.Identity.JWT) > 0 || cfg.Console.OIDC != nil
		for i, t := range cfg.Identity.Tokens {
			for _, role := range t.Roles {
				if !slices.Contains(held, role) && !workbench.KnowsRole(engine, role) {
					found = append(found, warning("unknown-role", fmt.Sprintf("toolgate.identity.tokens[%d].roles", i), fmt.Sprintf("the policy does not know the role %q", role), nearRole(role, given)))
				}
			}
			held = append(held, t.Roles...)
		}
	}
	approvers := workbench.Approvers(engine)
	for _, role := range slices.Sorted(maps.Keys(approvers)) {
		hint := nearRole(role, held)
		if !slices.Contains(held, role) && (hint != "" || !elsewhere) {
			found = append(found, warning("unknown-role", approvers[role], fmt.Sprintf("no token and no policy data has the role %q, which is to approve held calls: nobody can decide on them", role), hint))
		}
	}
	return found[:min(len(found), mostUnknown)]
}

// nearRole is the hint for a role that is not known, "" when no known role is near.
func nearRole(role string, known []string) string {
	if near := text.Nearest(role, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return ""
}
