package app

import (
	"cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
)

// recordAct records what a person did at the admin listener. Refused acts are folded.
func (s *state) recordAct(act console.Act) error {
	p := act.Principal
	who := audit.Principal{Subject: p.Subject, Roles: p.Roles, Client: p.Client, Tenant: p.Tenant}
	e := audit.Event{Name: act.Name, Source: act.Source, Credential: act.Credential, Reason: cmp.Or(act.Reason, act.Why), Added: act.Added, Removed: act.Removed}
	if act.Profile != "" {
		e.Added = []string{act.Profile}
	}
	if act.Call != "" {
		e.Added = []string{"call " + act.Call}
	}
	if act.Query != "" {
		e.Added = []string{"search " + act.Query}
	}
	if act.Connection != "" {
		e.Removed = []string{"connection " + act.Connection}
	}
	switch {
	case act.Stop != "" && act.Name == console.ActStop:
		e.Added = []string{act.Stop}
	case act.Stop != "":
		e.Removed = []string{act.Stop}
	}
	r := audit.Record{Principal: who, Ticket: act.Ticket, Server: act.Server, Tool: act.Tool, Event: &e}
	if act.Reason != "" {
		s.fold.AddRecord(r)
		return nil
	}
	return s.trail.Write(audit.KindEvent, &r)
}

// recordEvent records an act of toolgate itself. A record that cannot be written changes
// nothing that has happened: the log has the cause.
func (s *state) recordEvent(e *audit.Event) {
	if err := s.trail.Write(audit.KindEvent, &audit.Record{Event: e}); err != nil {
		s.log.Error("recording an event", "event", e.Name, "error", err)
	}
}
