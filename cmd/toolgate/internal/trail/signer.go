package trail

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/registry/config"
)

// checkpointKey returns the signer of checkpoints: a key of the key directory, or what
// audit.signer names. The public half of the latter is kept in the key directory too.
func checkpointKey(c *config.Signer, k *keys.Dir) (crypto.Signer, error) {
	if c == nil {
		s, err := k.Signer(keys.Checkpoints)
		return s.Key, err
	}
	var key crypto.Signer
	var err error
	if c.Key != "" {
		key, err = parseKey(c.Key)
	} else {
		public, failed := keys.ReadPublic(c.PublicKey)
		key, err = &commandSigner{c.Command, public}, failed
	}
	if err == nil {
		public, _ := key.Public().(ed25519.PublicKey) // both have such a key
		err = k.AddPublic(keys.External, public)
	}
	if err != nil {
		return nil, fmt.Errorf("opening audit.signer: %w", err)
	}
	return key, nil
}

// parseKey reads an Ed25519 private key: PKCS #8 as PEM or as base64, or the seed of 32
// bytes as base64. Errors do not quote it.
func parseKey(text string) (ed25519.PrivateKey, error) {
	der, _ := base64.StdEncoding.DecodeString(text)
	if block, _ := pem.Decode([]byte(text)); block != nil {
		der = block.Bytes
	}
	if len(der) == ed25519.SeedSize {
		return ed25519.NewKeyFromSeed(der), nil
	}
	any, err := x509.ParsePKCS8PrivateKey(der)
	key, ok := any.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("the key is not an Ed25519 private key\nhint: openssl genpkey -algorithm ed25519 -outform DER | base64 -w0 makes one")
	}
	return key, nil
}

// A commandSigner is a program that reads a text from stdin and writes its Ed25519
// signature, 64 bytes. Its environment has PATH and HOME and nothing else of toolgate's.
type commandSigner struct {
	command []string
	public  ed25519.PublicKey
}

// Public implements crypto.Signer.
func (s *commandSigner) Public() crypto.PublicKey { return s.public }

// Sign implements crypto.Signer. It fails when the program fails, writes anything but a
// signature, or takes more than 5 seconds.
func (s *commandSigner) Sign(_ io.Reader, text []byte, _ crypto.SignerOpts) ([]byte, error) {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(text), time.Second
	signature, err := cmd.Output()
	if err == nil && len(signature) != ed25519.SignatureSize {
		err = fmt.Errorf("it wrote %d bytes, want %d", len(signature), ed25519.SignatureSize)
	}
	if err != nil {
		return nil, fmt.Errorf("running the command of audit.signer: %w", err)
	}
	return signature, nil
}
