package mcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Why a requestState is refused. Each is told to the client as it is.
var (
	errForged   = errors.New("requestState is none that was given out here, or was changed")
	errForeign  = errors.New("requestState was given for another request: send it with the params of the request that it answers, as the same principal and on the same path")
	errExpired  = errors.New("requestState has expired: send the request again without it")
	errGone     = errors.New("nothing waits for requestState any more: send the request again without it")
	errAnswered = errors.New("requestState has been used: each is good for one answer")
)

// claim is what a requestState says: which call waits, for the answer to which
// of its rounds, until when, and of what request it is part.
type claim struct {
	call        callID
	round       uint32
	until       time.Time // to the millisecond
	binding     binding32
	restartable bool // the request may be taken from its start when its call is gone
}

// callID names a parked call. binding32 is the digest of a request.
type (
	callID    [16]byte
	binding32 [32]byte
)

const claimBytes = len(callID{}) + 4 + 8 + len(binding32{}) + 1

// StateKeyBytes is how long Options.StateKey is.
const StateKeyBytes = 32

// stateSigner encodes and decodes requestState: a claim and its HMAC. A state
// of another process names a call that is not here, even under the same key.
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
	raw := make([]byte, 0, claimBytes+sha256.Size)
	raw = append(raw, c.call[:]...)
	raw = binary.BigEndian.AppendUint32(raw, c.round)
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.until.UnixMilli()))
	raw = append(raw, c.binding[:]...)
	raw = append(raw, 0)
	if c.restartable {
		raw[len(raw)-1] = 1
	}
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
	said = said[copy(c.call[:], said):]
	c.round = binary.BigEndian.Uint32(said)
	c.until = time.UnixMilli(int64(binary.BigEndian.Uint64(said[4:])))
	copy(c.binding[:], said[12:])
	c.restartable = said[12+len(c.binding)] == 1
	return c, nil
}

func (n *stateSigner) mac(said []byte) []byte {
	h := hmac.New(sha256.New, n.key)
	h.Write(said)
	return h.Sum(nil)
}

// bindingOf is the digest of what must not change between a request and its
// retry: principal, route, method and params but for _meta, however they are
// spelt. The params are without requestState and inputResponses here.
func bindingOf(x *exchange) binding32 {
	h := sha256.New()
	params, err := jsonrpc.Delete(x.call.Message.Params, "_meta")
	if err != nil {
		params = x.call.Message.Params
	}
	for _, part := range []string{x.who.Subject, x.who.Tenant, x.call.Route, x.call.Message.Method, string(canonical(nil, params))} {
		sum := sha256.Sum256([]byte(part))
		h.Write(sum[:])
	}
	return binding32(h.Sum(nil))
}

// canonical adds value to out in one spelling: no spaces, members in the order
// of their names, texts as we quote them. Numbers stay as they are.
func canonical(out []byte, value json.RawMessage) []byte {
	switch {
	case isObject(value):
		return canonicalObject(out, value)
	case len(value) > 0 && value[0] == '[':
		out = append(out, '[')
		for element := range jsonrpc.Elements(value) {
			out = append(canonical(out, element), ',')
		}
		return append(out, ']')
	}
	if text, ok := jsonrpc.Text(value); ok {
		return append(out, jsonrpc.Quote(text)...)
	}
	return append(out, value...)
}

func canonicalObject(out []byte, value json.RawMessage) []byte {
	members := map[string]json.RawMessage{}
	var names []string
	for name, member := range jsonrpc.Members(value) {
		members[name] = member
		names = append(names, name)
	}
	slices.Sort(names)
	out = append(out, '{')
	for _, name := range names {
		out = append(append(out, jsonrpc.Quote(name)...), ':')
		out = append(canonical(out, members[name]), ',')
	}
	return append(out, '}')
}
