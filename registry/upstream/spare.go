package upstream

import (
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// spare is a process of the server that was started ahead for the next session. Nothing
// has been sent to it, so it fits every session, and it has been nobody's.
type spare struct {
	child    *child // nil = there is none
	since    time.Time
	starting bool
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
			s.spare = spare{child: c, since: s.opts.Now()}
		}
		if err == nil && round.Err() != nil {
			s.dropSpareLocked()
		}
		s.mu.Unlock()
		if err != nil {
			s.log.Debug("starting a process ahead", "error", err)
		}
	})
}

// takeSpare returns the spare, nil when there is none that is alive. It is the caller's
// from then on.
func (s *Server) takeSpare() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.spare.child
	if c == nil {
		return nil
	}
	select {
	case <-c.exited:
		s.dropSpareLocked()
		return nil
	default:
		s.spare.child = nil
		return c
	}
}

// dropSpareLocked ends the spare in the background. The caller must hold s.mu.
func (s *Server) dropSpareLocked() {
	if c := s.spare.child; c != nil {
		s.spare.child = nil
		s.tasks.Go(c.Stop)
	}
}
