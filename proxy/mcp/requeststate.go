package mcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// The reasons to refuse a requestState; clients get them as they are.
var (
	errForged   = errors.New("requestState is none that was given out here, or was changed")
	errForeign  = errors.New("requestState was given for another request: send it with the params of the request that it answers, as the same client and principal and on the same path")
	errExpired  = errors.New("requestState has expired: send the request again without it")
	errGone     = errors.New("nothing waits for requestState any more: send the request again without it")
	errAnswered = errors.New("requestState has been used: each is good for one answer")
)

// claim is what a requestState says, in its form there, big endian: which call
// waits, for the answer to which of its rounds, until when, and of what request it
// is part.
type claim struct {
	Call        callID
	Round       uint32
	Until       int64 // Unix time in milliseconds
	Binding     digest
	Restartable bool // the request may be taken from its start when its call is gone
}

// callID names a parked call. With other replicas it begins with Options.Replica.
type callID [16]byte

var claimBytes = binary.Size(claim{})

// StateKeyBytes is how long Options.StateKey is.
const StateKeyBytes = 32

// stateSigner encodes and decodes requestState: a claim and its HMAC.
type stateSigner struct{ key []byte }

// newStateSigner returns a signer with key, or with a random key when key is
// nil.
func newStateSigner(key []byte) *stateSigner {
	if key == nil {
		key = make([]byte, StateKeyBytes)
		_, _ = rand.Read(key) // never fails
	}
	return &stateSigner{key: key}
}

// sign encodes c as a requestState.
func (n *stateSigner) sign(c claim) string {
	raw, _ := binary.Append(nil, binary.BigEndian, c) // its size is fixed
	return base64.RawURLEncoding.EncodeToString(append(raw, n.mac(raw)...))
}

// read decodes text, in its only spelling, or returns errForged.
func (n *stateSigner) read(text string) (claim, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != claimBytes+sha256.Size || len(text) != base64.RawURLEncoding.EncodedLen(len(raw)) {
		return claim{}, errForged
	}
	said, mac := raw[:claimBytes], raw[claimBytes:]
	if !hmac.Equal(mac, n.mac(said)) {
		return claim{}, errForged
	}
	var c claim
	_, _ = binary.Decode(said, binary.BigEndian, &c) // claimBytes are enough
	return c, nil
}

func (n *stateSigner) mac(said []byte) []byte {
	h := hmac.New(sha256.New, n.key)
	h.Write(said)
	return h.Sum(nil)
}

// bindingOf is the digest of what must not change between a request and its
// retry: principal, client, route, method and params but for _meta, however they are
// spelt. The params are without requestState and inputResponses here.
func bindingOf(x *exchange) digest {
	params, err := jsonrpc.Delete(x.call.Message.Params, "_meta")
	if err != nil {
		params = x.call.Message.Params
	}
	who := x.call.Principal
	return digestOf(who.Subject, who.Tenant, who.ClientID, x.call.Client, x.call.Route, x.call.Message.Method, string(canonical(params)))
}

// canonical spells value so that equal values are spelled alike. Numbers stay as
// they are.
func canonical(value json.RawMessage) []byte {
	plain, err := jsonrpc.Value(value, jsonrpc.MostLimits())
	if err != nil { // larger than a message may be
		return value
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return value
	}
	return text
}
