package chain

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/signal"
)

//go:embed migrations/*.sql
var files embed.FS

// The states of a payment. Those after Pending are final.
const (
	Unknown   = "unknown"   // signed; whether a node has it is not known
	Pending   = "pending"   // a node took it; it is not deep enough in the chain
	Confirmed = "confirmed" // paid
	Failed    = "failed"    // reverted in its block: only the fee was paid
	Refused   = "refused"   // no node took it; its nonce serves the next payment
	Replaced  = "replaced"  // another transaction has its nonce: it can never be paid
)

// Payment is a row of the journal.
type Payment struct {
	ID, Key            string
	Asset, Destination string // as the caller gave them
	Units              string // smallest units of the asset
	Recipient          string // address
	Hash, Status       string // the hash of the transaction in a block, or else of the newest
	Reason             string // why a payment was refused or its fee stays too low, in words for a model
	Fee                string // wei: what it cost, or can cost at most until then

	chain    uint64
	source   string
	decimals int
	nonce    uint64
	unsigned []byte // the newest transaction as JSON, for the next; empty for a payment of an older version
	raw      []byte // the newest transaction
	earlier  string // hashes of the transactions that the newest replaced, each after a space
	accepted bool   // a node took it once, so that others may have it
}

func (p *Payment) open() bool { return p.Status == Unknown || p.Status == Pending }

const columns = `id, idempotency_key, asset, destination, units, recipient, hash, status, reason, fee, chain_id, source, decimals, nonce, unsigned, raw, earlier, accepted`

func (p *Payment) fields() []any {
	return []any{
		&p.ID, &p.Key, &p.Asset, &p.Destination, &p.Units, &p.Recipient, &p.Hash, &p.Status, &p.Reason, &p.Fee, &p.chain, &p.source, &p.decimals,
		&p.nonce, &p.unsigned, &p.raw, &p.earlier, &p.accepted,
	}
}

// journal keeps payments in a SQLite file, for several processes. Those that it adds are of
// one account on one chain.
type journal struct {
	db     *store.DB
	chain  uint64
	source string
}

func openJournal(ctx context.Context, path string, chain uint64, source evm.Address) (*journal, error) {
	db, err := store.Open(ctx, path, store.Folder(files, "migrations"))
	if err != nil {
		return nil, err
	}
	return &journal{db, chain, source.String()}, nil
}

// errTaken reports that another process was faster: it took the nonce or the key of a
// payment, raised its fee, or saw its end.
var errTaken = errors.New("another process was faster")

// write adds a payment, and returns when it is on disk.
func (j *journal) write(ctx context.Context, p *Payment) error {
	p.ID, p.chain, p.source = signal.NewID("pay_"), j.chain, j.source
	err := j.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return one(tx.ExecContext(ctx, `INSERT OR IGNORE INTO payments (time, `+columns+`) VALUES (?`+strings.Repeat(", ?", len(p.fields()))+`)`,
			append([]any{time.Now().UTC().Format(time.RFC3339Nano)}, p.fields()...)...))
	})
	if err != nil {
		return fmt.Errorf("writing the journal of payments: %w", err)
	}
	return nil
}

// update writes what is now known about a payment.
func (j *journal) update(ctx context.Context, p *Payment) error {
	return j.change(ctx, p.ID, p.earlier, `hash = ?, status = ?, reason = ?, fee = ?, accepted = ?`, p.Hash, p.Status, p.Reason, p.Fee, p.accepted)
}

// replace writes the newest transaction of a payment, which replaces the last of earlier,
// and returns when it is on disk.
func (j *journal) replace(ctx context.Context, p *Payment, earlier string) error {
	return j.change(ctx, p.ID, earlier, `hash = ?, reason = ?, fee = ?, unsigned = ?, raw = ?, earlier = ?`, p.Hash, p.Reason, p.Fee, p.unsigned, p.raw, p.earlier)
}

// change sets columns of a payment. The error is errTaken if the payment is final, or has
// replaced other transactions than earlier.
func (j *journal) change(ctx context.Context, id, earlier, set string, values ...any) error {
	err := j.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return one(tx.ExecContext(ctx, `UPDATE payments SET `+set+` WHERE id = ? AND earlier = ? AND status IN ('unknown', 'pending')`, append(values, id, earlier)...))
	})
	if err != nil {
		return fmt.Errorf("writing the journal of payments: %w", err)
	}
	return nil
}

// one returns errTaken unless a statement has changed one row.
func one(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errTaken)
	}
	return nil
}

// reload reads a payment again.
func (j *journal) reload(ctx context.Context, p *Payment) error {
	found, err := j.find(ctx, p.Key)
	if err == nil && found != nil {
		*p = *found
	}
	return err
}

// find returns the payment with a key, of whatever account on whatever chain; nil for
// none.
func (j *journal) find(ctx context.Context, key string) (*Payment, error) {
	found, err := j.read(ctx, `idempotency_key = ?`, key)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// unsettled returns the payments that are not final, by nonce.
func (j *journal) unsettled(ctx context.Context) ([]Payment, error) {
	return j.read(ctx, `status IN ('unknown', 'pending') AND chain_id = ? AND source = ? ORDER BY nonce`, int64(j.chain), j.source)
}

func (j *journal) read(ctx context.Context, where string, args ...any) ([]Payment, error) {
	all, err := store.Select(ctx, j.db.Read, (*Payment).fields, `SELECT `+columns+` FROM payments WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("reading the journal of payments: %w", err)
	}
	return all, nil
}

// freeNonce returns the lowest nonce from next on that none of the open payments has.
func freeNonce(next uint64, open []Payment) uint64 {
	for slices.ContainsFunc(open, func(p Payment) bool { return p.nonce == next }) {
		next++
	}
	return next
}

// committed returns what open payments may still take of an asset's units, and of wei in
// fees.
func committed(open []Payment, asset string) (units, fees *big.Int) {
	units, fees = new(big.Int), new(big.Int)
	for _, p := range open {
		fee, _ := new(big.Int).SetString(p.Fee, 10)
		fees.Add(fees, fee)
		if p.Asset == asset {
			value, _ := new(big.Int).SetString(p.Units, 10)
			units.Add(units, value)
		}
	}
	return units, fees
}
