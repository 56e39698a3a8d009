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
