package plainhttp

// WatchAtOnce has clients watched from the first moment, for a whole test binary.
func WatchAtOnce() { watchAfter = 0 }
