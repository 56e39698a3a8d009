package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/tools/wallet"
)

// attempts is how often a payment takes another nonce because another process was faster.
const attempts = 50

// intend returns the payment with the order's key, signing it and writing it to the
// journal if there is none. After an error in whose chain is a wallet.Refusal, nothing
// was signed.
func (w *Wallet) intend(ctx context.Context, o order) (*Payment, error) {
	w.signing.Lock()
	defer w.signing.Unlock()
	for range attempts {
		p, err := w.journal.find(ctx, o.key)
		if err != nil {
			return nil, err
		}
		if p != nil {
			return p, w.matches(o, p)
		}
		if p, err = w.sign(ctx, o); err == nil {
			err = w.journal.write(ctx, p)
		}
		if !errors.Is(err, errTaken) {
			return p, err
		}
	}
	return nil, ErrBusy
}

// matches holds a payment that was found by its key to the order.
func (w *Wallet) matches(o order, p *Payment) error {
	if p.chain != w.journal.chain || p.source != w.journal.source {
		return fmt.Errorf("%w: it paid from %s on eip155:%d", wallet.ErrKey, p.source, p.chain)
	}
	if p.Asset != o.asset.symbol || p.Units != o.units.String() || p.Recipient != o.to.String() {
		return fmt.Errorf("%w: it paid %s of the smallest units of %s to %s", wallet.ErrKey, p.Units, p.Asset, p.Recipient)
	}
	return nil
}

// sign checks that an order can be paid, and signs it with a nonce that no payment has.
func (w *Wallet) sign(ctx context.Context, o order) (*Payment, error) {
	if err := w.checkChain(ctx); err != nil {
		return nil, err
	}
	open, err := w.resume(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := w.price(ctx, o, open)
	if err != nil {
		return nil, err
	}
	next, err := w.node.NextNonce(ctx, w.signer.Address())
	if err != nil {
		return nil, unasked(err)
	}
	tx.Nonce = freeNonce(next, open)
	p := &Payment{
		Key: o.key, Asset: o.asset.symbol, Destination: o.destination, Units: o.units.String(), Recipient: o.to.String(),
		Status: Unknown, decimals: o.asset.decimals, nonce: tx.Nonce,
	}
	return p, w.seal(ctx, p, tx)
}

// seal signs a transaction, and makes it the newest of a payment.
func (w *Wallet) seal(ctx context.Context, p *Payment, tx *evm.Transaction) error {
	raw, hash, err := tx.Sign(ctx, w.signer)
	if err != nil {
		return err
	}
	p.raw, p.Hash, p.Fee = raw, hash.String(), tx.MostFee().String()
	p.unsigned, err = json.Marshal(tx)
	return err
}

// resume looks at earlier payments that are not final, and sends them where they were
// lost, so that their nonces do not hold up the next. It returns those that still are not
// final. The refusal is ErrStuck for one that no node takes.
func (w *Wallet) resume(ctx context.Context) ([]Payment, error) {
	open, err := w.journal.unsettled(ctx)
	if err != nil {
		return nil, err
	}
	for i := range open {
		if err := w.refresh(ctx, &open[i]); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrStuck, open[i].ID, err)
		}
	}
	return w.journal.unsettled(ctx)
}

// price returns the unsigned transaction of an order, with its fee. The refusal is
// wallet.ErrInsufficient, ErrTry or ErrFee.
func (w *Wallet) price(ctx context.Context, o order, open []Payment) (*evm.Transaction, error) {
	tx := &evm.Transaction{ChainID: w.opts.ChainID, To: o.to, Value: o.units}
	if o.asset.token != nil {
		if err := w.checkDecimals(ctx, o.asset); err != nil {
			return nil, err
		}
		tx.To, tx.Value, tx.Data = *o.asset.token, new(big.Int), evm.TransferData(o.to, o.units)
	}
	paid, fees := committed(open, o.asset.symbol)
	if o.asset.token == nil {
		paid.Add(paid, fees)
	}
	if err := w.covers(ctx, o.asset, o.units, paid); err != nil {
		return nil, err
	}
	head, err := w.node.Head(ctx)
	if err != nil {
		return nil, unasked(err)
	}
	tip, err := w.node.Tip(ctx)
	if err != nil {
		return nil, unasked(err)
	}
	tx.Price(head.BaseFee, tip)
	if err := w.limitGas(ctx, tx); err != nil {
		return nil, err
	}
	return tx, w.coversFee(ctx, tx, open)
}

