package plainhttp

import (
	"bufio"
	"errors"
	"time"
)

// watch is the look at a client whose request is under way: gone is called when the client goes
// away before stopWatching, though not within watchAfter, and not before the handler has read
// the body. The mutex of its connection protects it.
type watch struct {
	timer   *time.Timer
	gone    func() // called when the client has gone; nil = no request is under way
	body    *body
	reading chan struct{} // closed at the end of the read; nil = none has begun
}

// look reads until a byte arrives or the connection fails. A client that sends more
// requests than fit into the buffer is not watched.
func (c *conn) look() {
	c.mu.Lock()
	switch w := &c.watch; {
	case w.gone == nil || w.reading != nil: // of an earlier request, and late
		c.mu.Unlock()
		return
	case !w.body.done.Load(): // the handler reads
		w.timer.Reset(watchAfter)
		c.mu.Unlock()
		return
	}
	reading := make(chan struct{})
	c.watch.reading = reading
	c.mu.Unlock()
	defer close(reading)
	err := c.fill(c.shed() + 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && c.watch.gone != nil {
		c.watch.gone()
	}
}

// stopWatching ends a read that has begun, and waits for its end.
func (c *conn) stopWatching() {
	c.mu.Lock()
	c.watch.timer.Stop()
	c.watch.gone = nil
	reading := c.watch.reading
	c.watch.reading = nil
	c.mu.Unlock()
	if reading != nil {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // fails only for a connection that is closed
		<-reading
	}
}
