package chain_test

import (
	"context"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/tools/chain"
	"github.com/toolgate/toolgate/tools/wallet"
)

func TestMain(m *testing.M) { os.Exit(program.Run(m)) }

// payee is an account that has nothing at first.
const payee = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"

// world is a chain and a wallet on it.
type world struct {
	*devchain.Chain
	path string
	opts chain.Options
	*chain.Wallet
}

// newWorld opens a wallet that does not wait: a call returns after its first look.
func newWorld(t testing.TB, set func(*chain.Options)) *world {
	t.Helper()
	c := devchain.Start(t)
	w := &world{Chain: c, path: filepath.Join(t.TempDir(), "chain.db"), opts: chain.Options{
		URL: c.URL, ChainID: devchain.ID, Confirmations: 1, Wait: time.Millisecond,
		Recipients: map[string]string{"acme": payee}, Signer: chain.Signer{PrivateKey: devchain.Keys[0]},
	}}
	if set != nil {
		set(&w.opts)
	}
	w.Wallet = w.reopen(t)
	return w
}

// reopen opens another wallet on the same journal, as another process would.
func (w *world) reopen(t testing.TB) *chain.Wallet {
	t.Helper()
	other, err := chain.Open(t.Context(), w.path, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return other
}

func withToken(t testing.TB) *world {
	w := newWorld(t, nil)
	w.opts.Tokens = map[string]chain.Token{"USDT": {Address: w.Deploy(t), Decimals: 6}}
	w.Wallet = w.reopen(t)
	return w
}

// pay transfers, and holds the payment to a status.
func (w *world) pay(t testing.TB, asset, amount, to, key, status string) wallet.Transaction {
	t.Helper()
	tx, err := w.Transfer(t.Context(), asset, amount, to, key)
	if err != nil || tx.Status != status {
		t.Fatalf("payment %+v, %v; want it %s", tx.Chained, err, status)
	}
	return tx
}

// settled holds the open payments, after one more look, to a status each.
func (w *world) settled(t testing.TB, want ...string) {
	t.Helper()
	all, err := w.Reconcile(t.Context())
	var got []string
	for _, tx := range all {
		got = append(got, tx.Status)
	}
	if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("payments are %v, %v; want %v", got, err, want)
	}
}

// has holds an account on the chain to a balance in wei.
func (w *world) has(t testing.TB, account, wei string) {
	t.Helper()
	if got := w.Balance(t, account).String(); got != wei {
		t.Errorf("%s has %s wei, want %s", account, got, wei)
	}
}

func (w *world) refuses(t testing.TB, asset, amount, to, key string, want error, text string) {
	t.Helper()
	sent := len(w.Sent())
	tx, err := w.Transfer(t.Context(), asset, amount, to, key)
	if refusal, ok := errors.AsType[wallet.Refusal](err); !ok || !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s %s to %s: %+v, %v (%v); want %v with %q", amount, asset, to, tx, err, refusal, want, text)
	}
	if now := len(w.Sent()); now != sent {
		t.Errorf("%d transactions were sent for a transfer that was refused", now-sent)
	}
}

func TestPaysTheChainsOwnAsset(t *testing.T) {
	w := newWorld(t, nil)
	w.pay(t, "ETH", "1.000000000000000001", "acme", "one", chain.Pending)
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
	w.settled(t)
	tx := w.pay(t, "ETH", "1000000000000000001e-18", payee, "one", chain.Confirmed)
	w.has(t, payee, "1000000000000000001")
	if tx.Amount != "1.000000000000000001" || tx.Units != "1000000000000000001" || tx.Recipient != payee || tx.Destination != "acme" ||
		tx.Network != "eip155:1337" || tx.Key != "one" || len(tx.Hash) != 66 || !strings.HasSuffix(tx.Fee, " ETH") {
		t.Errorf("%+v %+v", tx, tx.Chained)
	}
	// The fee is what the account has less, besides the amount.
	spent := new(big.Int).Mul(big.NewInt(10_000), big.NewInt(1e18))
	spent.Sub(spent, w.Balance(t, devchain.Accounts[0]))
	spent.Sub(spent, w.Balance(t, payee))
	if fee := text.Decimal(spent, 18) + " ETH"; fee != tx.Fee {
		t.Errorf("the fee is %s, want %s", tx.Fee, fee)
	}
	if b, err := w.Balances(t.Context(), ""); err != nil || len(b) != 1 || b[0].Asset != "ETH" || b[0].Amount != text.Decimal(w.Balance(t, devchain.Accounts[0]), 18) {
		t.Errorf("balances %v, %v", b, err)
	}
}

