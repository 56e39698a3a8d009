// Package chain is the wallet of manage_wallet on an EVM chain. A payment is signed once
// and written to a journal, and its file is on disk before a node sees the payment. What
// happens later, in this process or the next, only sends the same bytes again: they have
// one nonce, so the chain takes them at most once.
//
//	w, err := chain.Open(ctx, "chain.db", opts)
//	tx, err := w.Transfer(ctx, "USDC", "12.50", "acme", "invoice-7")
//	// tx.Status is confirmed, pending, unknown, failed, refused or replaced
//
// Who repeats a payment uses its idempotency key; a payment without one is refused.
package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/tools/wallet"
)

// The refusals of a Wallet, besides those of package wallet. Nothing was signed.
var (
	ErrNode  error = wallet.Refusal("the chain cannot be asked")
	ErrChain error = wallet.Refusal("the node is on another chain")
	ErrFee   error = wallet.Refusal("the fee is above the limit")
	ErrTry   error = wallet.Refusal("the chain would refuse the transfer")
	ErrNoKey error = wallet.Refusal("idempotency_key is missing")
	ErrBusy  error = wallet.Refusal("other processes pay from the account: try again")
	ErrStuck error = wallet.Refusal("an earlier payment is not settled")
)

// Wallet pays from one account on one chain. It is safe for concurrent use, also by
// several processes with one journal.
type Wallet struct {
	opts    Options
	node    *evm.Node
	signer  evm.Signer
	journal *journal
	assets  []asset
	book    map[string]evm.Address
	maxFee  *big.Int

	signing sync.Mutex // held from the choice of a nonce until its payment is in the journal
}

// Open opens the journal at path, creating it if it does not exist, and the signer. It
// asks the node nothing. The error is ErrMainnet for a chain of real money without the
// switch for it.
func Open(ctx context.Context, path string, opts Options) (*Wallet, error) {
	w, err := build(opts)
	if err == nil {
		w.journal, err = openJournal(ctx, path, opts.ChainID, w.signer.Address())
	}
	if err != nil {
		return nil, fmt.Errorf("opening wallet: %w", err)
	}
	return w, nil
}

func build(opts Options) (w *Wallet, err error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	opts.Confirmations = cmp.Or(opts.Confirmations, defaultConfirmations)
	opts.Wait = cmp.Or(opts.Wait, defaultWait)
	opts.Symbol = cmp.Or(opts.Symbol, nativeSymbol)
	w = &Wallet{opts: opts, node: evm.NewNode(opts.URL)}
	if w.assets, err = opts.assets(opts.Symbol); err != nil {
		return nil, err
	}
	if w.book, err = opts.book(); err != nil {
		return nil, err
	}
	if w.maxFee, err = text.Units(cmp.Or(opts.MaxFee, defaultMaxFee), nativeDecimals); err != nil {
		return nil, fmt.Errorf("max_fee: %w", err)
	}
	w.signer, err = opts.Signer.open()
	return w, err
}

// Close closes the journal.
func (w *Wallet) Close() error {
	w.node.Close()
	return w.journal.db.Close()
}

// Provider says where payments are made.
func (w *Wallet) Provider() string { return "EVM chain " + w.network() }

// network is the chain in the form of CAIP-2.
func (w *Wallet) network() string { return fmt.Sprintf("eip155:%d", w.opts.ChainID) }

// Balances returns the balance of an asset, or of every asset for "". The error is
// wallet.ErrAsset for one that the wallet does not know, ErrChain or ErrNode.
func (w *Wallet) Balances(ctx context.Context, symbol string) ([]wallet.Balance, error) {
	wanted := w.assets
	if symbol != "" {
		a, err := w.asset(symbol)
		if err != nil {
			return nil, err
		}
		wanted = []asset{a}
	}
	if err := w.checkChain(ctx); err != nil {
		return nil, err
	}
	var all []wallet.Balance
	for _, a := range wanted {
		units, err := w.balance(ctx, a)
		if err != nil {
			return nil, unasked(err)
		}
		all = append(all, wallet.Balance{Asset: a.symbol, Amount: text.Decimal(units, a.decimals)})
	}
	return all, nil
}

// asset returns the asset with a symbol, or the token with an address.
func (w *Wallet) asset(symbol string) (asset, error) {
	for _, a := range w.assets {
		if a.symbol == symbol || a.token != nil && a.token.String() == symbol {
			return a, nil
		}
	}
	var known []string
	for _, a := range w.assets {
		known = append(known, a.symbol)
	}
	return asset{}, fmt.Errorf("%w %.64q: this wallet has %s", wallet.ErrAsset, symbol, strings.Join(known, ", "))
}

func (w *Wallet) balance(ctx context.Context, a asset) (*big.Int, error) {
	if a.token == nil {
		return w.node.Balance(ctx, w.signer.Address())
	}
	return w.node.TokenBalance(ctx, *a.token, w.signer.Address())
}

// checkChain holds the node to the chain of the settings.
func (w *Wallet) checkChain(ctx context.Context) error {
	id, err := w.node.ChainID(ctx)
	if err != nil {
		return unasked(err)
	}
	if id != w.opts.ChainID {
		return fmt.Errorf("%w: eip155:%d, and the wallet is on %s", ErrChain, id, w.network())
	}
	return nil
}

