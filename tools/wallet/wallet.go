// Package wallet is the paper wallet of manage_wallet: a double-entry ledger in
// SQLite with exact decimals. It moves no real money, and says so.
package wallet

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/signal"
)

// Refusal is in the chain of an error with which nothing has moved, and which a model can
// act on.
type Refusal string

// Error returns the text.
func (r Refusal) Error() string { return string(r) }

// The refusals of a wallet, besides ErrAmount.
var (
	ErrAsset        error = Refusal("unknown asset")
	ErrInsufficient error = Refusal("insufficient funds")
	ErrDestination  error = Refusal("bad destination")
	ErrKey          error = Refusal("idempotency key of another transfer")
)

// Account names in the ledger. Destinations have a prefix, so that no destination
// is the wallet itself.
const (
	own     = "wallet"
	equity  = "equity"
	payeeOf = "to:"
)

// openings are the balances of a new wallet, in this order.
var openings = []Balance{{"USD", "10000"}, {"EUR", "5000"}, {"BTC", "1.5"}}

//go:embed migrations/*.sql
var files embed.FS

// Balance is the balance of an asset as an exact decimal.
type Balance struct {
	Asset  string `json:"asset"`
	Amount string `json:"amount"`
}

// Transaction is a transfer.
type Transaction struct {
	ID          string `json:"id"` // "txn_<ULID>", or "pay_<ULID>" on a chain
	Asset       string `json:"asset"`
	Amount      string `json:"amount"`
	Destination string `json:"destination"`
	*Chained           // nil in the paper wallet
}

// Chained is what a transfer on a chain has besides.
type Chained struct {
	Units     string `json:"units"`     // amount in the smallest units of the asset
	Recipient string `json:"recipient"` // address
	Network   string `json:"network"`   // CAIP-2
	Fee       string `json:"fee"`       // with its asset: what it cost, or can cost at most until it is final
	Hash      string `json:"hash"`
	Status    string `json:"status"`
	Key       string `json:"idempotency_key"`
	Note      string `json:"note,omitempty"` // what to do
}

// Wallet is one ledger file. It is safe for concurrent use, also by several
// processes.
type Wallet struct {
	db *store.DB
}

// Open opens the ledger at path and creates it with its opening balances. A
// damaged file is an error, never an empty wallet.
func Open(ctx context.Context, path string) (*Wallet, error) {
	db, err := store.Open(ctx, path, store.Folder(files, "migrations"))
	if err != nil {
		return nil, fmt.Errorf("opening wallet: %w", err)
	}
	w := &Wallet{db: db}
	if err := w.endow(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("opening wallet: %w", err), db.Close())
	}
	return w, nil
}

// Provider says what keeps the wallet.
func (w *Wallet) Provider() string { return "paper wallet: a local ledger, no real money" }

// Close closes the ledger file.
func (w *Wallet) Close() error { return w.db.Close() }

// endow writes the opening entries once in the life of a ledger.
func (w *Wallet) endow(ctx context.Context) error {
	return w.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM transactions`).Scan(&n); err != nil || n > 0 {
			return err
		}
		for _, o := range openings {
			amount, err := parseAmount(o.Amount)
			if err != nil {
				return err
			}
			if _, err := move(ctx, tx, equity, own, o.Asset, amount); err != nil {
				return err
			}
		}
		return nil
	})
}

// Balances returns the balance of asset, or of every asset if it is "". The error is
// ErrAsset if the wallet never held the asset.
func (w *Wallet) Balances(ctx context.Context, asset string) ([]Balance, error) {
	all, err := store.Select(ctx, w.db.Read, (*Balance).fields,
		`SELECT asset, amount FROM balances WHERE account = ? AND (? = '' OR asset = ?) ORDER BY rowid`, own, asset, asset)
	if err != nil {
		return nil, fmt.Errorf("reading balances: %w", err)
	}
	if asset != "" && len(all) == 0 {
		return nil, fmt.Errorf("reading balances: %w", unknown(asset))
	}
	return all, nil
}

// unknown is the refusal of an asset that the wallet never held.
func unknown(asset string) error {
	var known []string
	for _, o := range openings {
		known = append(known, o.Asset)
	}
	return fmt.Errorf("%w %.64q: this wallet has %s", ErrAsset, asset, strings.Join(known, ", "))
}

func (b *Balance) fields() []any { return []any{&b.Asset, &b.Amount} }

// Transfer moves an amount, the lexeme of a JSON number, to destination. It returns
// when the entries are on disk. The error is ErrAmount, ErrAsset, ErrInsufficient,
// ErrDestination or ErrKey, or one of the ledger. After an error no money has moved. A
// transfer that has begun completes when ctx ends.
//
// A transfer with a key ("" for none) is made once: the same call again returns the
// transaction of the first, for as long as the ledger lives, and a call with the key
// of another transfer fails with ErrKey.
func (w *Wallet) Transfer(ctx context.Context, asset, amount, destination, key string) (Transaction, error) {
	if strings.TrimSpace(destination) == "" || len(destination) > 1024 {
		return Transaction{}, fmt.Errorf("transferring: %w: it is empty, or has more than 1024 bytes", ErrDestination)
	}
	value, err := parseAmount(amount)
	if err != nil {
		return Transaction{}, fmt.Errorf("transferring: %w", err)
	}
	done := Transaction{Asset: asset, Amount: plain(value), Destination: destination}
	err = w.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if done.ID, err = madeBefore(ctx, tx, key, done); err != nil || done.ID != "" {
			return err
		}
		if err := covers(ctx, tx, asset, value); err != nil {
			return err
		}
		if done.ID, err = move(ctx, tx, own, payeeOf+destination, asset, value); err != nil || key == "" {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO idempotency_keys (key, transaction_id) VALUES (?, ?)`, key, done.ID)
		return err
	})
	if err != nil {
		return Transaction{}, fmt.Errorf("transferring: %w", err)
	}
	return done, nil
}

