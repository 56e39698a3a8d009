package evm

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// latest and pending are the states of a chain that a node is asked for.
const (
	latest  = "latest"
	pending = "pending"
)

// number asks for a number that fits into 64 bits.
func (n *Node) number(ctx context.Context, method string, params ...any) (uint64, error) {
	var q quantity
	if err := n.call(ctx, &q, method, params...); err != nil {
		return 0, err
	}
	if !q.n.IsUint64() {
		return 0, fmt.Errorf("%w sent an answer to %s that cannot be read", ErrNode, method)
	}
	return q.n.Uint64(), nil
}

// ChainID returns the id of the chain that the node is on.
func (n *Node) ChainID(ctx context.Context) (uint64, error) { return n.number(ctx, "eth_chainId") }

// Head is the newest block.
type Head struct {
	Number  uint64
	BaseFee *big.Int // in wei for a unit of gas
}

// Head returns the newest block. A chain without EIP-1559 is an error.
func (n *Node) Head(ctx context.Context) (Head, error) {
	var block struct {
		Number  *quantity
		BaseFee *quantity `json:"baseFeePerGas"`
	}
	err := n.call(ctx, &block, "eth_getBlockByNumber", latest, false)
	switch {
	case err != nil:
		return Head{}, err
	case block.Number == nil || !block.Number.n.IsUint64():
		return Head{}, fmt.Errorf("%w sent a block that cannot be read", ErrNode)
	case block.BaseFee == nil:
		return Head{}, fmt.Errorf("%w is on a chain without EIP-1559", ErrNode)
	}
	return Head{block.Number.n.Uint64(), &block.BaseFee.n}, nil
}

// Nonce returns how many transactions of the account blocks up to one have.
func (n *Node) Nonce(ctx context.Context, of Address, block uint64) (uint64, error) {
	return n.number(ctx, "eth_getTransactionCount", of.String(), fmt.Sprintf("%#x", block))
}

// NextNonce returns the nonce after all transactions of the account that the node knows.
func (n *Node) NextNonce(ctx context.Context, of Address) (uint64, error) {
	return n.number(ctx, "eth_getTransactionCount", of.String(), pending)
}

// Balance returns what an account has, in wei.
func (n *Node) Balance(ctx context.Context, of Address) (*big.Int, error) {
	var q quantity
	err := n.call(ctx, &q, "eth_getBalance", of.String(), latest)
	return &q.n, err
}

// Selectors of ERC-20: the first bytes of the hash of a function's signature.
var (
	balanceOf = selector("balanceOf(address)")
	transfer  = selector("transfer(address,uint256)")
	decimals  = selector("decimals()")
)

func selector(signature string) []byte {
	sum := Keccak([]byte(signature))
	return sum[:4]
}

// word is a value in the contract ABI: 32 bytes.
func word(value []byte) []byte { return append(make([]byte, 32-len(value)), value...) }

// TransferData is the input of a token's function transfer.
func TransferData(to Address, units *big.Int) []byte {
	input := append([]byte{}, transfer...)
	return append(append(input, word(to[:])...), word(units.Bytes())...)
}

// TokenBalance returns what an account has of a token, in its smallest units.
func (n *Node) TokenBalance(ctx context.Context, token, of Address) (*big.Int, error) {
	return n.ask(ctx, token, append(append([]byte{}, balanceOf...), word(of[:])...))
}

// TokenDecimals returns the number of decimals that a token says it has.
func (n *Node) TokenDecimals(ctx context.Context, token Address) (*big.Int, error) {
	return n.ask(ctx, token, decimals)
}

// ask calls a function of a contract that returns a number.
func (n *Node) ask(ctx context.Context, contract Address, input []byte) (*big.Int, error) {
	var out data
	if err := n.call(ctx, &out, "eth_call", map[string]string{"to": contract.String(), "data": hexOf(input)}, latest); err != nil {
		return nil, err
	}
	if len(out) != 32 {
		return nil, fmt.Errorf("%w has no token at %s", ErrNode, contract)
	}
	return new(big.Int).SetBytes(out), nil
}

