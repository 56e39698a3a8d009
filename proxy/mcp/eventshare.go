package mcp

import "container/list"

// holding is what the log keeps for one principal.
type holding struct {
	bytes int
	over  list.List // of *stream: nobody reads and nothing more will come, the oldest first
}

// hogLocked returns a principal beyond its equal share that has complete streams, once o
// has cost more bytes; nil when there is none. The caller must hold mu.
func (log *eventLog) hogLocked(o *streams, cost int) *holding {
	for by, h := range log.held {
		more := 0
		if by == o.owner {
			more = cost
		}
		if h.over.Len() > 0 && !log.sharedLocked(by, more) {
			return h
		}
	}
	return nil
}

// sharedLocked reports whether cost more bytes are within the equal share of by. The
// caller must hold mu.
func (log *eventLog) sharedLocked(by owner, cost int) bool {
	if h := log.held[by]; h != nil {
		return (h.bytes+cost)*len(log.held) <= log.limits.Total
	}
	return cost*(len(log.held)+1) <= log.limits.Total
}
