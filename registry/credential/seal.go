package credential

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/internal/keys"
)

// What is secret in the store is JSON, encrypted with AES-256-GCM under a key of the key directory:
// the ID of the key, a colon, the nonce and the ciphertext. The additional data say what it belongs
// to, so that whoever can write to the store cannot give one person the tokens of another.

// errUnsealed reports what nobody with a key of the key directory has sealed, or not for this row.
var errUnsealed = errors.New("the store has been changed by something other than toolgate")

// newest returns the key of what is sealed now on: the newest version at the first call, because
// other replicas have a newer one only when they start.
func (g *Grants) newest(ctx context.Context) (keys.Key, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.key.ID != "" {
		return g.key, nil
	}
	if !g.o.Keys.Has(keys.Credentials) {
		if err := g.o.Keys.Share(ctx, g.o.DB, keys.Credentials); err != nil {
			return keys.Key{}, err
		}
	}
	key, err := g.o.Keys.Secret(keys.Credentials)
	if err == nil {
		g.key = key
	}
	return key, err
}

// seal encrypts the JSON of v for the row that about names.
func (g *Grants) seal(ctx context.Context, v any, about ...string) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	key, err := g.newest(ctx)
	if err != nil {
		return nil, err
	}
	box, err := newBox(key)
	if err != nil {
		return nil, err
	}
	return box.Seal([]byte(key.ID+":"), nil, text, additional(about)), nil
}

// unseal decrypts what seal returned for the same row. The error is errUnsealed where that fails.
func (g *Grants) unseal(sealed []byte, to any, about ...string) error {
	id, rest, _ := bytes.Cut(sealed, []byte(":"))
	key, err := g.o.Keys.Find(keys.Credentials, string(id))
	if errors.Is(err, keys.ErrUnknown) && len(rest) > 0 {
		return fmt.Errorf("decrypting a connection: %w\nhint: copy the files %s-*.key from the key directory of a replica that serves", err, keys.Credentials)
	}
	if err != nil {
		return fmt.Errorf("decrypting a connection: %w", err)
	}
	box, err := newBox(key)
	if err != nil {
		return err
	}
	text, err := box.Open(nil, nil, rest, additional(about))
	if err != nil || json.Unmarshal(text, to) != nil {
		return fmt.Errorf("decrypting a connection: %w", errUnsealed)
	}
	return nil
}

func newBox(key keys.Key) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key.Secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// additional returns the additional data for a row.
func additional(about []string) []byte { return fmt.Appendf(nil, "toolgate credential 1 %q", about) }

// about names the row of a grant.
func (r *row) about() []string {
	return []string{"grant", r.ID, r.Server, r.Person.Issuer, r.Tenant, r.Subject}
}

// open returns the tokens of a grant.
func (g *Grants) open(r *row) (*tokens, error) {
	t := &tokens{}
	if err := g.unseal(r.Sealed, t, r.about()...); err != nil {
		return nil, err
	}
	return t, nil
}