// madeBefore returns the id of the transaction that was made with key, "" for none.
// The error is ErrKey when it differs from wanted.
func madeBefore(ctx context.Context, tx *sql.Tx, key string, wanted Transaction) (id string, err error) {
	if key == "" {
		return "", nil
	}
	var made Transaction
	err = tx.QueryRowContext(ctx, `SELECT id, asset, amount, destination FROM idempotency_keys JOIN transactions ON id = transaction_id WHERE key = ?`, key).
		Scan(&made.ID, &made.Asset, &made.Amount, &made.Destination)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if made.Asset != wanted.Asset || made.Amount != wanted.Amount || made.Destination != payeeOf+wanted.Destination {
		return "", fmt.Errorf("%w: it moved %s %.64s", ErrKey, made.Amount, made.Asset)
	}
	return made.ID, nil
}

func covers(ctx context.Context, tx *sql.Tx, asset string, value *apd.Decimal) error {
	have, known, err := balance(ctx, tx, own, asset)
	switch {
	case err != nil:
		return err
	case !known:
		return unknown(asset)
	case have.Cmp(value) < 0:
		return fmt.Errorf("%w: %s %s are free, %s are wanted", ErrInsufficient, plain(have), asset, plain(value))
	}
	return nil
}

func balance(ctx context.Context, tx *sql.Tx, account, asset string) (*apd.Decimal, bool, error) {
	var text string
	err := tx.QueryRowContext(ctx, `SELECT amount FROM balances WHERE account = ? AND asset = ?`, account, asset).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return new(apd.Decimal), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	d, err := stored(text)
	return d, true, err
}

// move writes one transaction with its two entries and both balances.
func move(ctx context.Context, tx *sql.Tx, from, to, asset string, value *apd.Decimal) (string, error) {
	id := signal.NewID("txn_")
	_, err := tx.ExecContext(ctx, `INSERT INTO transactions (id, time, asset, amount, source, destination) VALUES (?, ?, ?, ?, ?, ?)`,
		id, time.Now().UTC().Format(time.RFC3339Nano), asset, plain(value), from, to)
	if err != nil {
		return "", err
	}
	if err := book(ctx, tx, id, from, asset, new(apd.Decimal).Neg(value)); err != nil {
		return "", err
	}
	return id, book(ctx, tx, id, to, asset, value)
}

// book writes one entry and brings the balance of its account up to date.
func book(ctx context.Context, tx *sql.Tx, id, account, asset string, value *apd.Decimal) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO entries (transaction_id, account, asset, amount) VALUES (?, ?, ?, ?)`, id, account, asset, plain(value))
	if err != nil {
		return err
	}
	have, _, err := balance(ctx, tx, account, asset)
	if err != nil {
		return err
	}
	if _, err := exact.Add(have, have, value); err != nil {
		return fmt.Errorf("adding up %s of %s: %w", asset, account, err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO balances (account, asset, amount) VALUES (?, ?, ?)
		ON CONFLICT (account, asset) DO UPDATE SET amount = excluded.amount`, account, asset, plain(have))
	return err
}