func TestPaysATokenAndItsBalance(t *testing.T) {
	w := withToken(t)
	w.pay(t, "USDT", "999.5", "acme", "one", chain.Pending)
	w.refuses(t, "USDT", "0.500001", "acme", "two", wallet.ErrInsufficient, "0.5 USDT are free, 0.500001 are wanted")
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
	if got := w.TokenBalance(t, w.opts.Tokens["USDT"].Address, payee); got.Int64() != 999_500_000 {
		t.Errorf("the payee has %s", got)
	}
	b, err := w.Balances(t.Context(), "")
	if err != nil || len(b) != 2 || b[1] != (wallet.Balance{Asset: "USDT", Amount: "0.5"}) {
		t.Errorf("balances %v, %v", b, err)
	}
	w.refuses(t, "USDT", "0.1", "0x000000000000000000000000000000000000dEaD", "three", chain.ErrTry, "the token refuses")
}

func TestWaitsForConfirmations(t *testing.T) {
	w := newWorld(t, func(o *chain.Options) { o.Confirmations, o.Wait = 2, time.Minute })
	done := make(chan wallet.Transaction, 1)
	go func() {
		defer close(done)
		if tx, err := w.Transfer(t.Context(), "ETH", "1", "acme", "one"); err == nil {
			done <- tx
		}
	}()
	program.Await(t, "the payment is sent", func() bool { return len(w.Sent()) > 0 })
	w.Mine(t, 2)
	if tx, ok := <-done; !ok || tx.Status != chain.Confirmed {
		t.Errorf("payment %+v", tx.Chained)
	}
}

