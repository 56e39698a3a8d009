package fleet

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"strings"
)

// names makes and reads session IDs:
//
//	random "." replica "." HMAC
//
// A replica's ID is random and another one after each start, because its sessions are.
type names struct {
	id   [8]byte
	self string // id as text
	key  []byte
}

const (
	replicaBytes = 13 // of the text of a replica's ID
	macBytes     = 16
)

var base32ID = base32.StdEncoding.WithPadding(base32.NoPadding)

// textOf returns the ID of a replica as session IDs and the directory have it.
func textOf(id [8]byte) string { return base32ID.EncodeToString(id[:]) }

// idOf returns the ID whose text is given, the zero ID for another text.
func idOf(text string) (id [8]byte) {
	if raw, err := base32ID.DecodeString(text); err == nil && len(raw) == len(id) {
		copy(id[:], raw)
	}
	return id
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
