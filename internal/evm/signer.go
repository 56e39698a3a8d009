package evm

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os/exec"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// Signer signs for one account. Its methods are safe for concurrent use.
type Signer interface {
	Address() Address
	// Sign signs the Keccak-256 hash of a payload. Its errors do not quote a key.
	Sign(ctx context.Context, payload []byte) (Signature, error)
}

var halfOrder = new(big.Int).Rsh(secp256k1.Params().N, 1)

// errKey quotes nothing of the key.
var errKey = errors.New("the key is not 32 bytes as 64 hexadecimal digits, or is no key of the curve")

// NewKey returns a signer with a private key: 64 hexadecimal digits, with or without 0x.
func NewKey(text string) (Signer, error) {
	raw, err := hex.DecodeString(strings.TrimPrefix(strings.TrimSpace(text), "0x"))
	if err != nil {
		return nil, errKey
	}
	return newKey(raw)
}

func newKey(raw []byte) (Signer, error) {
	var n secp256k1.ModNScalar
	if len(raw) != 32 || n.SetByteSlice(raw) || n.IsZero() {
		return nil, errKey
	}
	private := secp256k1.NewPrivateKey(&n)
	return &key{private, addressOf(private.PubKey())}, nil
}

// key is a private key in memory. It has no exported field, so no encoder writes it, and
// String and GoString hide it from fmt.
type key struct {
	private *secp256k1.PrivateKey
	address Address
}

func (k *key) Address() Address { return k.address }

// String returns the address.
func (k *key) String() string { return k.address.String() }

// GoString returns the address.
func (k *key) GoString() string { return k.address.String() }

func (k *key) Sign(_ context.Context, payload []byte) (s Signature, err error) {
	hash := Keccak(payload)
	compact := ecdsa.SignCompact(k.private, hash[:], false)
	copy(s[:], compact[1:])
	s[64] = compact[0] - 27
	return s, nil
}

// commandTimeout bounds one signature of a command.
const commandTimeout = 10 * time.Second

// NewCommand returns a signer for an account whose key a program keeps. The program reads
// one line from its standard input, the payload as 0x and hexadecimal digits, and writes
// the signature of the payload's Keccak-256 hash in the same form: R, S and the parity (0
// or 1), 65 bytes.
func NewCommand(argv []string, account Address) Signer { return &command{argv, account} }

type command struct {
	argv    []string
	account Address
}

func (c *command) Address() Address { return c.account }

func (c *command) Sign(ctx context.Context, payload []byte) (s Signature, err error) {
	ctx, stop := context.WithTimeout(ctx, commandTimeout)
	defer stop()
	run := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	run.Stdin = strings.NewReader(hexOf(payload) + "\n")
	run.WaitDelay = time.Second
	out, err := run.Output()
	if err != nil {
		return s, fmt.Errorf("running the command of the signer: %w", err)
	}
	digits := bytes.TrimPrefix(bytes.TrimSpace(out), []byte("0x"))
	if len(digits) != 2*len(s) {
		return s, errors.New("the command of the signer did not write a signature of 65 bytes")
	}
	_, err = hex.Decode(s[:], digits)
	return s, err
}
