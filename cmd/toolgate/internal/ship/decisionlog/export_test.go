package decisionlog

import (
	"context"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
)

// BatchEvents is the most events of a chunk.
const BatchEvents = batchEvents

// EventOf makes the event of a record.
func EventOf(r *audit.Record, labels map[string]string) (*Event, error) { return eventOf(r, labels) }

// MaskedEvent gives what may be told of e.
func MaskedEvent(ctx context.Context, mask Masker, e *Event) ([]byte, error) {
	return masked(ctx, mask, e)
}

// Hide applies the rules of a mask.
func (e *Event) Hide(rules []policy.MaskRule) error { return e.hide(rules) }
