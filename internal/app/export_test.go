package app

import (
	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// KeepArguments returns r as the trail keeps it.
func KeepArguments(r *audit.Record, tools *registry.Catalogue, key keys.Key, rules ...config.Arguments) *audit.Record {
	k := argumentKeeper{rules: rules, key: key, tools: func() *registry.Catalogue { return tools }}
	return k.keep(r)
}

// ClientResults returns, by name, how clients get results in place of the setting.
func ClientResults(cfg *config.Config) map[string]string {
	found := map[string]string{}
	for _, p := range clientProfiles(cfg) {
		if p.Results != "" {
			found[p.Name] = p.Results
		}
	}
	return found
}
