package tools

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/toolgate/toolgate/tools/chain"
	"github.com/toolgate/toolgate/tools/wallet"
)

// onChain reports whether manage_wallet pays on a chain.
func (b Backends) onChain() bool { return b.Wallet != nil && b.Wallet.Provider != "paper" }

func (b backends) closeWallets() error {
	err := b.wallet.Close()
	if b.chain != nil {
		err = errors.Join(err, b.chain.Close())
	}
	return err
}

// payOnChain is manage_wallet with a chain. A refusal is a result that a model can act on;
// so is a payment that has failed.
func (b backends) payOnChain(ctx context.Context, in walletArgs) (*mcp.CallToolResult, error) {
	out, err := b.onChain(ctx, in)
	if refusal, ok := errors.AsType[wallet.Refusal](err); ok && refusal != "" {
		return mcp.NewToolResultError(err.Error()), nil //nolint:nilerr // the refusal is the result
	}
	if err != nil {
		return nil, err
	}
	result, err := structured(out)
	if err == nil && out.Transaction != nil {
		switch out.Transaction.Status {
		case chain.Failed, chain.Refused, chain.Replaced:
			result.IsError = true
		}
	}
	return result, err
}

func (b backends) onChain(ctx context.Context, in walletArgs) (out walletResult, err error) {
	out = walletResult{Provider: b.chain.Provider(), Action: in.Action, Balances: []wallet.Balance{}}
	switch in.Action {
	case "balance":
		out.Balances, err = b.chain.Balances(ctx, in.Asset)
	case "reconcile":
		out.Open, err = b.chain.Reconcile(ctx)
	case "transfer":
		var amount string
		if amount, err = decimal(in.Amount); err != nil {
			return out, err
		}
		var tx wallet.Transaction
		if tx, err = b.chain.Transfer(ctx, in.Asset, amount, in.Destination, in.Key); err != nil {
			return out, err
		}
		out.Transaction = &tx
		if left, err := b.chain.Balances(ctx, in.Asset); err == nil {
			out.Balances = left // none if they cannot be read: the transfer is the result
		}
	default:
		return out, fmt.Errorf("%w: unknown action %.64q", ErrArguments, in.Action)
	}
	return out, err
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
