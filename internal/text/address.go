package text

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/crypto/sha3"
)

// Address is the address of an account or a contract on an EVM chain.
type Address [20]byte

// ParseAddress reads an address in the form of EIP-55, in which the case of the letters
// is a checksum. An absent checksum is an error, too: without it, a mistyped address is
// an address.
func ParseAddress(address string) (Address, error) {
	var a Address
	digits, ok := strings.CutPrefix(address, "0x")
	if n, err := hex.Decode(a[:], []byte(digits[:min(len(digits), 2*len(a))])); !ok || err != nil || n != len(a) || len(digits) != 2*len(a) {
		return Address{}, fmt.Errorf("%.60q is not 0x and 40 hexadecimal digits", address)
	}
	if a.String() != address {
		return Address{}, fmt.Errorf("the checksum of %s does not match (EIP-55: the case of the letters)", address)
	}
	return a, nil
}

// String writes the address in the form of EIP-55.
func (a Address) String() string {
	digits := []byte(hex.EncodeToString(a[:]))
	h := sha3.NewLegacyKeccak256()
	h.Write(digits)
	sum := h.Sum(nil)
	for i, c := range digits {
		if nibble := sum[i/2] >> (4 * (1 - i%2)) & 0xf; nibble >= 8 {
			digits[i] = bytes.ToUpper([]byte{c})[0]
		}
	}
	return "0x" + string(digits)
}