// plainGas is what a transfer of the chain's own asset to an account needs, exactly.
const plainGas = 21_000

// limitGas sets the limit of gas: what the node estimates and a fifth more, for a state
// that changes until then.
func (w *Wallet) limitGas(ctx context.Context, tx *evm.Transaction) error {
	gas, err := w.node.Try(ctx, w.signer.Address(), tx)
	if _, ok := errors.AsType[*evm.RPCError](err); ok {
		return fmt.Errorf("%w: %w", ErrTry, err)
	}
	if err != nil {
		return unasked(err)
	}
	tx.Gas = gas
	if gas > plainGas {
		tx.Gas += gas / 5
	}
	return nil
}

// coversFee holds the fee to its limit, and with the amount, if that is of the chain's own
// asset, to the balance of that asset.
func (w *Wallet) coversFee(ctx context.Context, tx *evm.Transaction, open []Payment) error {
	if fee := tx.MostFee(); fee.Cmp(w.maxFee) > 0 {
		return fmt.Errorf("%w: up to %s %s, and max_fee is %s", ErrFee, text.Decimal(fee, nativeDecimals), w.opts.Symbol, text.Decimal(w.maxFee, nativeDecimals))
	}
	native := w.assets[0]
	paid, fees := committed(open, native.symbol)
	err := w.covers(ctx, native, new(big.Int).Add(tx.Value, tx.MostFee()), paid.Add(paid, fees))
	if errors.Is(err, wallet.ErrInsufficient) {
		return fmt.Errorf("%w, of which the fee is up to %s", err, text.Decimal(tx.MostFee(), nativeDecimals))
	}
	return err
}

// covers holds an amount to the balance, less what open payments may still take.
func (w *Wallet) covers(ctx context.Context, a asset, units, committed *big.Int) error {
	have, err := w.balance(ctx, a)
	if err != nil {
		return unasked(err)
	}
	free := new(big.Int).Sub(have, committed)
	if free.Cmp(units) >= 0 {
		return nil
	}
	free = free.Abs(free.Mul(free, big.NewInt(int64(max(0, free.Sign())))))
	return fmt.Errorf("%w: %s %s are free, %s are wanted", wallet.ErrInsufficient, text.Decimal(free, a.decimals), a.symbol, text.Decimal(units, a.decimals))
}

// checkDecimals holds a token to the decimals of the settings: with others, every amount
// would be wrong by a power of ten.
func (w *Wallet) checkDecimals(ctx context.Context, a asset) error {
	has, err := w.node.TokenDecimals(ctx, *a.token)
	if err != nil {
		return unasked(err)
	}
	if has.Cmp(big.NewInt(int64(a.decimals))) != 0 {
		return fmt.Errorf("%w: the token %s has %s decimals, and %d in the settings", ErrChain, a.symbol, has, a.decimals)
	}
	return nil
}

// lastLook is how long a look at a payment may take that begins when the wait ends.
const lastLook = 10 * time.Second

// settle looks at a payment until it is final, ctx ends or Options.Wait is over. A node
// that does not answer leaves the state as it is.
func (w *Wallet) settle(ctx context.Context, p *Payment) error {
	// What was written to the journal is sent at least once, also when ctx has ended.
	sending, stop := context.WithTimeout(context.WithoutCancel(ctx), w.opts.Wait+lastLook)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, w.opts.Wait)
	defer cancel()
	for i := 0; p.open(); i++ {
		if err := w.refresh(sending, p); err != nil && !errors.Is(err, evm.ErrNode) {
			return err
		}
		if p.open() && !wait.For(ctx, pause(i)) {
			return nil
		}
	}
	return nil
}

