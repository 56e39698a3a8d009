package registry

import (
	"encoding/json"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Discover makes tools from definitions without a server.
func (r *Registry) Discover(cfg config.Server, definitions []json.RawMessage) ([]*Tool, []string) {
	return r.discover(&entry{cfg: cfg, listed: upstream.Listing{Tools: definitions}, fresh: true})
}

// FirstDifference is firstDifference.
var FirstDifference = firstDifference

// Recalls reports whether lists other than that of tools are kept of a server.
func (r *Registry) Recalls(server string) bool { return r.Catalogue().entry(server).server.Recalls() }
