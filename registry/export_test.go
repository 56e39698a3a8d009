package registry

import (
	"encoding/json"

	"github.com/toolgate/toolgate/registry/config"
)

// Discover makes tools from definitions without a server.
func (r *Registry) Discover(cfg config.Server, definitions []json.RawMessage) ([]*Tool, []string) {
	return r.discover(cfg, definitions, nil)
}
