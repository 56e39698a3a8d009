package registry

import "fmt"

// Status tells how each configured server is, in configured order.
func (r *Registry) Status() []ServerStatus {
	catalogue := r.Catalogue()
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]ServerStatus, 0, len(r.entries))
	for _, e := range r.entries {
		out = append(out, e.statusLocked(catalogue))
	}
	return out
}

// statusLocked tells how one server is.
func (e *entry) statusLocked(c *Catalogue) ServerStatus {
	if e.server == nil {
		return ServerStatus{Name: e.cfg.Name, State: "disabled", Since: e.since}
	}
	s := e.server.Status()
	out := ServerStatus{Name: e.cfg.Name, State: string(s.State), Since: s.Since, Dropped: s.Dropped}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	out.Warnings = append(out.Warnings, e.warnings...)
	for _, t := range c.byServer[e.cfg.Name] {
		if t.Quarantine == "" {
			out.Tools++
			continue
		}
		out.Quarantined++
		out.Warnings = append(out.Warnings, fmt.Sprintf("tool %s is quarantined: %s", t.Name, t.Quarantine))
	}
	return out
}
