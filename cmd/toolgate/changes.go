package main

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
)

// ticketChanged is told of every change of a ticket in the change's transaction. The
// trail comes last: what it has cannot be undone any more, but by a commit that
// fails.
func (in *instance) ticketChanged(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	if err := in.notices.Enqueue(ctx, tx, t, c); err != nil {
		return err
	}
	return in.trail.Ticket(ctx, ticketRecord(t, c))
}

// askedFor is told of a new ticket of who. With the first one the principal's
// agents get a tool more: approval_status.
func (in *instance) askedFor(who policy.Principal) {
	tell := in.tellAgents.Load()
	if tell == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if own, err := in.tickets.Answering(ctx, who); err == nil && len(own) == 1 {
		(*tell)(who)
	}
}

// ticketRecord is a change of a ticket as the trail has it: the call that made
// the ticket, without its arguments, which are in the record of the call itself
// (decision_id), and what became of it.
func ticketRecord(t approval.Ticket, c approval.Change) *audit.Record {
	return &audit.Record{
		DecisionID: t.DecisionID, TraceID: t.TraceID,
		Principal: audit.Principal{Subject: t.Principal.Subject, Roles: t.Principal.Roles, Client: t.Principal.Client, Tenant: t.Principal.Tenant},
		Transport: t.Transport, Era: t.Era, Session: t.Session,
		Server: t.Server, Tool: t.Tool, Exposed: t.Exposed, Fingerprint: t.Fingerprint,
		ArgumentsSHA256: strings.TrimPrefix(t.Digest, "sha256:"),
		Policy:          audit.Policy{Effect: string(policy.Hold), Rule: t.Rule, Reason: t.Reason, Revision: t.Revision},
		Ticket:          t.ID,
		Change: &audit.Change{
			Seq: c.Seq, From: string(c.From), To: string(c.To), Who: c.Who, Reason: c.Reason, Digest: c.Digest,
		},
	}
}

// standing gives the roles that an approver of a configured token has now.
func (in *instance) standing(subject, tenant string) ([]string, bool) {
	now, err := in.auth.Identify(context.Background(), identity.Credential{Earlier: &policy.Principal{Subject: subject, Tenant: tenant}})
	return now.Roles, err == nil
}
