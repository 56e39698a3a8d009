package tools

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/toolgate/toolgate/tools/chain"
	"github.com/toolgate/toolgate/tools/wallet"
)

// payer is the wallet of manage_wallet. An error in whose chain is a wallet.Refusal means
// that nothing has moved. Its methods are safe for concurrent use.
type payer interface {
	Balances(ctx context.Context, asset string) ([]wallet.Balance, error)
	Transfer(ctx context.Context, asset, amount, destination, key string) (wallet.Transaction, error)
	Provider() string // named in results
}

// reconciler is a payer whose payments may be open for a while.
type reconciler interface {
	Reconcile(ctx context.Context) ([]wallet.Transaction, error)
}

// OnChain reports whether manage_wallet pays on a chain.
func (b Backends) OnChain() bool { return b.Wallet != nil && b.Wallet.Provider != "paper" }

// openWallet opens the chain that opts choose, or the ledger.
func openWallet(ctx context.Context, opts Options) (payer, func() error, error) {
	if opts.Backends.OnChain() {
		w, err := chain.Open(ctx, filepath.Join(opts.Dir, "chain.db"), *opts.Backends.Wallet)
		if err != nil {
			return nil, nil, err
		}
		return w, w.Close, nil
	}
	w, err := wallet.Open(ctx, filepath.Join(opts.Dir, "wallet.db"))
	if err != nil {
		return nil, nil, err
	}
	return w, w.Close, nil
}

type walletArgs struct {
	Action      string         `json:"action"`
	Asset       string         `json:"asset"`
	Amount      jsontext.Value `json:"amount"` // unchanged
	Destination string         `json:"destination"`
	Key         string         `json:"idempotency_key"`

	// The names that Coinbase AgentKit gives to amount, destination and asset.
	Value              jsontext.Value `json:"value"`
	To                 string         `json:"to"`
	DestinationAddress string         `json:"destinationAddress"`
	TokenAddress       string         `json:"tokenAddress"`
}

// canonical gives the arguments their first names.
func (in *walletArgs) canonical() (err error) {
	var errs [3]error
	amount, err := oneOf("amount", string(in.Amount), string(in.Value))
	in.Amount, errs[0] = jsontext.Value(amount), err
	in.Asset, errs[1] = oneOf("asset", in.Asset, in.TokenAddress)
	in.Destination, errs[2] = oneOf("destination", in.Destination, in.To, in.DestinationAddress)
	return errors.Join(errs[:]...)
}

// oneOf returns the only value that is not empty.
func oneOf(name string, values ...string) (string, error) {
	values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	if len(values) > 1 {
		return "", fmt.Errorf("%w: %s is there by several names", ErrArguments, name)
	}
	return strings.Join(values, ""), nil
}

type walletResult struct {
	Provider    string               `json:"provider"`
	Action      string               `json:"action"`
	Balances    []wallet.Balance     `json:"balances"`
	Transaction *wallet.Transaction  `json:"transaction,omitempty"`
	Open        []wallet.Transaction `json:"transactions,omitempty"` // what reconcile looked at
}

// manageWallet does an action. A refusal is a result that a model can act on; so is a
// payment that has failed.
func (b backends) manageWallet(ctx context.Context, in walletArgs) (*mcp.CallToolResult, error) {
	if err := in.canonical(); err != nil {
		return nil, err
	}
	out, err := b.act(ctx, in)
	if refusal, ok := errors.AsType[wallet.Refusal](err); ok && refusal != "" {
		return mcp.NewToolResultError(err.Error()), nil //nolint:nilerr // the refusal is the result
	}
	if err != nil {
		return nil, err
	}
	result, err := structured(out)
	if err == nil && out.Transaction != nil && out.Transaction.Chained != nil {
		switch out.Transaction.Status {
		case chain.Failed, chain.Refused, chain.Replaced:
			result.IsError = true
		}
	}
	return result, err
}

func (b backends) act(ctx context.Context, in walletArgs) (out walletResult, err error) {
	out = walletResult{Provider: b.wallet.Provider(), Action: in.Action, Balances: []wallet.Balance{}}
	reconciling, ok := b.wallet.(reconciler)
	switch {
	case in.Action == "balance":
		out.Balances, err = b.wallet.Balances(ctx, in.Asset)
	case in.Action == "reconcile" && ok:
		out.Open, err = reconciling.Reconcile(ctx)
	case in.Action == "transfer":
		return b.transfer(ctx, in, out)
	default:
		err = fmt.Errorf("%w: unknown action %.64q", ErrArguments, in.Action)
	}
	return out, err
}

func (b backends) transfer(ctx context.Context, in walletArgs, out walletResult) (walletResult, error) {
	amount, err := decimal(in.Amount)
	if err != nil {
		return out, err
	}
	tx, err := b.wallet.Transfer(ctx, in.Asset, amount, in.Destination, in.Key)
	if err != nil {
		return out, err
	}
	out.Transaction = &tx
	if left, err := b.wallet.Balances(ctx, in.Asset); err == nil {
		out.Balances = left // none if they cannot be read: the transfer is the result
	}
	return out, nil
}

// decimal returns an amount that is a JSON number or a string with a decimal number.
func decimal(amount jsontext.Value) (text string, err error) {
	if amount.Kind() != '"' {
		return string(amount), nil
	}
	if err := json.Unmarshal(amount, &text); err != nil {
		return "", fmt.Errorf("%w: amount: %w", ErrArguments, err)
	}
	return text, nil
}
