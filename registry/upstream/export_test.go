package upstream

import (
	"bytes"
	"encoding/json"
	"io"
	"sync/atomic"
)

// deaf is a wire on which nobody hears.
type deaf struct{}

func (deaf) reply([]byte)  {}
func (deaf) answer([]byte) {}
func (deaf) close()        {}

// FilterEvents gives what mcp-go would read of an event stream while nobody
// waits for an answer.
func FilterEvents(stream []byte, maxBytes int) ([]byte, error) {
	c := newConn(&Options{MaxAnswerBytes: maxBytes}, new(atomic.Int64), nil)
	c.wire = deaf{}
	defer c.close()
	return io.ReadAll(newEvents(c, io.NopCloser(bytes.NewReader(stream)), source{any: true}, false))
}

// LooseMembers is looseMembers.
func LooseMembers(raw []byte) (map[string]json.RawMessage, error) { return looseMembers(raw) }

// Environ is environ.
func Environ(ours []string, own map[string]string) []string { return environ(ours, own) }
