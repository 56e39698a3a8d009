package plainhttp

// RestAtOnce has connections rest between any two requests.
func (s *Server) RestAtOnce() { s.restAfter = 1 }

// WatchAtOnce has clients watched from the first moment, for a whole test binary.
func WatchAtOnce() { watchAfter = 0 }
