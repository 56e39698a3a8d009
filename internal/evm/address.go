package evm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"golang.org/x/crypto/sha3"
)

// Address is the address of an account or a contract.
type Address [20]byte

// Hash is a Keccak-256 hash, such as that of a transaction.
type Hash [32]byte

// ParseAddress reads an address in the form of EIP-55, in which the case of the letters
// is a checksum. An absent checksum is an error, too: without it, a mistyped address is
// an address.
func ParseAddress(text string) (Address, error) {
	var a Address
	digits, ok := strings.CutPrefix(text, "0x")
	if n, err := hex.Decode(a[:], []byte(digits[:min(len(digits), 2*len(a))])); !ok || err != nil || n != len(a) || len(digits) != 2*len(a) {
		return Address{}, fmt.Errorf("%.60q is not 0x and 40 hexadecimal digits", text)
	}
	if a.String() != text {
		return Address{}, fmt.Errorf("the checksum of %s does not match (EIP-55: the case of the letters)", text)
	}
	return a, nil
}

// String writes the address in the form of EIP-55.
func (a Address) String() string {
	text := []byte(hex.EncodeToString(a[:]))
	sum := Keccak(text)
	for i, c := range text {
		if nibble := sum[i/2] >> (4 * (1 - i%2)) & 0xf; nibble >= 8 {
			text[i] = bytes.ToUpper([]byte{c})[0]
		}
	}
	return "0x" + string(text)
}

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