func TestRefusals(t *testing.T) {
	w := withToken(t)
	token := w.opts.Tokens["USDT"].Address
	for _, r := range []struct {
		name, asset, amount, to string
		want                    error
		text                    string
	}{
		{"more than there is", "ETH", "10000.5", "acme", wallet.ErrInsufficient, "10000 ETH are free, 10000.5 are wanted"},
		{"all of it, and a fee", "ETH", "10000", "acme", wallet.ErrInsufficient, "of which the fee is up to 0.000"},
		{"more of a token", "USDT", "1000.000001", "acme", wallet.ErrInsufficient, "1000 USDT are free, 1000.000001 are wanted"},
		{"unknown asset", "DOGE", "1", "acme", wallet.ErrAsset, `"DOGE": this wallet has ETH, USDT`},
		{"more decimals than the token has", "USDT", "0.0000001", "acme", wallet.ErrAmount, "more than 6 decimals"},
		{"nothing", "ETH", "0", "acme", wallet.ErrAmount, "not above zero"},
		{"negative", "ETH", "-1", "acme", wallet.ErrAmount, "not a decimal number"},
		{"unknown recipient", "ETH", "1", "acne", wallet.ErrDestination, `unknown recipient "acne"; known are addresses and the names: acme`},
		{"bad checksum", "ETH", "1", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1Beaed", wallet.ErrDestination, "the checksum"},
		{"no checksum", "ETH", "1", strings.ToLower(payee), wallet.ErrDestination, "the checksum"},
		{"a digit less", "ETH", "1", payee[:41], wallet.ErrDestination, "40 hexadecimal digits"},
		{"the zero address", "ETH", "1", "0x0000000000000000000000000000000000000000", wallet.ErrDestination, "is lost"},
		{"the contract of a token", "USDT", "1", token, wallet.ErrDestination, "is lost"},
		{"what the chain reverts", "ETH", "1", w.factory(), chain.ErrTry, "the node of the chain answered"},
	} {
		t.Run(r.name, func(t *testing.T) { w.refuses(t, r.asset, r.amount, r.to, r.name, r.want, r.text) })
	}
	w.refuses(t, "ETH", "1", "acme", "", chain.ErrNoKey, "choose one")
	// A refusal uses up neither its key nor a nonce.
	w.pay(t, "ETH", "1", "acme", "unknown asset", chain.Pending)
}

func (w *world) factory() string { return "0x4e59b44847b379578588920cA78FbF26c0B4956C" }

func TestRefusesWhatSettingsForbid(t *testing.T) {
	w := withToken(t)
	for name, r := range map[string]struct {
		set         func(*chain.Options)
		asset, text string
		want        error
	}{
		"a fee above the limit": {func(o *chain.Options) { o.MaxFee = "0.00000001" }, "ETH", "and max_fee is 0.00000001", chain.ErrFee},
		"another chain":         {func(o *chain.Options) { o.ChainID = 31337 }, "ETH", "the node is on another chain: eip155:1337, and the wallet is on eip155:31337", chain.ErrChain},
		"other decimals": {func(o *chain.Options) {
			o.Tokens["USDT"] = chain.Token{Address: o.Tokens["USDT"].Address, Decimals: 18}
		}, "USDT", "has 6 decimals, and 18 in the settings", chain.ErrChain},
	} {
		other := *w
		other.path = filepath.Join(t.TempDir(), "chain.db")
		r.set(&other.opts)
		other.Wallet = other.reopen(t)
		other.refuses(t, r.asset, "1", "acme", name, r.want, r.text)
	}
}

func TestMainnetNeedsItsSwitch(t *testing.T) {
	opts := chain.Options{URL: "http://127.0.0.1:1", Signer: chain.Signer{PrivateKey: devchain.Keys[0]}}
	for _, id := range []uint64{1, 10, 56, 137, 8453, 42161, 43114, 999_999_999} {
		opts.ChainID, opts.Mainnet = id, false
		if w, err := chain.Open(t.Context(), filepath.Join(t.TempDir(), "a.db"), opts); !errors.Is(err, chain.ErrMainnet) {
			t.Errorf("chain %d: %v, %v", id, w, err)
		}
		opts.Mainnet = true
		w, err := chain.Open(t.Context(), filepath.Join(t.TempDir(), "b.db"), opts)
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
	opts.ChainID = 0
	if _, err := chain.Open(t.Context(), filepath.Join(t.TempDir(), "c.db"), opts); err == nil {
		t.Error("opened without a chain id")
	}
}

// TestTheSameKeyPaysOnce: calls with one key, by two wallets on one journal, are one
// payment; the key serves no other.
func TestTheSameKeyPaysOnce(t *testing.T) {
	w := newWorld(t, nil)
	both, hashes := []*chain.Wallet{w.Wallet, w.reopen(t)}, make([]string, 8)
	var wg sync.WaitGroup
	for i := range hashes {
		wg.Go(func() {
			tx, err := both[i%2].Transfer(t.Context(), "ETH", []string{"50", "50.0", "5e1"}[i%3], "acme", "order-7")
			if err != nil {
				t.Error(err)
				return
			}
			hashes[i] = tx.Hash
		})
	}
	wg.Wait()
	for _, h := range hashes {
		if h != hashes[0] {
			t.Fatalf("transactions %v", hashes)
		}
	}
	w.refuses(t, "ETH", "51", "acme", "order-7", wallet.ErrKey, "it paid 50000000000000000000")
	w.refuses(t, "ETH", "50", devchain.Accounts[1], "order-7", wallet.ErrKey, "")
	other := *w
	other.opts.Signer.PrivateKey = devchain.Keys[1]
	other.Wallet = other.reopen(t)
	other.refuses(t, "ETH", "50", "acme", "order-7", wallet.ErrKey, "it paid from "+devchain.Accounts[0]+" on eip155:1337")
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
	w.has(t, payee, "50000000000000000000")
}

// TestManyPaymentsAtOnce: each payment has a nonce of its own, also of two wallets on one
// journal, and all are paid.
func TestManyPaymentsAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	both := []*chain.Wallet{w.Wallet, w.reopen(t)}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if _, err := both[i%2].Transfer(t.Context(), "ETH", "1", "acme", string(rune('a'+i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.Mine(t, 1)
	all, err := w.Reconcile(t.Context())
	if err != nil || len(all) != 10 {
		t.Errorf("%d payments, %v", len(all), err)
	}
	w.has(t, payee, "10000000000000000000")
}

func on(method string, o devchain.Outcome) devchain.Fault {
	return func(m string) devchain.Outcome {
		if m == method {
			return o
		}
		return devchain.Works
	}
}

const send = "eth_sendRawTransaction"

// TestTheNodeFailsInTheMiddle: however a node fails while it is sent a payment, the
// payment is unknown, the same call again sends the same bytes, and it is paid once.
func TestTheNodeFailsInTheMiddle(t *testing.T) {
	for name, fault := range map[string]devchain.Fault{
		"before it sees the payment": on(send, devchain.Down),
		"before it answers":          on(send, devchain.Unheard),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.Break(fault)
			first := w.pay(t, "ETH", "1", "acme", "one", chain.Unknown)
			if !strings.Contains(first.Note, "do not pay this again with another idempotency_key") {
				t.Errorf("note %q", first.Note)
			}
			w.Break(nil)
			w.Wallet = w.reopen(t)
			if again := w.pay(t, "ETH", "1", "acme", "one", chain.Pending); again.Hash != first.Hash || again.ID != first.ID {
				t.Errorf("%+v became %+v", first.Chained, again.Chained)
			}
			w.Mine(t, 1)
			w.settled(t, chain.Confirmed)
			w.has(t, payee, "1000000000000000000")
			for _, raw := range w.Sent() {
				if raw != w.Sent()[0] {
					t.Errorf("other bytes were sent: %v", w.Sent())
				}
			}
		})
	}
}

// TestALostPaymentIsSentAgain: a node that forgot payments gets them before the next one,
// and the nonces of all differ, whatever the node counts.
func TestALostPaymentIsSentAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.Break(on(send, devchain.Forgotten))
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.pay(t, "ETH", "2", "acme", "two", chain.Pending)
	w.Break(nil)
	w.pay(t, "ETH", "4", "acme", "three", chain.Pending)
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed, chain.Confirmed, chain.Confirmed)
	w.has(t, payee, "7000000000000000000")
}