// unasked makes a refusal of a node's failure.
func unasked(err error) error { return fmt.Errorf("%w: %w", ErrNode, err) }

// recipient returns the address of a destination: a name of the address book, or an
// address.
func (w *Wallet) recipient(destination string) (evm.Address, error) {
	if a, ok := w.book[destination]; ok {
		return a, nil
	}
	a, err := evm.ParseAddress(destination)
	switch {
	case err != nil && strings.HasPrefix(destination, "0x"):
		return a, fmt.Errorf("%w: %w", wallet.ErrDestination, err)
	case err != nil:
		names := slices.Sorted(maps.Keys(w.book))
		return a, fmt.Errorf("%w: unknown recipient %.64q; known are addresses and the names: %s", wallet.ErrDestination, destination, strings.Join(names, ", "))
	case a == evm.Address{}, slices.ContainsFunc(w.assets, func(as asset) bool { return as.token != nil && *as.token == a }):
		return a, fmt.Errorf("%w: what is paid to %s is lost", wallet.ErrDestination, destination)
	}
	return a, nil
}

// order is a transfer whose arguments were read.
type order struct {
	key, destination string
	asset            asset
	units            *big.Int
	to               evm.Address
}

// read reads the arguments of a transfer; the amount becomes smallest units.
func (w *Wallet) read(symbol, amount, destination, key string) (o order, err error) {
	if o.asset, err = w.asset(symbol); err != nil {
		return o, err
	}
	if o.units, err = text.Units(amount, o.asset.decimals); err != nil {
		return o, fmt.Errorf("%w: %w", wallet.ErrAmount, err)
	}
	if o.to, err = w.recipient(destination); err != nil {
		return o, err
	}
	if key == "" {
		return o, fmt.Errorf("%w: choose one for this payment, and repeat it if you repeat the call", ErrNoKey)
	}
	o.key, o.destination = key, destination
	return o, nil
}

// Transfer pays an amount, a decimal number, once for each idempotency key. An error in
// whose chain is a wallet.Refusal means that nothing was signed; any other error, that it
// is not known. Otherwise Status says how far the payment is: it waits until the payment
// is confirmed, for at most Options.Wait and not after ctx ends. A call with a key that
// was used returns its payment, after it was sent again where needed; the error is
// wallet.ErrKey if that was another payment.
func (w *Wallet) Transfer(ctx context.Context, symbol, amount, destination, key string) (wallet.Transaction, error) {
	o, err := w.read(symbol, amount, destination, key)
	if err != nil {
		return wallet.Transaction{}, fmt.Errorf("transferring: %w", err)
	}
	p, err := w.intend(ctx, o)
	if err == nil {
		err = w.settle(ctx, p)
	}
	if err != nil {
		return wallet.Transaction{}, fmt.Errorf("transferring: %w", err)
	}
	return w.describe(p), nil
}

// Reconcile looks at every payment that is pending or unknown, sends it again where no
// node has it, and returns them as they are now. It starts no payment.
func (w *Wallet) Reconcile(ctx context.Context) ([]wallet.Transaction, error) {
	if err := w.checkChain(ctx); err != nil {
		return nil, fmt.Errorf("reconciling: %w", err)
	}
	open, err := w.journal.unsettled(ctx)
	all := []wallet.Transaction{}
	for i := 0; err == nil && i < len(open); i++ {
		if err = w.refresh(ctx, &open[i]); errors.Is(err, evm.ErrNode) {
			err = nil // the state says that it is not known
		}
		all = append(all, w.describe(&open[i]))
	}
	if err != nil {
		return nil, fmt.Errorf("reconciling: %w", err)
	}
	return all, nil
}

// describe writes a payment for a result.
func (w *Wallet) describe(p *Payment) wallet.Transaction {
	units, _ := new(big.Int).SetString(p.Units, 10)
	fee, _ := new(big.Int).SetString(p.Fee, 10)
	return wallet.Transaction{
		ID: p.ID, Asset: p.Asset, Amount: text.Decimal(units, p.decimals), Destination: p.Destination,
		Chained: &wallet.Chained{
			Units: p.Units, Recipient: p.Recipient, Network: w.network(), Fee: text.Decimal(fee, nativeDecimals) + " " + w.opts.Symbol,
			Hash: p.Hash, Status: p.Status, Key: p.Key, Note: p.note(),
		},
	}
}

// note says what a model can do in a state that is not Confirmed.
func (p *Payment) note() string {
	switch p.Status {
	case Unknown, Pending:
		note := "do not pay this again with another idempotency_key; ask with action reconcile, or repeat the call with the same key"
		if p.Reason != "" {
			note += "; it waits because its fee is too low for the chain now, and a higher one is not possible: " + p.Reason
		}
		return note
	case Failed:
		return "the chain reverted the transfer: the fee was paid, the amount was not"
	case Refused:
		return "nothing was paid: " + p.Reason
	case Replaced:
		return "nothing was paid: another transaction of the account has its nonce"
	}
	return ""
}

// pause is between two looks at a payment, and grows.
func pause(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 6), 2*time.Second)
}
