package app

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// TrailDir returns the directory of the audit trail in a state directory.
func TrailDir(state string) string { return filepath.Join(state, "audit") }

// OpenTrail begins a chain of the trail of cfg, signed as configured. A db on a server
// keeps its last checkpoint; nil = none does.
func OpenTrail(cfg *config.Config, k *keys.Dir, db *store.DB, o audit.Options) (*audit.Log, error) {
	dir, sign := TrailDir(cfg.State), &o.Signing
	o.Durability, o.Reserve = audit.Durability(cfg.Audit.Durability), int64(cfg.Audit.ReserveMiB)<<20
	key, err := checkpointKey(cfg.Audit.Signer, k)
	if err != nil {
		return nil, err
	}
	if sign.Signer, err = audit.NewSigner(key); err != nil {
		return nil, err
	}
	for _, a := range cfg.Audit.Anchors {
		anchoring := audit.Anchoring{Anchor: audit.DirectoryAnchor(a.Directory), Name: a.Directory}
		switch {
		case a.Witness != "":
			witness := notary.WitnessAnchor{DirectoryAnchor: audit.DirectoryAnchor(a.Directory), URL: a.Witness}
			if a.WitnessKey != "" {
				v, err := notary.ReadWitnessKey(a.WitnessKey)
				if err != nil {
					return nil, err
				}
				witness.Verifiers = []note.Verifier{v}
			}
			anchoring.Anchor, anchoring.Every = witness, time.Minute
		case a.Webhook != "":
			anchoring = audit.Anchoring{Anchor: notary.WebhookAnchor(a.Webhook), Name: "webhook", Every: time.Minute}
		}
		sign.Anchors = append(sign.Anchors, anchoring)
	}
	sign.Anchors = append(sign.Anchors, fleet.AnchoredInStore(db)...)
	if sign.Ledger, err = audit.OpenLedger(k.Path(), dir); err != nil {
		return nil, err
	}
	return audit.Open(dir, o)
}

// readRoots reads root certificates from a PEM file. The file "" has none, and the result
// is nil.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading root certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("reading root certificates: %s has none in PEM", file)
	}
	return roots, nil
}

// recordAct records what a person did at the admin listener. Refused acts are folded.
func (a *App) recordAct(act console.Act) error {
	p := act.Principal
	who := audit.Principal{Subject: p.Subject, Roles: p.Roles, Client: p.Client, Tenant: p.Tenant}
	e := audit.Event{Name: act.Name, Source: act.Source, Credential: act.Credential, Reason: act.Reason}
	if act.Profile != "" {
		e.Added = []string{act.Profile}
	}
	r := audit.Record{Principal: who, Ticket: act.Ticket, Server: act.Server, Event: &e}
	if act.Reason != "" {
		a.state.fold.AddRecord(r)
		return nil
	}
	return a.state.trail.Write(audit.KindEvent, &r)
}

// recordEvent records an act of toolgate itself. A record that cannot be written changes
// nothing that has happened: the log has the cause.
func (a *App) recordEvent(e *audit.Event) {
	if err := a.state.trail.Write(audit.KindEvent, &audit.Record{Event: e}); err != nil {
		a.log.Error("recording an event", "event", e.Name, "error", err)
	}
}