func TestANodeThatIsDownRefuses(t *testing.T) {
	w := newWorld(t, nil)
	w.Break(func(string) devchain.Outcome { return devchain.Down })
	w.refuses(t, "ETH", "1", "acme", "one", chain.ErrNode, "the node of the chain does not answer eth_chainId")
	if _, err := w.Balances(t.Context(), ""); !errors.Is(err, chain.ErrNode) || strings.Contains(err.Error(), w.URL[7:]) {
		t.Errorf("balances: %v", err)
	}
	if _, err := w.Reconcile(t.Context()); !errors.Is(err, chain.ErrNode) {
		t.Errorf("reconcile: %v", err)
	}
}

// TestAStuckPaymentStaysPending: a payment that no block takes is pending, and the next
// one waits behind it.
func TestAStuckPaymentStaysPending(t *testing.T) {
	w := newWorld(t, nil)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.pay(t, "ETH", "1", "acme", "two", chain.Pending)
	w.settled(t, chain.Pending, chain.Pending)
	w.has(t, payee, "0")
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed, chain.Confirmed)
}

// TestANonceThatIsTaken: a payment whose nonce another transaction of the account has in
// a block can never be paid, and says so.
func TestANonceThatIsTaken(t *testing.T) {
	w := newWorld(t, func(o *chain.Options) { o.Confirmations = 2 })
	w.pay(t, "ETH", "1", "acme", "zero", chain.Pending)
	w.Mine(t, 2)
	w.settled(t, chain.Confirmed)
	w.Break(on(send, devchain.Down))
	w.pay(t, "ETH", "1", "acme", "one", chain.Unknown)
	w.Break(nil)
	to, err := evm.ParseAddress(devchain.Accounts[1])
	if err != nil {
		t.Fatal(err)
	}
	w.Pay(t, 0, &evm.Transaction{Nonce: 1, To: to, Value: big.NewInt(1), Gas: 21_000})
	w.Mine(t, 1)
	// One block is not deep enough to be sure.
	if all, _ := w.Reconcile(t.Context()); len(all) != 1 || all[0].Status == chain.Replaced {
		t.Fatalf("%v", all)
	}
	w.Mine(t, 1)
	w.settled(t, chain.Replaced)
	w.has(t, payee, "1000000000000000000")
	if tx := w.pay(t, "ETH", "1", "acme", "one", chain.Replaced); !strings.Contains(tx.Note, "nothing was paid") {
		t.Errorf("note %q", tx.Note)
	}
	w.pay(t, "ETH", "1", "acme", "two", chain.Pending)
}

