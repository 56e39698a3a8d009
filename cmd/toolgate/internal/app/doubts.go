package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/approval"
)

// doubts collects why the store could not be relied on, for people.
type doubts struct {
	log   hclog.Logger
	total prometheus.Counter

	mu     sync.Mutex // protects the fields below
	newest []string
	count  int
}

func (d *doubts) warnings() (lines []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if more := d.count - len(d.newest); more > 0 {
		lines = append(lines, "approvals: "+text.Count(more, "earlier doubt")+" about the state: see the log")
	}
	for _, reason := range d.newest {
		lines = append(lines, "approvals: "+reason)
	}
	return lines
}

// add is approval.Options.Alarm.
func (d *doubts) add(reason string) {
	d.log.Error("the state cannot be relied on", "reason", reason)
	d.total.Inc()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	d.newest = append(d.newest, reason)
	d.newest = d.newest[max(0, len(d.newest)-5):]
}

// approvalsClosed returns why held calls and votes are refused, "" when they are not.
func (s *state) approvalsClosed() string {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	err := s.tickets.Check(ctx)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, approval.ErrComparing):
		return err.Error()
	}
	return "approvals are closed: " + err.Error()
}
