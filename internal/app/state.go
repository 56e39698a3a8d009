package app

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/decisionlog"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/notice"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/signal"
)

// state is what survives a restart: everything in the state directory.
type state struct {
	db        *store.DB
	trail     *audit.Log
	decisions *decisionlog.Shipper
	notices   *notice.Sender
	tickets   *approval.Tickets
	artifacts *artifact.Store
	envelopes *audit.EnvelopeLog
	key       []byte // see mcp.Options.StateKey
}

// ticketPage returns the address of the page of a ticket.
func (a *App) ticketPage(id string) string {
	return consoleURL(a.Config()) + "/console/approvals/" + id
}

// standing returns the present roles of an approver with a configured token.
func (a *App) standing(subject, tenant string) ([]string, bool) {
	now, err := a.auth.Identify(context.Background(), identity.Credential{Earlier: &policy.Principal{Subject: subject, Tenant: tenant}})
	return now.Roles, err == nil
}

// openState opens the state directory. What it opened before an error, Close
// closes.
func (a *App) openState(ctx context.Context, cfg *config.Config) (err error) {
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	s := &state{}
	a.state = s
	if s.db, err = store.Open(ctx, filepath.Join(cfg.State, "state.db"), store.Migrations()); err != nil {
		return err
	}
	if s.key, err = stateKey(cfg.State); err != nil {
		return err
	}
	if err = a.openTrail(ctx, cfg); err != nil {
		return err
	}
	if s.notices, err = notice.New(notice.Options{
		DB: s.db, Link: a.ticketPage, Observe: a.metrics.observeNotice, Log: a.log.Named("notices"),
	}, noticeChannels(cfg)); err != nil {
		return err
	}
	// The trail and the outbox are there already: tickets that a dead process was
	// running change as they are opened.
	if s.tickets, err = approval.New(ctx, s.db, approval.Options{
		Dir: filepath.Join(cfg.State, "instances"), TTL: cfg.Approvals.TTL, MaxLive: cfg.Approvals.MaxLive,
		Changed: s.recordTicket, Standing: a.standing,
	}); err != nil {
		return err
	}
	s.notices.Start()
	s.artifacts, err = artifact.Open(ctx, filepath.Join(cfg.State, "artifacts"), s.db, artifact.Options{
		TTL: cfg.Artifacts.TTL, MaxBytes: int64(cfg.Artifacts.MaxMiB) << 20, Log: a.log.Named("artifacts"),
	})
	return err
}

// openTrail opens the audit trail, the log of envelopes, and the log of decisions
// that reads the trail.
func (a *App) openTrail(ctx context.Context, cfg *config.Config) (err error) {
	s, failed := a.state, func(doing string, cause error) { a.log.Error(doing, "error", cause) }
	if s.trail, err = audit.Open(filepath.Join(cfg.State, "audit"), audit.Options{
		Durability: audit.Durability(cfg.Audit.Durability), Version: a.options.Version, OnError: failed,
	}); err != nil {
		return err
	}
	if s.envelopes, err = audit.OpenEnvelopes(filepath.Join(cfg.State, "runs", "mcp_server", "envelope_validation"), audit.EnvelopeOptions{
		Deterministic: cfg.Deterministic, Now: signal.Now, OnError: failed,
	}); err != nil {
		return err
	}
	if s.decisions, err = decisionlog.Open(decisionlog.Options{
		DB: s.db, Trail: filepath.Join(cfg.State, "audit"), Instances: filepath.Join(cfg.State, "instances"),
		Mask: a.maskDecision, Labels: map[string]string{"app": "toolgate", "version": a.options.Version},
		Observe: a.metrics.observeDecisions, Log: a.log.Named("decisions"),
	}); err != nil {
		return err
	}
	return s.decisions.Apply(ctx, decisionSinks(cfg))
}

// lastShipment is how long Close may ship the decisions made just before it.
const lastShipment = 3 * time.Second

func (s *state) close() error {
	var errs []error
	if s.notices != nil {
		s.notices.Close()
	}
	if s.tickets != nil {
		errs = append(errs, s.tickets.Close())
	}
	if s.trail != nil {
		errs = append(errs, s.trail.Close())
	}
	if s.decisions != nil {
		ctx, stop := context.WithTimeout(context.Background(), lastShipment)
		defer stop()
		s.decisions.Close(ctx)
	}
	if s.envelopes != nil {
		errs = append(errs, s.envelopes.Close())
	}
	if s.artifacts != nil {
		errs = append(errs, s.artifacts.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(errs...)
}

// recordTicket records a change of a ticket in the transaction of the change.
// The notices come first and the trail last: only a failing commit can
// contradict what the trail has.
func (s *state) recordTicket(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	if err := s.notices.Enqueue(ctx, tx, t, c); err != nil {
		return err
	}
	return s.trail.Write(audit.KindTicket, ticketRecord(t, c))
}

// ticketRecord is a change of a ticket as the trail has it: the call that made
// the ticket, without its arguments, which are in the record of the call itself
// (decision_id), and the change.
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
			Quorum: t.Quorum, Approvals: t.Approvals, Each: t.Each, Given: t.Given,
		},
	}
}

// stateKey returns the key of the state directory that signs request states,
// and creates it on first use. Processes that share the directory get the same
// key, however many ask at once.
func stateKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, "request_state.key")
	for {
		key, err := os.ReadFile(path)
		switch {
		case err == nil && len(key) == mcp.StateKeyBytes:
			return key, nil
		case err == nil:
			return nil, fmt.Errorf("reading %s: %d bytes, want %d\nhint: remove it; what clients were given to come back with is refused then", path, len(key), mcp.StateKeyBytes)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("reading the key of request states: %w", err)
		}
		if err := makeKey(dir, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making the key of request states: %w", err)
		}
	}
}

// makeKey writes a new key that only its owner can read. The file appears at
// path whole or not at all, and never replaces another.
func makeKey(dir, path string) (err error) {
	key := make([]byte, mcp.StateKeyBytes)
	_, _ = rand.Read(key)                          // never fails
	f, err := os.CreateTemp(dir, ".request_state") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // the link keeps it
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
