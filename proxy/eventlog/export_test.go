package eventlog

import "slices"

// RereadEvent reads a kept event and writes it again.
func RereadEvent(data []byte) ([]byte, bool) {
	e, ok := readKept(data)
	return slices.Concat(e.head(), e.message), ok
}
