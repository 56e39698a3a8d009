package upstream

import (
	"sync"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// spare is a process of the server that was started ahead for the next session. Nothing
// has been sent to it, so it fits every session, and it has been nobody's. It is protected by Server.mu.
type spare struct {
	child    *child // nil = there is none
	since    time.Time
	starting bool
	tasks    *sync.WaitGroup // end children
}

// prepareSpare starts a spare for a session that has no connection yet. There is one at
// a time, and none while the server fails.
func (s *Server) prepareSpare(session string) {
	if !s.cfg.Spare || s.cfg.Type != config.TypeStdio {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[session] != nil || s.spare.starting || s.spare.child != nil || s.status.State == StateFailed || s.life.Err() != nil {
		return
	}
	s.spare.starting = true
	round := s.round
	s.tasks.Go(func() {
		c, err := startChild(s.cfg, s.opts.Sandbox, s.opts.Executable, s.secrets, &s.said, s.log)
		s.mu.Lock()
		s.spare.starting = false
		if err == nil {
			s.spare.child, s.spare.since = c, s.opts.Now()
		}
		if err == nil && round.Err() != nil {
			s.spare.dropLocked()
		}
		s.mu.Unlock()
		if err != nil {
			s.log.Debug("starting a process ahead", "error", err)
		}
	})
}

// takeLocked returns the spare, nil when there is none that is alive. It is the caller's from then on. The
// caller must hold Server.mu.
func (s *spare) takeLocked() *child {
	c := s.child
	if c == nil {
		return nil
	}
	select {
	case <-c.exited:
		s.dropLocked()
		return nil
	default:
		s.child = nil
		return c
	}
}

// dropLocked ends the spare in the background. The caller must hold Server.mu.
func (s *spare) dropLocked() {
	if c := s.child; c != nil {
		s.child = nil
		s.tasks.Go(c.Stop)
	}
}
