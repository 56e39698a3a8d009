package wallet_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/cockroachdb/apd/v3"
	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/tools/wallet"
)

func open(t testing.TB, path string) *wallet.Wallet {
	t.Helper()
	w, err := wallet.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func balances(t testing.TB, w *wallet.Wallet, asset string) []wallet.Balance {
	t.Helper()
	b, err := w.Balances(t.Context(), asset)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOpeningBalancesAreWrittenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "wallet.db")
	want := []wallet.Balance{{"USD", "10000"}, {"EUR", "5000"}, {"BTC", "1.5"}}
	for range 2 {
		w := open(t, path)
		if diff := cmp.Diff(want, balances(t, w, "")); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
		w.Close()
	}
}

func TestTransfer(t *testing.T) {
	tests := []struct {
		name, asset, amount, destination string
		err                              error
		left                             string // of the asset, after it
	}{
		{"whole", "USD", "50", "bob", nil, "9950"},
		{"cents", "USD", "0.10", "bob", nil, "9999.9"},
		{"exponent", "USD", "1e2", "bob", nil, "9900"},
		{"what a float64 cannot hold", "BTC", "0.123456789012345678", "bc1", nil, "1.376543210987654322"},
		{"all of it", "EUR", "5000.000", "eve", nil, "0"},
		{"our own name", "USD", "1", "wallet", nil, "9999"},
		{"a smallest part too much", "EUR", "5000.000000000000000001", "eve", wallet.ErrInsufficient, "5000"},
		{"more than there is", "USD", "10001", "bob", wallet.ErrInsufficient, "10000"},
		{"huge", "USD", "1e400", "bob", wallet.ErrAmount, "10000"},
		{"31 digits", "USD", "1e30", "bob", wallet.ErrAmount, "10000"},
		{"19 decimals", "USD", "1e-19", "bob", wallet.ErrAmount, "10000"},
		{"zero", "USD", "0", "bob", wallet.ErrAmount, "10000"},
		{"negative", "USD", "-1", "bob", wallet.ErrAmount, "10000"},
		{"a string", "USD", `"1"`, "bob", wallet.ErrAmount, "10000"},
		{"no number", "USD", "NaN", "bob", wallet.ErrAmount, "10000"},
		{"infinite", "USD", "Infinity", "bob", wallet.ErrAmount, "10000"},
		{"nothing", "USD", "", "bob", wallet.ErrAmount, "10000"},
		{"no destination", "USD", "1", " ", wallet.ErrDestination, "10000"},
		{"unknown asset", "DOGE", "1", "bob", wallet.ErrAsset, ""},
		{"other case", "usd", "1", "bob", wallet.ErrAsset, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "wallet.db")
			w := open(t, path)
			tx, err := w.Transfer(t.Context(), test.asset, test.amount, test.destination, "")
			if !errors.Is(err, test.err) || (err == nil) != (tx.ID != "") {
				t.Fatalf("got %+v, %v; want error %v", tx, err, test.err)
			}
			if test.left != "" {
				if got := balances(t, w, test.asset); len(got) != 1 || got[0].Amount != test.left {
					t.Errorf("left: %v, want %s", got, test.left)
				}
			}
			checkLedger(t, path)
		})
	}
}

func TestUnknownAssetHasNoBalance(t *testing.T) {
	w := open(t, filepath.Join(t.TempDir(), "wallet.db"))
	if b, err := w.Balances(t.Context(), "DOGE"); !errors.Is(err, wallet.ErrAsset) {
		t.Errorf("got %v, %v", b, err)
	}
}

func TestADamagedWalletIsNotAnEmptyOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wallet.db")
	if err := os.WriteFile(path, []byte("not a database, but long enough to look at"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w, err := wallet.Open(t.Context(), path); err == nil {
		w.Close()
		t.Error("opened")
	}
}

// TestNobodySpendsTwice: two wallets on one file, each with callers that together
// want more than the balance, never overdraw it.
func TestNobodySpendsTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wallet.db")
	wallets := []*wallet.Wallet{open(t, path), open(t, path)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 40 {
		wg.Go(func() {
			_, err := wallets[i%2].Transfer(t.Context(), "EUR", "300.5", fmt.Sprint("payee ", i%3), "")
			switch {
			case err == nil:
				mu.Lock()
				made++
				mu.Unlock()
			case !errors.Is(err, wallet.ErrInsufficient):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := balances(t, wallets[0], "EUR")[0].Amount; made != 16 || got != "192" {
		t.Errorf("%d transfers, %s left; want 16 and 192", made, got)
	}
	checkLedger(t, path)
}

// TestTheSameKeyMovesMoneyOnce: a transfer that is repeated with its key, also by
// several processes at once, is one transfer; the key serves no other.
func TestTheSameKeyMovesMoneyOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wallet.db")
	wallets := []*wallet.Wallet{open(t, path), open(t, path)}
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			tx, err := wallets[i%2].Transfer(t.Context(), "USD", []string{"50", "50.0", "5e1"}[i%3], "bob", "order-7")
			if ids[i] = tx.ID; err != nil || tx.Amount != "50" || tx.Destination != "bob" {
				t.Errorf("%+v, %v", tx, err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("transactions %v", ids)
			break
		}
	}
	for _, other := range [][3]string{{"USD", "51", "bob"}, {"EUR", "50", "bob"}, {"USD", "50", "eve"}} {
		if _, err := wallets[0].Transfer(t.Context(), other[0], other[1], other[2], "order-7"); !errors.Is(err, wallet.ErrKey) {
			t.Errorf("%v with the key of another transfer: %v", other, err)
		}
	}
	if got := balances(t, wallets[1], "USD")[0].Amount; got != "9950" {
		t.Errorf("%s left, want 9950", got)
	}
	if _, err := wallets[0].Transfer(t.Context(), "USD", "20000", "bob", "order-8"); !errors.Is(err, wallet.ErrInsufficient) {
		t.Error(err)
	}
	if _, err := wallets[0].Transfer(t.Context(), "USD", "1", "bob", "order-8"); err != nil {
		t.Errorf("a failed transfer used up its key: %v", err)
	}
	checkLedger(t, path)
}

// TestLedgerProperty: after any transfers, entries add up to zero and to the
// balances, and the wallet is never below zero.
func TestLedgerProperty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wallet.db")
	w := open(t, path)
	rapid.Check(t, func(r *rapid.T) {
		for range rapid.IntRange(1, 6).Draw(r, "transfers") {
			asset := rapid.SampledFrom([]string{"USD", "EUR", "BTC", "DOGE"}).Draw(r, "asset")
			amount := rapid.StringMatching(`(0|[1-9][0-9]{0,4})(\.[0-9]{1,18})?(e-?[0-9])?`).Draw(r, "amount")
			tx, err := w.Transfer(t.Context(), asset, amount, rapid.SampledFrom([]string{"a", "b", "wallet"}).Draw(r, "to"), "")
			if err == nil && (tx.ID == "" || !regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`).MatchString(tx.Amount)) {
				r.Fatalf("transaction %+v", tx)
			}
		}
		checkLedger(r, path)
	})
}

type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// checkLedger reads the file without the package.
func checkLedger(t fataler, path string) {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	total, accounts := sums(t, db, `SELECT asset, '', amount FROM entries`), sums(t, db, `SELECT account, asset, amount FROM entries`)
	for asset, sum := range total {
		if !sum.IsZero() {
			t.Fatalf("entries in %v add up to %s", asset, sum)
		}
	}
	kept := sums(t, db, `SELECT account, asset, amount FROM balances`)
	if len(kept) != len(accounts) {
		t.Fatalf("%d balances for %d accounts", len(kept), len(accounts))
	}
	for key, sum := range accounts {
		if kept[key] == nil || kept[key].Cmp(sum) != 0 {
			t.Fatalf("%v: balance %v, entries %s", key, kept[key], sum)
		}
		if key[0] != "equity" && sum.Negative {
			t.Fatalf("%v is below zero: %s", key, sum)
		}
	}
}

func sums(t fataler, db *sql.DB, query string) map[[2]string]*apd.Decimal {
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	c := apd.BaseContext.WithPrecision(200)
	all := map[[2]string]*apd.Decimal{}
	for rows.Next() {
		var key [2]string
		var text string
		if err := rows.Scan(&key[0], &key[1], &text); err != nil {
			t.Fatal(err)
		}
		d, _, err := c.NewFromString(text)
		if err != nil {
			t.Fatal(err)
		}
		if all[key] == nil {
			all[key] = new(apd.Decimal)
		}
		if _, err := c.Add(all[key], all[key], d); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func FuzzAmount(f *testing.F) {
	for _, s := range []string{"1", "1e2", "0.10", "-1", "1e999999999", "00", "1.", ".5", "NaN", "1_0"} {
		f.Add(s)
	}
	w := open(f, filepath.Join(f.TempDir(), "wallet.db"))
	f.Fuzz(func(t *testing.T, amount string) {
		tx, err := w.Transfer(t.Context(), "USD", amount, "x", "")
		if err == nil {
			want, _, perr := apd.NewFromString(amount)
			got, _, gerr := apd.NewFromString(tx.Amount)
			if perr != nil || gerr != nil || want.Cmp(got) != 0 {
				t.Fatalf("%q became %q", amount, tx.Amount)
			}
		} else if tx != (wallet.Transaction{}) {
			t.Fatalf("%q: both %+v and %v", amount, tx, err)
		}
	})
}

func BenchmarkTransfer(b *testing.B) {
	w := open(b, filepath.Join(b.TempDir(), "wallet.db"))
	for b.Loop() {
		if _, err := w.Transfer(b.Context(), "USD", "0.000001", "bob", ""); err != nil {
			b.Fatal(err)
		}
	}
}
