package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/stop"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/signal"
)

// state is what survives a restart: everything in the state directory.
type state struct {
	log       hclog.Logger
	serving   *serving
	db        *store.DB
	trail     *notary.Log
	records   trail.Recorder // of calls and tickets: trail, as audit.arguments has it
	fold      *audit.Fold    // floods of refusals
	ledger    string         // directory of the trail's ledger
	index     *index.Index   // of calls; nil without audit.index
	decisions *decisionlog.Shipper
	notices   *notice.Sender
	tickets   *approval.Tickets
	artifacts *artifact.Store
	envelopes *audit.EnvelopeLog
	keys      *keys.Dir
	revoked   *identity.Revocations
	proofs    *identity.Proofs
	stops     *stop.Stops
	doubts    doubts
	instance  string // the ID of this process, which no other process on the store has
	peers     fleet.Peers
	key       []byte // see mcp.Options.StateKey

	background sync.WaitGroup  // what ends before the rest is closed
	context    context.Context // of the work in the background
	stop       func()          // ends it
}

// openStore opens the database of the state directory. What it opened before an error,
// Close closes.
func (a *App) openStore(ctx context.Context, cfg *config.Config) (err error) {
	s := &state{log: a.log, serving: &a.serving, doubts: doubts{log: a.log, total: a.metrics.doubts}, instance: signal.UniqueID("ins_")}
	a.state = s
	s.context, s.stop = context.WithCancel(context.Background())
	s.db, err = OpenStore(ctx, cfg)
	if err == nil && s.db.Copy != "" {
		a.log.Info("the state was upgraded", "copy of the state before", s.db.Copy)
	}
	return err
}

// begin runs work until close.
func (s *state) begin(work func(context.Context)) { s.background.Go(func() { work(s.context) }) }

// ticketPage returns the address of the page of a ticket.
func (s *state) ticketPage(id string) string {
	return ConsoleURL(s.serving.Config()) + "/console/approvals/" + id
}

// identityConfig returns who cfg knows. Nobody is identified before the state is open.
func (a *App) identityConfig(cfg *config.Config) identity.Config {
	c := IdentityConfig(cfg, a.options.Role)
	c.Revoked = func(hash [sha256.Size]byte) error { return a.state.revoked.Check(hash) }
	c.Spend = func(ctx context.Context, id [sha256.Size]byte, now, until time.Time) error {
		return a.state.proofs.Spend(ctx, id, now, until)
	}
	return c
}

