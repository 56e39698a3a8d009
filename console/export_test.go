package console

import (
	"maps"
	"net/http"
	"slices"
)

// Routes are the methods of each path.
func (c *Console) Routes() map[string][]string {
	all := map[string][]string{"/v1/openapi.json": {http.MethodGet}}
	for path, methods := range c.routes() {
		all[path] = slices.Sorted(maps.Keys(methods))
	}
	return all
}
