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

// Tree reads TOML or YAML, by the name of the file, and returns it as JSON; nil when there
// are faults.
func Tree(name string, data []byte) []byte {
	l := &loader{cfg: defaults()}
	n := l.parseObject(&file{name: name, data: data}, "")
	if n == nil || len(l.faults) > 0 {
		return nil
	}
	n.literal()
	return n.json(true)
}
