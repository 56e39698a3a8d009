package eventlog

import (
	"container/list"

	"github.com/toolgate/toolgate/internal/share"
)

// holding is what the log keeps for one principal.
type holding struct {
	bytes int
	over  list.List // of *Stream: nobody reads and nothing more will come, the oldest first
}

// hogLocked returns a principal beyond its equal share that has complete streams, once o
// has cost more bytes; nil when there is none. The caller must hold mu.
func (log *Log) hogLocked(o *Streams, cost int) *holding {
	for by, h := range log.held {
		more := 0
		if by == o.Owner {
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
func (log *Log) sharedLocked(by share.Owner, cost int) bool {
	if h := log.held[by]; h != nil {
		return (h.bytes+cost)*len(log.held) <= log.opts.Limits.Total
	}
	return cost*(len(log.held)+1) <= log.opts.Limits.Total
}

// shedLocked drops complete streams until cost more bytes of o fit, and reports
// whether they do. The caller must hold mu.
func (log *Log) shedLocked(o *Streams, cost int) bool {
	for o.bytes+cost > log.opts.Limits.Session && len(o.over) > 0 {
		o.over[0].dropLocked()
	}
	for log.bytes+cost > log.opts.Limits.Total {
		hog := log.hogLocked(o, cost)
		if hog == nil {
			break
		}
		hog.over.Front().Value.(*Stream).dropLocked()
	}
	return o.bytes+cost <= log.opts.Limits.Session && (log.bytes+cost <= log.opts.Limits.Total || log.sharedLocked(o.Owner, cost))
}
