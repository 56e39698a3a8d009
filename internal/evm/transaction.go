package evm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"

	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// Transaction is an unsigned transaction of type 2 (EIP-1559) with an empty access list.
type Transaction struct {
	ChainID uint64
	Nonce   uint64
	Tip     *big.Int // most that the producer of the block gets for a unit of gas, in wei
	GasFee  *big.Int // most that a unit of gas costs, the tip included, in wei
	Gas     uint64   // most units of gas
	To      Address
	Value   *big.Int // in wei
	Data    []byte
}

// typeByte is before the RLP of a transaction of type 2.
const typeByte = 2

// MostFee returns the most that the transaction costs besides its value, in wei.
func (tx *Transaction) MostFee() *big.Int {
	return new(big.Int).Mul(tx.GasFee, new(big.Int).SetUint64(tx.Gas))
}

// Price sets the fees for a chain with this base fee and suggested tip, for six full blocks
// in a row. Fees that are set rise by an eighth at least: nodes replace a transaction that
// waits by another with its nonce only if that one pays a tenth more.
func (tx *Transaction) Price(base, tip *big.Int) {
	tx.Tip, tx.GasFee = raised(tx.Tip, tip), raised(tx.GasFee, new(big.Int).Add(new(big.Int).Lsh(base, 1), tip))
}

func raised(fee, needed *big.Int) *big.Int {
	if fee == nil {
		return needed
	}
	more := new(big.Int).Add(fee, new(big.Int).Rsh(fee, 3))
	if more.Add(more, big.NewInt(1)).Cmp(needed) < 0 {
		return needed
	}
	return more
}

// Payload returns the bytes whose hash is signed.
func (tx *Transaction) Payload() []byte { return append([]byte{typeByte}, rlpList(tx.fields()...)...) }

func (tx *Transaction) fields() [][]byte {
	return [][]byte{
		rlpNumber(tx.ChainID), rlpNumber(tx.Nonce), rlpBytes(tx.Tip.Bytes()), rlpBytes(tx.GasFee.Bytes()), rlpNumber(tx.Gas),
		rlpBytes(tx.To[:]), rlpBytes(tx.Value.Bytes()), rlpBytes(tx.Data), rlpList(),
	}
}

// Sign returns the signed transaction as a node accepts it, and its hash. A signature that
// is not of the signer's account is an error.
func (tx *Transaction) Sign(ctx context.Context, s Signer) (raw []byte, hash Hash, err error) {
	payload := tx.Payload()
	signature, err := s.Sign(ctx, payload)
	if err == nil {
		err = signature.verify(Keccak(payload), s.Address())
	}
	if err != nil {
		return nil, Hash{}, fmt.Errorf("signing transaction: %w", err)
	}
	raw = append([]byte{typeByte}, rlpList(append(tx.fields(), signature.fields()...)...)...)
	return raw, Keccak(raw), nil
}

// Signature is R, S and the parity of the point (0 or 1), as 65 bytes.
type Signature [65]byte

var errSignature = errors.New("the signature is not of the account")

// verify holds a signature to the account, and to the lower of the two S, which is the
// one that chains accept.
func (s Signature) verify(hash Hash, by Address) error {
	if s[64] > 1 {
		return errSignature
	}
	compact := append([]byte{27 + s[64]}, s[:64]...)
	key, _, err := ecdsa.RecoverCompact(compact, hash[:])
	if err != nil || addressOf(key) != by || new(big.Int).SetBytes(s[32:64]).Cmp(halfOrder) > 0 {
		return errSignature
	}
	return nil
}

func (s Signature) fields() [][]byte {
	r, low := new(big.Int).SetBytes(s[:32]), new(big.Int).SetBytes(s[32:64])
	return [][]byte{rlpNumber(uint64(s[64])), rlpBytes(r.Bytes()), rlpBytes(low.Bytes())}
}

// RLP, the encoding of transactions (Ethereum Yellow Paper, appendix B).

func rlpBytes(b []byte) []byte {
	if len(b) == 1 && b[0] < 0x80 {
		return b
	}
	return append(rlpHead(0x80, len(b)), b...)
}

func rlpNumber(n uint64) []byte { return rlpBytes(new(big.Int).SetUint64(n).Bytes()) }

func rlpList(items ...[]byte) []byte {
	var body []byte
	for _, item := range items {
		body = append(body, item...)
	}
	return append(rlpHead(0xc0, len(body)), body...)
}

func rlpHead(kind byte, size int) []byte {
	if size < 56 {
		return []byte{kind + byte(size)}
	}
	length := binary.BigEndian.AppendUint64(nil, uint64(size))
	for length[0] == 0 {
		length = length[1:]
	}
	return append([]byte{kind + 55 + byte(len(length))}, length...)
}
