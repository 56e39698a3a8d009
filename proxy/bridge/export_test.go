package bridge

import (
	"context"
	"net"
)

// DialWith makes b connect with dial. It is called before the first message.
func (b *Bridge) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	b.transport.DialContext = dial
}

// ReadLines gives the messages of one JSON text as lines.
func ReadLines(data []byte) (lines []string, ok bool) {
	all, ok := readMessages(data)
	for _, m := range all {
		lines = append(lines, string(m.line))
	}
	return lines, ok
}