// TestARefusedPaymentGivesItsNonceBack: what the node refuses is not paid, and the next
// payment has its nonce, so that at most one of the two can ever be.
func TestARefusedPaymentGivesItsNonceBack(t *testing.T) {
	w := newWorld(t, nil)
	other, err := evm.ParseAddress(devchain.Accounts[1])
	if err != nil {
		t.Fatal(err)
	}
	emptied := sync.OnceFunc(func() { // between the check of the balance and the payment
		w.Pay(t, 0, &evm.Transaction{To: other, Value: wei(9_999), Gas: 21_000})
		w.Mine(t, 1)
	})
	w.Break(func(method string) devchain.Outcome {
		if method == "eth_getTransactionCount" {
			emptied()
		}
		return devchain.Works
	})
	tx := w.pay(t, "ETH", "5000", "acme", "one", chain.Refused)
	if !strings.Contains(tx.Note, "nothing was paid") || tx.Fee != "0 ETH" {
		t.Errorf("%+v", tx.Chained)
	}
	w.pay(t, "ETH", "0.5", "acme", "two", chain.Pending)
	w.pay(t, "ETH", "5000", "acme", "one", chain.Refused)
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
	w.has(t, payee, "500000000000000000")
}

func wei(ether int64) *big.Int { return new(big.Int).Mul(big.NewInt(ether), big.NewInt(1e18)) }

// TestReorg: a payment in a block that the chain gives up is pending again, and is paid
// once in the end.
func TestReorg(t *testing.T) {
	w := newWorld(t, func(o *chain.Options) { o.Confirmations = 4 })
	w.Mine(t, 2)
	w.pay(t, "ETH", "1", "acme", "one", chain.Pending)
	w.Mine(t, 2)
	w.settled(t, chain.Pending)
	w.Reorg(t, 2)
	w.settled(t, chain.Pending)
	w.Mine(t, 4)
	w.settled(t, chain.Confirmed)
	w.has(t, payee, "1000000000000000000")
}

// TestATransferThatIsCancelled: what is in the journal is sent, whoever gave up.
func TestATransferThatIsCancelled(t *testing.T) {
	w := newWorld(t, func(o *chain.Options) { o.Wait = time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	w.Break(func(method string) devchain.Outcome {
		if method == send {
			cancel()
		}
		return devchain.Works
	})
	tx, err := w.Transfer(ctx, "ETH", "1", "acme", "one")
	if err != nil || tx.Status != chain.Pending {
		t.Fatalf("%+v, %v", tx.Chained, err)
	}
	w.Mine(t, 1)
	w.settled(t, chain.Confirmed)
}
