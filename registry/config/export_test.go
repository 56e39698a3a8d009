package config

import "fmt"

// CheckBind is checkBind with an error.
func CheckBind(addr string, id Identity, plain bool) error {
	message, hint := checkBind(addr, id, plain)
	if message == "" {
		return nil
	}
	return fmt.Errorf("%q %s\nhint: %s", clip(addr), message, hint)
}
