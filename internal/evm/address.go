package evm

import (
	"encoding/hex"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"golang.org/x/crypto/sha3"

	"github.com/toolgate/toolgate/internal/text"
)

// Address is the address of an account or a contract.
type Address = text.Address

// ParseAddress is text.ParseAddress.
func ParseAddress(address string) (Address, error) { return text.ParseAddress(address) }

// Hash is a Keccak-256 hash, such as that of a transaction.
type Hash [32]byte

// String writes the hash as 0x and 64 hexadecimal digits.
func (h Hash) String() string { return hexOf(h[:]) }

// Keccak returns the Keccak-256 hash of data.
func Keccak(data []byte) (sum Hash) {
	h := sha3.NewLegacyKeccak256()
	h.Write(data)
	h.Sum(sum[:0])
	return sum
}

// addressOf returns the address of the account of a key.
func addressOf(key *secp256k1.PublicKey) Address {
	sum := Keccak(key.SerializeUncompressed()[1:])
	return Address(sum[12:])
}

func hexOf(data []byte) string { return "0x" + hex.EncodeToString(data) }
