package mcp

import (
	"strconv"
	"strings"
)

// streamID is the length of a stream's name, which rand.Text makes.
const streamID = 26

// eventID returns the id of event n of a stream. A stream's name is random, so
// an id reveals only how many events its own reader has had.
func eventID(stream string, n uint64) string {
	return stream + "-" + strconv.FormatUint(n, 10)
}

// parseEventID splits an id that eventID made. It returns false for any other
// spelling.
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
