package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/toolgate/toolgate/internal/evm"
)

// raise replaces the newest transaction of a payment that waits because its fee is too low:
// no block may have it at this base fee, or a node that forgot it refuses it, which sent
// says. The new one has the same nonce and is in the journal before a node sees it, so the
// chain takes one of them, whichever it is. A fee that cannot rise leaves the payment as it
// is, with the reason, and sent is returned.
func (w *Wallet) raise(ctx context.Context, p *Payment, base *big.Int, sent error) error {
	if !p.open() || !p.accepted || len(p.unsigned) == 0 {
		return sent
	}
	p.Reason = ""
	tx := new(evm.Transaction)
	if err := json.Unmarshal(p.unsigned, tx); err != nil {
		return fmt.Errorf("reading the journal of payments: %w", err)
	}
	if !errors.Is(sent, evm.ErrUnderpriced) && (sent != nil || base.Cmp(tx.GasFee) <= 0) {
		return sent
	}
	next, err := w.dearer(ctx, p, tx, base)
	if err != nil {
		p.Reason = err.Error()
		return sent
	}
	if err = w.journal.replace(ctx, next, p.earlier); errors.Is(err, errTaken) {
		return sent // another process raised it, or saw its end
	}
	if err != nil {
		return err
	}
	*p = *next
	return w.send(ctx, p)
}

// dearer returns a payment with a new transaction in place of tx, whose fee is within its
// limit and the balance.
func (w *Wallet) dearer(ctx context.Context, p *Payment, tx *evm.Transaction, base *big.Int) (*Payment, error) {
	tip, err := w.node.Tip(ctx)
	if err != nil {
		return nil, err
	}
	open, err := w.journal.unsettled(ctx)
	if err != nil {
		return nil, err
	}
	tx.Price(base, tip)
	others := slices.DeleteFunc(open, func(other Payment) bool { return other.ID == p.ID })
	if err := w.coversFee(ctx, tx, others); err != nil {
		return nil, err
	}
	next := *p
	next.earlier = p.earlier + " " + p.newest()
	return &next, w.seal(ctx, &next, tx)
}
