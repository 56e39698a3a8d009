package trail

import (
	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// KeptArguments returns r as the trail keeps it.
func KeptArguments(r *audit.Record, tools *registry.Catalogue, key keys.Key, rules ...config.Arguments) *audit.Record {
	k := argumentKeeper{rules: rules, key: key, tools: func() *registry.Catalogue { return tools }}
	return k.keep(r)
}
