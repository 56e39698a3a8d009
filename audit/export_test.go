package audit

import (
	"time"

	"github.com/toolgate/toolgate/audit/chain"
)

// AppendRecord encodes a whole line, for benchmarks.
func AppendRecord(b, scratch []byte, r *Record, kind Kind, now time.Time) ([]byte, []byte) {
	scratch = appendRecord(scratch[:0], r, kind, now)
	b, _ = chain.AppendLine(b[:0], chain.Link{}, "01J0000000000000000000000A", scratch)
	return b, scratch
}

// AppendText encodes texts that follow another.
func AppendText(b []byte, text string) []byte {
	return appendTexts(b, `["`, "x", `,"`, text)
}

// AppendEnvelope encodes one event.
func AppendEnvelope(b []byte, e EnvelopeEvent) []byte {
	return appendEnvelope(b, &e, &EnvelopeOptions{Instance: "i"}, 0)
}

// CreateAhead creates a segment that is written ahead in zeros.
var CreateAhead = createAhead

// Queue makes the writer's goroutine write every record.
func (l *Log) Queue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}
