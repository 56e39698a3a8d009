package trail

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/approval"
)

// AddKeys adds to x what the key directory k has about the trails in dirs: the public keys that
// signed checkpoints, and ledgers.
func AddKeys(x *notary.Evidence, k *keys.Dir, dirs ...string) error {
	own, err := k.Publics(keys.Checkpoints)
	elsewhere, failed := k.Publics(keys.External)
	err = errors.Join(err, failed)
	for _, dir := range dirs {
		ledger, unread := notary.FindLedger(k.Path(), dir)
		if err = errors.Join(err, unread); ledger.Trail != "" {
			x.Ledgers = append(x.Ledgers, ledger)
		}
	}
	if err != nil {
		return err
	}
	return AddVerifiers(x, append(own, elsewhere...))
}

// AddVerifiers adds to x the verifiers of checkpoints that the holders of keys signed, each once: a
// note with two verifiers of a key is ambiguous.
func AddVerifiers(x *notary.Evidence, known []ed25519.PublicKey) error {
	for i, key := range known {
		if slices.ContainsFunc(known[:i], func(k ed25519.PublicKey) bool { return k.Equal(key) }) {
			continue
		}
		v, err := notary.NewVerifier(key)
		if err != nil {
			return err
		}
		x.Keys = append(x.Keys, v)
	}
	return nil
}

// Contradictions compares the tickets of db with the trails in dirs, which x was the evidence for and
// which rep is about. It authenticates tickets where k is known to be the key directory of the trails.
// kept is how long a store that replicas share keeps decided tickets, whose trails others have; 0 =
// all tickets are compared.
func Contradictions(ctx context.Context, db *store.DB, k *keys.Dir, dirs []string, rep notary.Report, x *notary.Evidence, kept time.Duration) ([]string, error) {
	var own *keys.Dir
	known := len(x.Ledgers) > 0 || slices.ContainsFunc(rep.Chains, func(c notary.Chain) bool { return c.Signed > 0 })
	if x.Directory && known && k.Has(keys.Tickets) {
		own = k
	}
	var since time.Time
	if kept > 0 {
		since = time.Now().Add(-kept)
	}
	faults, _, err := approval.Verify(ctx, db, own, func() (map[string]approval.Word, time.Time, error) { return lastWords(ctx, dirs, rep, since) })
	return faults, err
}

// lastWords returns the last change of each ticket in the trails since a time, and the time
// of their first record.
func lastWords(ctx context.Context, trails []string, rep notary.Report, since time.Time) (map[string]approval.Word, time.Time, error) {
	words, oldest := map[string]approval.Word{}, time.Now()
	for _, c := range rep.Chains {
		if c.First.Before(oldest) {
			oldest = c.First
		}
	}
	for _, trail := range trails {
		for r, err := range audit.NewWatch(trail, since, audit.KindTicket).Next(ctx) {
			if errors.Is(err, audit.ErrNoRecord) {
				continue // the trail's own verdict has it
			}
			if err != nil {
				return nil, oldest, err
			}
			if c := r.Change; c != nil && !r.Time.Before(since) && c.Seq >= words[r.Ticket].Seq {
				words[r.Ticket] = approval.Word{Seq: c.Seq, State: approval.State(c.To)}
			}
		}
	}
	return words, oldest, nil
}
