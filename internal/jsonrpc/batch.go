package jsonrpc

import (
	"bytes"
	"fmt"
)

// IsBatch reports whether data, if it is JSON, is an array.
func IsBatch(data []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(data, blanks), []byte{'['})
}

// Split returns the elements of a batch (JSON-RPC 2.0 §6, MCP 2025-03-26). They
// are the bytes of data with spaces for line ends between tokens, and do not
// alias it. Each is one well-formed value, nested no deeper than lim; Decode
// judges the rest. The error is always a *Fault: for a value that is not an
// array, an empty array, and one of more than most elements.
func Split(data []byte, lim Limits, most int) ([][]byte, error) {
	lim = lim.orDefault()
	lim.Depth++ // the batch is not part of its messages
	s, f := scan(data, lim, zoneFree, false)
	defer s.release()
	switch {
	case f != nil && (f.Kind == TooLarge || IsBatch(data)):
		return nil, f
	case !IsBatch(data):
		return nil, invalid("", "a batch must be an array").wanted("an array", "something else")
	}
	var all [][]byte
	for element := range Elements(s.data) {
		all = append(all, element)
	}
	switch {
	case len(all) == 0:
		return nil, invalid("", "a batch must not be empty").wanted("one message or more", "none")
	case len(all) > most:
		return nil, invalid("", fmt.Sprintf("a batch must not have more than %d messages", most))
	}
	return all, nil
}
