package chain_test

import (
	"database/sql"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/tools/chain"
)

const gwei = 1_000_000_000

// sentOnce returns the transactions that the node was sent, without repetitions.
func (w *world) sentOnce() []string {
	all := w.Sent()
	slices.Sort(all)
	return slices.Compact(all)
}

// TestAFeeThatIsTooLowIsRaised: a payment that no block takes for its fee is sent again
// with a higher one and the same nonce, and is paid once.
func TestAFeeThatIsTooLowIsRaised(t *testing.T) {
	w := newWorld(t, nil)
	first := w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.RaiseFees(t, 20*gwei)
	w.pay(t, "ETH", "2", "acme", "two", chain.Pending) // waits behind it
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed, chain.Confirmed)
	w.has(t, payee, "3000000000000000000")
	again := w.pay(t, "ETH", "1", "acme", "one", chain.Confirmed)
	if again.ID != first.ID || again.Hash == first.Hash || len(w.sentOnce()) != 3 {
		t.Errorf("%+v became %+v with %d transactions", first.Chained, again.Chained, len(w.sentOnce()))
	}
}

// TestWhicheverIsMined: a payment has the hash of that transaction which is in a block,
// also if it is not the newest.
func TestWhicheverIsMined(t *testing.T) {
	for name, fault := range map[string]devchain.Outcome{"the node forgets the newest": devchain.Forgotten, "the node never sees the newest": devchain.Down} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			first := w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
			w.RaiseFees(t, 4*gwei)
			var raising atomic.Bool
			w.Break(func(method string) devchain.Outcome {
				if method == "eth_maxPriorityFeePerGas" {
					raising.Store(true)
				}
				if method == send && raising.Load() {
					return fault
				}
				return devchain.Works
			})
			if _, err := w.Reconcile(t.Context()); err != nil || len(w.sentOnce()) != 2 {
				t.Fatalf("%d transactions, %v", len(w.sentOnce()), err)
			}
			w.Mine(t, 20) // empty blocks lower the base fee
			w.Broadcast(t, w.Sent()[0])
			w.Mine(t, 1)
			w.has(t, payee, "1000000000000000000")
			w.Wallet = w.reopen(t)
			w.settled(t, chain.Confirmed)
			if tx := w.pay(t, "ETH", "1", "acme", "one", chain.Confirmed); tx.Hash != first.Hash {
				t.Errorf("%+v, want the transaction %s", tx.Chained, first.Hash)
			}
		})
	}
}

// TestTheFeeRisesToItsLimitOnly: what would cost more than max_fee, or than there is, waits
// and says so; a higher limit lets it go on.
func TestTheFeeRisesToItsLimitOnly(t *testing.T) {
	for name, c := range map[string]struct{ amount, limit, note string }{
		"above max_fee":     {"1", "0.0001", "the fee is above the limit: up to 0.00"},
		"above the balance": {"9999.9999", "0.01", "insufficient funds"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *chain.Options) { o.MaxFee = c.limit })
			w.pay(t, "ETH", c.amount, "acme", "one", chain.Pending)
			w.RaiseFees(t, 20*gwei)
			tx, err := w.Transfer(t.Context(), "ETH", c.amount, "acme", "one")
			// Some nodes keep what no block takes, others forget it.
			if err != nil || tx.Status != chain.Pending && tx.Status != chain.Unknown || !strings.Contains(tx.Note, "a higher one is not possible: "+c.note) || len(w.sentOnce()) != 1 {
				t.Errorf("%+v, %d transactions", tx.Chained, len(w.sentOnce()))
			}
			if c.limit == "0.01" {
				return
			}
			w.opts.MaxFee = "0.01"
			w.Wallet = w.reopen(t)
			if tx = w.pay(t, "ETH", c.amount, "acme", "one", chain.Pending); strings.Contains(tx.Note, "too low") {
				t.Errorf("note %q", tx.Note)
			}
			w.Mine(t, 1)
			w.settled(t, chain.Confirmed)
		})
	}
}

// TestWalletsThatRaiseAtOnce: of several wallets on one journal, each with its own view of
// a payment, none says that nothing was paid, and it is paid once.
func TestWalletsThatRaiseAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.RaiseFees(t, 20*gwei)
	var wg sync.WaitGroup
	for range 4 {
		other := w.reopen(t)
		wg.Go(func() {
			for range 3 {
				tx, err := other.Transfer(t.Context(), "ETH", "1", "acme", "one")
				if err != nil || tx.Status != chain.Pending && tx.Status != chain.Confirmed {
					t.Errorf("%+v, %v", tx.Chained, err)
				}
				w.Mine(t, 1)
			}
		})
	}
	wg.Wait()
	w.Mine(t, 1)
	w.pay(t, "ETH", "1", "acme", "one", chain.Confirmed)
	w.has(t, payee, "1000000000000000000")
	if n := len(w.sentOnce()); n != 2 {
		t.Errorf("%d transactions of one payment", n)
	}
}

// TestARaiseThatWasSeenByOneWallet: a wallet that knows the first transaction only, while
// another is in a block, reads the journal again before it says what happened.
func TestARaiseThatWasSeenByOneWallet(t *testing.T) {
	w := newWorld(t, nil)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.RaiseFees(t, 20*gwei)
	other := w.reopen(t)
	var looked atomic.Bool
	w.Break(func(string) devchain.Outcome {
		if looked.CompareAndSwap(false, true) { // the wallet has read the journal, and asks for the newest block
			if _, err := other.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
			w.Mine(t, 1)
		}
		return devchain.Works
	})
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.settled(t, chain.Confirmed)
	w.has(t, payee, "1000000000000000000")
}

// TestAJournalFromBefore: a payment that an older version signed is followed to its end. Its
// fee stays as it is.
func TestAJournalFromBefore(t *testing.T) {
	w := newWorld(t, nil)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", w.path)
	if err == nil {
		_, err = db.ExecContext(t.Context(), `ALTER TABLE payments DROP COLUMN unsigned; ALTER TABLE payments DROP COLUMN earlier; DELETE FROM schema_version WHERE version > 1`)
	}
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	w.Wallet = w.reopen(t)
	w.RaiseFees(t, 4*gwei)
	if all, err := w.Reconcile(t.Context()); err != nil || len(all) != 1 || len(w.sentOnce()) != 1 {
		t.Fatalf("%v, %v; %d transactions", all, err, len(w.sentOnce()))
	}
	w.Mine(t, 20)
	w.Broadcast(t, w.Sent()[0])
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
}
