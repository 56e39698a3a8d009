package rest

import "slices"

// Routes gives every path that is served with its methods.
func (h *Handler) Routes() map[string][]string {
	routes := make(map[string][]string)
	for path, served := range h.routes {
		for method := range served {
			routes[path] = append(routes[path], method)
		}
		slices.Sort(routes[path])
	}
	return routes
}
