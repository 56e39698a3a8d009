package upstream

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

// pending is one request that waits for its answer.
type pending struct {
	mcpclient.Call

	ofClient bool                   // it is made for a client, and not on our own account
	from     Downstream             // for whom
	clock    *deadline              // nil for a request on our own account
	progress func(json.RawMessage)  // nil = not wanted
	queue    queue                  // of notifications and questions in its course
	over     atomic.Bool            // it has ended
	onNotice func(*jsonrpc.Message) // see request
}

// pendingOf returns the request that a call belongs to, nil for none.
func pendingOf(call *mcpclient.Call) *pending {
	if call == nil {
		return nil
	}
	p, _ := call.Owner.(*pending)
	return p
}

// pendings are the requests of clients on one connection. The zero value is
// ready.
type pendings struct {
	mu  sync.Mutex // protects the field below
	all map[*pending]bool
}

// add enters p.
func (s *pendings) add(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*pending]bool)
	}
	s.all[p] = true
}

// remove takes p out.
func (s *pendings) remove(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, p)
}

// sole returns the request that waits while no other one does, nil for none.
func (s *pendings) sole() *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *pending
	for p := range s.all {
		if p.Answered() {
			continue
		}
		if found != nil {
			return nil
		}
		found = p
	}
	return found
}