// refresh brings a payment up to date with the chain, and sends it if no node has it. The
// error is evm.ErrNode if the chain could not be asked, or one of the journal.
func (w *Wallet) refresh(ctx context.Context, p *Payment) error {
	if !p.open() {
		return nil
	}
	before := *p
	err := w.look(ctx, p)
	if p.Status != before.Status || p.accepted != before.accepted || p.Fee != before.Fee || p.Reason != before.Reason {
		if updating := w.journal.update(context.WithoutCancel(ctx), p); !errors.Is(updating, errTaken) {
			return errors.Join(err, updating)
		}
		// What was seen here is out of date: another process raised the fee, or saw the end.
		return w.journal.reload(ctx, p)
	}
	return err
}

func (w *Wallet) look(ctx context.Context, p *Payment) error {
	head, err := w.node.Head(ctx)
	if err != nil {
		return node(err)
	}
	deep := head.Number - min(head.Number, w.opts.Confirmations-1)
	used, err := w.node.Nonce(ctx, w.signer.Address(), deep)
	if err != nil {
		return node(err)
	}
	// Receipts are read after the count: if the payment is what was counted, it has one.
	receipt, err := w.receipt(ctx, p)
	switch {
	case errors.Is(err, evm.ErrNode):
		return err
	case receipt != nil:
		p.mined(receipt, receipt.Block <= deep)
		return nil
	case err == nil && used > p.nonce:
		p.Status, p.Fee = Replaced, "0"
		return nil
	}
	// Nothing follows from the error of a node that is still indexing; sending is always safe.
	return w.raise(ctx, p, head.BaseFee, w.send(ctx, p))
}

// receipt returns the receipt of that transaction of a payment which is in a block, and
// gives the payment its hash; nil while none is.
func (w *Wallet) receipt(ctx context.Context, p *Payment) (receipt *evm.Receipt, err error) {
	p.Hash = p.newest()
	for _, hash := range append(strings.Fields(p.earlier), p.Hash) {
		if receipt, err = w.node.Receipt(ctx, hash); receipt != nil {
			p.Hash = hash
		}
		if receipt != nil || err != nil {
			break
		}
	}
	return receipt, err
}

// mined takes over what a receipt says: the end, if its block is deep enough.
func (p *Payment) mined(r *evm.Receipt, deep bool) {
	p.Status, p.accepted, p.Fee, p.Reason = Pending, true, r.Fee.String(), ""
	switch {
	case deep && r.OK:
		p.Status = Confirmed
	case deep:
		p.Status = Failed
	}
}

// send sends a payment that is in no block, unless the node has it. Only a payment that
// no node ever took can be refused: others may still be in the memory of other nodes.
func (w *Wallet) send(ctx context.Context, p *Payment) error {
	known, err := w.node.Known(ctx, p.newest())
	if errors.Is(err, evm.ErrNode) {
		return err
	}
	if !known {
		err = w.node.Send(ctx, p.raw)
	}
	switch {
	case err == nil:
		p.Status, p.accepted = Pending, true
	case errors.Is(err, evm.ErrRefused) && !p.accepted:
		p.Status, p.Reason, p.Fee = Refused, err.Error(), "0"
	default:
		p.Status = Unknown
		return node(err)
	}
	return nil
}

// node makes one kind of what a node answers and what it does not.
func node(err error) error {
	if errors.Is(err, evm.ErrNode) {
		return err
	}
	return fmt.Errorf("%w: %w", evm.ErrNode, err)
}

// newest is the hash of the newest transaction.
func (p *Payment) newest() string { return evm.Keccak(p.raw).String() }