// Tip returns the tip that the node suggests, in wei for a unit of gas.
func (n *Node) Tip(ctx context.Context) (*big.Int, error) {
	var q quantity
	err := n.call(ctx, &q, "eth_maxPriorityFeePerGas")
	return &q.n, err
}

// Try runs a transaction of an account on the newest state, without sending it, and
// returns how much gas it needs. A token that answers false is an error, as a revert is:
// *RPCError.
func (n *Node) Try(ctx context.Context, from Address, tx *Transaction) (gas uint64, err error) {
	call := map[string]string{"from": from.String(), "to": tx.To.String(), "value": fmt.Sprintf("%#x", tx.Value), "data": hexOf(tx.Data)}
	if len(tx.Data) > 0 {
		var out data
		if err := n.call(ctx, &out, "eth_call", call, latest); err != nil {
			return 0, err
		}
		if len(out) > 0 && new(big.Int).SetBytes(out).Sign() == 0 {
			return 0, &RPCError{Message: "the token refuses the transfer"}
		}
	}
	return n.number(ctx, "eth_estimateGas", call)
}

// Send hands a signed transaction to the node. The error is nil, too, when the node has
// the transaction already, and ErrRefused or ErrUnderpriced when it certainly did not take it.
func (n *Node) Send(ctx context.Context, raw []byte) error {
	err := n.call(ctx, new(string), "eth_sendRawTransaction", hexOf(raw))
	answer, ok := errors.AsType[*RPCError](err)
	if !ok {
		return err
	}
	message := strings.ToLower(answer.Message)
	switch {
	case says(message, "already known", "already imported", "known transaction"):
		return nil
	case says(message, "insufficient funds", "enough funds", "replacement", "intrinsic gas", "block gas limit", "gas limit is too high"):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case says(message, "underpriced", "less than block base fee", "too low for the next block"):
		return fmt.Errorf("%w: %w", ErrUnderpriced, err)
	}
	return err
}

// ErrRefused is in the chain of Send's error when the node refused the transaction for a
// reason that leaves its nonce free. ErrUnderpriced is such a reason: the fee is too low.
var (
	ErrRefused     = errors.New("the transaction was refused")
	ErrUnderpriced = fmt.Errorf("%w: its fee is too low", ErrRefused)
)

func says(message string, parts ...string) bool {
	for _, p := range parts {
		if strings.Contains(message, p) {
			return true
		}
	}
	return false
}

// Known reports whether the node has the transaction with a hash, in a block or waiting for one.
func (n *Node) Known(ctx context.Context, hash string) (bool, error) {
	var found *struct{}
	err := n.call(ctx, &found, "eth_getTransactionByHash", hash)
	return found != nil, err
}

// Receipt says how a transaction ended that is in a block.
type Receipt struct {
	Block uint64
	OK    bool     // false: it was reverted, and its fee was paid
	Fee   *big.Int // in wei
}

// Receipt returns the receipt of the transaction with a hash, nil while it is in no block.
func (n *Node) Receipt(ctx context.Context, hash string) (*Receipt, error) {
	var r *struct {
		Status, BlockNumber, GasUsed, EffectiveGasPrice *quantity
	}
	if err := n.call(ctx, &r, "eth_getTransactionReceipt", hash); err != nil || r == nil {
		return nil, err
	}
	if r.Status == nil || r.BlockNumber == nil || r.GasUsed == nil || r.EffectiveGasPrice == nil || !r.BlockNumber.n.IsUint64() {
		return nil, fmt.Errorf("%w sent a receipt that cannot be read", ErrNode)
	}
	fee := new(big.Int).Mul(&r.GasUsed.n, &r.EffectiveGasPrice.n)
	return &Receipt{Block: r.BlockNumber.n.Uint64(), OK: r.Status.n.Sign() > 0, Fee: fee}, nil
}
