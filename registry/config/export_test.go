package config

import (
	"fmt"

	"github.com/toolgate/toolgate/internal/tree"
)

// Formats are the formats of the published schema.
var Formats = formats

// CheckBind is checkBind with an error.
func CheckBind(addr string, id Identity, plain bool) error {
	message, hint := checkBind(addr, id, plain)
	if message == "" {
		return nil
	}
	return fmt.Errorf("%q %s\nhint: %s", tree.Clip(addr), message, hint)
}
