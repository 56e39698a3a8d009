package fleet

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// errSealed reports a text on the shared server that no replica sealed for its place.
var errSealed = errors.New("what is kept of a session was changed, or is another's")

// recordPlace is the place of a session's record; eventPlace is that of an event.
const recordPlace = "record"

func eventPlace(stream, number string) string { return "event " + stream + " " + number }

// sessionKey returns the key of the hash of a session. Who reads it does not learn the ID.
func (n names) sessionKey(session string) string {
	return "toolgate:{sessions}:session:" + n.mac("session "+session)
}

// streamKey returns the key of the hash with the events of a stream.
func (n names) streamKey(session, stream string) string {
	return "toolgate:{sessions}:stream:" + n.mac("stream "+session+" "+stream)
}

// aead returns what seals for a session. Each session has a key of its own, so that random
// nonces stay few for a key.
func (n names) aead(session string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, n.key, nil, "toolgate session "+session, 2*aes.BlockSize)
	if err != nil {
		return nil, fmt.Errorf("deriving key of a session: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("deriving key of a session: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal encrypts plain for a place in a session. Only open with the same place, at any replica, reads it.
func (n names) seal(session, place string, plain []byte) (string, error) {
	a, err := n.aead(session)
	if err != nil {
		return "", err
	}
	return string(a.Seal(nil, nil, plain, []byte(session+" "+place))), nil
}

// open returns what was sealed for a place, or errSealed.
func (n names) open(session, place, sealed string) ([]byte, error) {
	a, err := n.aead(session)
	if err != nil {
		return nil, err
	}
	plain, err := a.Open(nil, nil, []byte(sealed), []byte(session+" "+place))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}
