// Package trail has the audit trail as a configuration wants it: where it is, who signs its chains and
// where their checkpoints go, which arguments it keeps, what is archived, and its last word on each ticket.
package trail

import (
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// Dir returns the directory of the audit trail in a state directory.
func Dir(state string) string { return filepath.Join(state, "audit") }

// Open begins a chain of the trail of cfg, signed as configured. A db on a server
// keeps its last checkpoint; nil = none does.
func Open(cfg *config.Config, k *keys.Dir, db *store.DB, o audit.Options) (*notary.Log, error) {
	dir, sign := Dir(cfg.State), notary.Signing{}
	o.Durability, o.Reserve = audit.Durability(cfg.Audit.Durability), int64(cfg.Audit.ReserveMiB)<<20
	key, err := checkpointKey(cfg.Audit.Signer, k)
	if err != nil {
		return nil, err
	}
	if sign.Signer, err = notary.NewSigner(key); err != nil {
		return nil, err
	}
	for _, a := range cfg.Audit.Anchors {
		anchoring := notary.Anchoring{Anchor: notary.DirectoryAnchor(a.Directory), Kind: "directory", Name: a.Directory}
		switch {
		case a.Witness != "":
			witness := notary.WitnessAnchor{DirectoryAnchor: notary.DirectoryAnchor(a.Directory), URL: a.Witness}
			if a.WitnessKey != "" {
				v, err := notary.ReadWitnessKey(a.WitnessKey)
				if err != nil {
					return nil, err
				}
				witness.Verifiers = []note.Verifier{v}
			}
			anchoring.Anchor, anchoring.Kind, anchoring.Every = witness, "witness", time.Minute
		case a.Webhook != "":
			anchoring = notary.Anchoring{Anchor: notary.WebhookAnchor(a.Webhook), Kind: "webhook", Name: "webhook", Every: time.Minute}
		}
		sign.Anchors = append(sign.Anchors, anchoring)
	}
	sign.Anchors = append(sign.Anchors, fleet.AnchoredInStore(db)...)
	if sign.Ledger, err = notary.OpenLedger(k.Path(), dir); err != nil {
		return nil, err
	}
	return notary.Open(dir, o, sign)
}
