package mcp

import (
	"strconv"
	"strings"
)

// streamID is how long the name of a stream is: what rand.Text gives.
const streamID = 26

// eventID names event n of a stream. A stream's name is random, so an id says
// nothing but how many events its own reader has had.
func eventID(stream string, n uint64) string {
	return stream + "-" + strconv.FormatUint(n, 10)
}

// parseEventID takes an id of eventID apart and reports whether text is one, in
// the one spelling there is.
func parseEventID(text string) (stream string, n uint64, ok bool) {
	stream, digits, found := strings.Cut(text, "-")
	if !found || len(stream) != streamID || len(digits) > 20 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return "", 0, false
	}
	return stream, n, true
}
