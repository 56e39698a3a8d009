package plainhttp

import (
	"bufio"
	"errors"
	"time"
)

// watch is the look at a client whose request is under way: the context of the request ends when the
// client goes away before stopWatching, though not within watchAfter, and not before the handler has read
// the body. The mutex of its connection protects it.
type watch struct {
	timer   *time.Timer
	request *request      // nil = none is under way
	reading chan struct{} // closed at the end of the read; nil = none has begun
}

// look reads until a byte arrives or the connection fails. A client that sends more
// requests than fit into the buffer is not watched. As in net/http, the read has no deadline:
// the client has nothing to send, however long its stream lasts.
func (c *conn) look() {
	c.mu.Lock()
	switch w := &c.watch; {
	case w.request == nil || w.reading != nil: // of an earlier request, and late
		c.mu.Unlock()
		return
	case !w.request.body.done.Load(): // the handler reads
		w.timer.Reset(watchAfter)
		c.mu.Unlock()
		return
	}
	reading := make(chan struct{})
	c.watch.reading = reading
	if !c.readUntil.IsZero() {
		c.readUntil = time.Time{}
		_ = c.SetReadDeadline(time.Time{}) // fails only for a connection that is closed
	}
	c.mu.Unlock()
	defer close(reading)
	err := c.fill(c.shed() + 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && c.watch.request != nil {
		c.watch.request.life.End(nil)
	}
}

// stopWatching ends a read that has begun, and waits for its end. It returns whether the
// connection ends with the answer.
func (c *conn) stopWatching() (ended bool) {
	c.mu.Lock()
	if c.watch.request == nil { // it has stopped
		c.mu.Unlock()
		return false
	}
	c.watch.timer.Stop()
	reading := c.watch.reading
	c.watch.request, c.watch.reading, ended = nil, nil, c.ended
	if reading != nil {
		c.endReads()
	}
	c.mu.Unlock()
	if reading != nil {
		<-reading
	}
	return ended
}
