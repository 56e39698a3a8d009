package replica

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// names makes and reads session IDs:
//
//	random "." replica "." HMAC
//
// A replica's ID is random and another one after each start, because its sessions are.
type names struct {
	self string
	key  []byte
}

// replicaBytes and macBytes are the lengths of the parts of a session ID, whose random part
// has the 26 letters of rand.Text.
const (
	replicaBytes = 13 // letters of base32, 65 bits
	macBytes     = 16
)

func newNames(secret []byte) (names, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "toolgate session id", sha256.Size)
	if err != nil {
		return names{}, fmt.Errorf("deriving key of session ids: %w", err)
	}
	return names{rand.Text()[:replicaBytes], key}, nil
}

func (n names) sessionID() string {
	said := rand.Text() + "." + n.self
	return said + "." + n.mac(said)
}

// owner returns the replica that an ID names. It returns false for an ID that no replica
// with the key made.
func (n names) owner(id string) (replica string, ok bool) {
	end := strings.LastIndexByte(id, '.')
	if end < replicaBytes || len(id) > 128 {
		return "", false
	}
	said, mac := id[:end], id[end+1:]
	return said[end-replicaBytes:], hmac.Equal([]byte(mac), []byte(n.mac(said)))
}

func (n names) mac(said string) string {
	h := hmac.New(sha256.New, n.key)
	h.Write([]byte(said))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:macBytes])
}
