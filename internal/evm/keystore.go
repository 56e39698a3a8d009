package evm

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/crypto/scrypt"
)

// keystore is the form of Web3 Secret Storage, version 3, as far as it is read.
type keystore struct {
	Version int `json:"version"`
	Crypto  struct {
		Cipher string   `json:"cipher"`
		Text   hexBytes `json:"ciphertext"`
		Params struct {
			IV hexBytes `json:"iv"`
		} `json:"cipherparams"`
		KDF       string    `json:"kdf"`
		KDFParams kdfParams `json:"kdfparams"`
		MAC       hexBytes  `json:"mac"`
	} `json:"crypto"`
}

type kdfParams struct {
	DKLen int      `json:"dklen"`
	Salt  hexBytes `json:"salt"`
	N     int      `json:"n"`
	R     int      `json:"r"`
	P     int      `json:"p"`
	C     int      `json:"c"`
	PRF   string   `json:"prf"`
}

// Bounds of the work that a file may ask for: eight times what common wallets write.
const (
	maxScryptBytes = 2 << 30
	maxIterations  = 10_000_000
	keyBytes       = 32
)

// The errors of OpenKeystore that say what to do.
var (
	errPassword = errors.New("the password does not open it")
	errForm     = errors.New("it is no keystore of version 3 with aes-128-ctr and scrypt or pbkdf2 (hmac-sha256), or asks for too much work")
)

// OpenKeystore returns a signer with the key of an encrypted file (Web3 Secret Storage,
// version 3). No error quotes the password or the key.
func OpenKeystore(path, password string) (Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("opening keystore: %w", err)
	}
	raw, err := decrypt(text, password)
	if err != nil {
		return nil, fmt.Errorf("opening keystore %s: %w", path, err)
	}
	return newKey(raw)
}

func decrypt(text []byte, password string) ([]byte, error) {
	var file keystore
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, errForm
	}
	c := file.Crypto
	if file.Version != 3 || c.Cipher != "aes-128-ctr" || len(c.Params.IV) != aes.BlockSize || len(c.Text) != keyBytes {
		return nil, errForm
	}
	derived, err := c.KDFParams.derive(c.KDF, password)
	if err != nil {
		return nil, err
	}
	sum := Keccak(append(append([]byte{}, derived[16:32]...), c.Text...))
	if !hmac.Equal(sum[:], c.MAC) {
		return nil, errPassword
	}
	block, err := aes.NewCipher(derived[:16])
	if err != nil {
		return nil, err
	}
	raw := make([]byte, len(c.Text))
	cipher.NewCTR(block, c.Params.IV).XORKeyStream(raw, c.Text)
	return raw, nil
}

func (p kdfParams) derive(kdf, password string) ([]byte, error) {
	switch {
	case p.DKLen != keyBytes:
		return nil, errForm
	case kdf == "scrypt" && p.N > 1 && p.R > 0 && p.P > 0 && p.P <= 16 && p.R <= 64 && p.N <= maxScryptBytes/128/p.R:
		return scrypt.Key([]byte(password), p.Salt, p.N, p.R, p.P, keyBytes)
	case kdf == "pbkdf2" && p.PRF == "hmac-sha256" && p.C > 0 && p.C <= maxIterations:
		return pbkdf2.Key(sha256.New, password, p.Salt, p.C, keyBytes)
	}
	return nil, errForm
}

// hexBytes are bytes as hexadecimal digits.
type hexBytes []byte

// UnmarshalText reads the digits.
func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}
