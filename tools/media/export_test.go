package media

import (
	"maps"
	"slices"
)

// Models returns the names of all models, in order.
func Models() []string { return slices.Sorted(maps.Keys(styles)) }
