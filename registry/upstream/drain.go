package upstream

import "sync"

// drain counts the calls of a server that are under way. The zero value is
// ready.
type drain struct {
	mu      sync.Mutex // protects the fields below
	n       int
	drained chan struct{} // closed when no call is under way any more, nil while serving
}

// enter counts a call in, and refuses it when the server is being stopped.
func (d *drain) enter() *Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drained != nil {
		return errStopping()
	}
	d.n++
	return nil
}

// leave counts a call out.
func (d *drain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n == 0 && d.drained != nil {
		close(d.drained)
	}
}

// close refuses new calls and returns a channel that is closed when the last of
// those under way has ended.
func (d *drain) close() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drained == nil {
		d.drained = make(chan struct{})
		if d.n == 0 {
			close(d.drained)
		}
	}
	return d.drained
}