// openState opens the rest of the state directory. What it opened before an error, Close
// closes.
func (a *App) openState(ctx context.Context, cfg *config.Config) (err error) {
	s := a.state
	if err = s.openKeys(ctx, cfg); err != nil {
		return err
	}
	if s.revoked, err = identity.OpenRevocations(ctx, s.db, filepath.Join(cfg.Keys, identity.RevokedFile)); err != nil {
		return err
	}
	s.proofs = identity.NewProofs(s.db)
	s.begin(s.revoked.Follow)
	if s.stops, err = stop.Open(ctx, stop.Options{DB: s.db, Instance: s.instance}); err != nil {
		return err
	}
	s.begin(s.stops.Follow)
	if err = a.openTrail(ctx, cfg); err != nil {
		return err
	}
	if s.notices, err = notice.New(notice.Options{
		DB: s.db, Link: s.ticketPage, Log: a.log.Named("notices"),
		Observe: func(channel string, o notice.Outcome) { a.metrics.notices.WithLabelValues(channel, string(o)).Inc() },
	}, noticeChannels(cfg)); err != nil {
		return err
	}
	// With a store on a server, the locks of processes show that a process has left every record of a call
	// that it sent, so there are none where a power failure can lose records.
	lockDir := filepath.Join(cfg.State, "instances")
	if cfg.Store != "" && audit.Durability(cfg.Audit.Durability) != audit.Sync {
		lockDir = ""
	}
	// The trail and the outbox are there already: tickets that a dead process was
	// running change as they are opened.
	if s.tickets, err = approval.New(ctx, s.db, approval.Options{
		Dir: lockDir, TTL: cfg.Approvals.TTL, MaxLive: cfg.Approvals.MaxLive, Keep: cfg.Approvals.Keep, RequirePerson: cfg.Approvals.RequirePerson,
		Instance: s.instance, Keys: s.keys, Alarm: s.doubts.add, Changed: s.recordTicket,
		LastWord: trail.NewWords(trail.Dir(cfg.State), audit.Durability(cfg.Audit.Durability) == audit.Sync).Of,
		Standing: func(subject, tenant string) (policy.Principal, bool) { // an approver with a configured token, as it is now
			now, err := a.auth.Identify(context.Background(), identity.Credential{Earlier: &policy.Principal{Subject: subject, Tenant: tenant}})
			return now, err == nil
		},
	}); err != nil {
		return err
	}
	doubt, err := markStore(cfg.State, s.tickets.Store())
	if err != nil {
		return err
	}
	if doubt != "" {
		s.doubts.add(doubt)
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
	if s.trail, err = trail.Open(cfg, s.keys, s.db, audit.Options{Version: a.options.Version, OnError: failed}); err != nil {
		return err
	}
	if s.records, err = trail.KeepArguments(s.trail, cfg.Audit.Arguments, s.keys, func() *registry.Catalogue {
		if a.upstreams == nil {
			return nil
		}
		return a.upstreams.Catalogue()
	}); err != nil {
		return err
	}
	if a.options.Calls != nil {
		s.records = callLog{s.records, a.options.Calls}
	}
	s.fold = audit.NewFold(s.trail.Write)
	s.ledger = s.trail.Signing().Ledger.Dir
	if cfg.Audit.Index {
		o := trail.Index(cfg, s.trail.Signing().Ledger.Trail, s.db)
		o.Log = a.log.Named("index")
		s.index = index.New(o)
	}
	if s.envelopes, err = audit.OpenEnvelopes(filepath.Join(cfg.State, "runs", "mcp_server", "envelope_validation"), audit.EnvelopeOptions{
		Deterministic: cfg.Deterministic, Now: signal.Now, OnError: failed,
	}); err != nil {
		return err
	}
	s.decisions = decisionlog.Open(decisionlog.Options{
		DB: s.db, Trail: trail.Dir(cfg.State), Instances: filepath.Join(cfg.State, "instances"),
		Mask: func(ctx context.Context, event json.RawMessage) (policy.Mask, error) {
			return a.policy.current().Mask(ctx, event)
		}, // whichever policy decided
		Labels:  map[string]string{"app": "toolgate", "version": a.options.Version},
		Observe: a.metrics.observeDecisions, Log: a.log.Named("decisions"),
	})
	return s.decisions.Apply(ctx, decisionSinks(cfg))
}

func (s *state) close() error {
	s.stop()
	s.background.Wait()
	var errs []error
	if s.notices != nil {
		s.notices.Close()
	}
	if s.tickets != nil {
		errs = append(errs, s.tickets.Close())
	}
	if s.fold != nil {
		s.fold.Close()
	}
	if s.trail != nil {
		errs = append(errs, s.trail.Close())
	}
	if s.decisions != nil {
		ctx, stop := context.WithTimeout(context.Background(), 3*time.Second) // for the decisions made just before
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

// recordAccepted records definitions that are about to be accepted without a
// person.
func (s *state) recordAccepted(all []registry.Acceptance) error {
	return s.trail.Write(audit.KindEvent, AcceptedRecord("toolgate", all))
}

// definitionsChanged records definitions of one server that differ from the accepted ones,
// and notifies people of them. It does not wait for the notices: the transaction of the
// change may hold the store until it returns.
func (s *state) definitionsChanged(all []registry.Change) error {
	for _, c := range all {
		e := &audit.Event{
			Name: audit.EventDefinition, Count: c.Count, Added: []string{c.Tool + " " + c.Offered}, Removed: []string{c.Tool + " " + c.Accepted},
			Reason: reasonOf(c),
		}
		if err := s.trail.Write(audit.KindEvent, &audit.Record{
			Principal: audit.Principal{Subject: "toolgate"}, Server: c.Server, Tool: c.Tool, Fingerprint: c.Offered, Event: e,
		}); err != nil {
			return err
		}
	}
	page := ConsoleURL(s.serving.Config()) + "/console/"
	s.background.Go(func() {
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		for _, c := range all {
			d := notice.Definition{Server: c.Server, Tool: c.Tool, Count: c.Count, Reason: reasonOf(c), URL: page}
			if err := s.notices.EnqueueDefinition(ctx, d); err != nil {
				s.log.Error("nobody is notified of a changed definition", "server", c.Server, "tool", c.Tool, "error", err)
			}
		}
	})
	return nil
}

// reasonOf says how the two definitions of c differ and, of those for some clients, for
// which.
func reasonOf(c registry.Change) string {
	reason := "the accepted definition is known by its fingerprint only"
	if c.Differs != "" {
		reason = "it differs first in " + c.Differs
	}
	if c.Condition != "" {
		reason = c.Condition.Words() + ": " + reason
	}
	return reason
}

// AcceptedRecord returns the record of definitions of one server that are accepted, or refused,
// for one reason; who is a person, or "toolgate" for a first list and a lock.
func AcceptedRecord(who string, all []registry.Acceptance) *audit.Record {
	e := &audit.Event{Name: audit.EventAccepted, Reason: all[0].How}
	r := &audit.Record{Principal: audit.Principal{Subject: who}, Server: all[0].Server, Event: e}
	if len(all) == 1 {
		r.Tool, r.Fingerprint = all[0].Tool, all[0].Fingerprint
	}
	if e.Reason == registry.HowRefuse {
		e.Name, e.Reason, e.Removed = audit.EventNotAccepted, all[0].Reason, []string{all[0].Tool + " " + all[0].Fingerprint}
		return r
	}
	for _, a := range all {
		e.Added = append(e.Added, strings.TrimSpace(a.Tool+" "+a.Fingerprint+" "+string(a.Condition)))
		if a.Former != "" {
			e.Removed = append(e.Removed, a.Tool+" "+a.Former)
		}
	}
	return r
}

// recordTicket records a change of a ticket in the transaction of the change: the call that made
// the ticket, without its arguments, which are in the record of the call itself
// (decision_id), and the change. The notices come first and the trail last: only a failing commit can
// contradict what the trail has.
func (s *state) recordTicket(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
	if err := s.notices.Enqueue(ctx, tx, t, c); err != nil {
		return err
	}
	about, err := approval.Judged(ctx, tx, t)
	if err != nil {
		return err
	}
	return s.records.Write(audit.KindTicket, &audit.Record{
		DecisionID: t.DecisionID, TraceID: t.TraceID,
		Principal: audit.Principal{Subject: t.Principal.Subject, Person: t.Principal.Person, Roles: t.Principal.Roles, Client: t.Principal.Client, Tenant: t.Principal.Tenant},
		Transport: t.Transport, Era: t.Era, Session: t.Session, Tags: t.Tags,
		Server: t.Server, Tool: t.Tool, Exposed: t.Exposed, Fingerprint: t.Fingerprint,
		ArgumentsSHA256: strings.TrimPrefix(t.Digest, "sha256:"),
		Policy:          audit.Policy{Effect: string(policy.Hold), Rule: t.Rule, Reason: t.Reason, Revision: t.Revision},
		Ticket:          t.ID, About: about,
		Change: &audit.Change{
			Seq: c.Seq, Expires: t.Expires, From: string(c.From), To: string(c.To), Who: c.Who, Reason: c.Reason, Digest: c.Digest,
			Quorum: t.Quorum, Approvals: t.Approvals, Each: t.Each, Given: t.Given,
		},
	})
}

// openKeys opens the key directory. Versions of toolgate before it kept the key of
// request states in the state directory; upstreams may have read that one, so it is
// removed and not used.
func (s *state) openKeys(ctx context.Context, cfg *config.Config) (err error) {
	if s.keys, err = keys.Open(cfg.Keys); err == nil {
		err = s.keys.Agree(ctx, s.db)
	}
	if err != nil {
		return err
	}
	key, err := s.keys.Secret(keys.RequestState)
	s.key = key.Secret
	if err == nil {
		err = os.Remove(filepath.Join(cfg.State, "request_state.key"))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("opening key of request states: %w", err)
	}
	return nil
}

// recordAct records what a person did at the admin listener. Refused acts are folded.
func (s *state) recordAct(act people.Act) error {
	p := act.Principal
	who := audit.Principal{Subject: p.Subject, Roles: p.Roles, Client: p.Client, Tenant: p.Tenant}
	e := audit.Event{Name: act.Name, Source: act.Source, Credential: act.Credential, Reason: cmp.Or(act.Reason, act.Why), Added: act.Added, Removed: act.Removed}
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
