package identity

import (
	"errors"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// ErrUnauthenticated matches every [Refusal], with errors.Is.
var ErrUnauthenticated = errors.New("unauthenticated")

// Kind says why a credential was refused. The values are stable: they are in the log,
// in the audit trail and in metrics, and never in an answer to the caller.
type Kind string

// The kinds of refusal.
const (
	Missing   Kind = "missing"       // no credential was sent where one is needed
	Malformed Kind = "malformed"     // it is no bearer token, or no JWT
	Unknown   Kind = "unknown"       // no configured token, or the local role is off
	Revoked   Kind = "revoked"       // it was revoked
	Unread    Kind = "unread"        // whether it was revoked, or its proof shown before, cannot be read
	Expiry    Kind = "expiry"        // it has expired, or never expires
	NotYet    Kind = "not_yet_valid" // its nbf or iat is in the future
	Lifetime  Kind = "lifetime"      // it is valid for longer than the issuer's tokens may be
	Issuer    Kind = "issuer"        // its iss is not trusted
	Audience  Kind = "audience"      // it is meant for somebody else
	KeyID     Kind = "kid"           // its issuer has no such key
	Keys      Kind = "keys"          // the keys of its issuer could not be fetched
	Unfetched Kind = "unfetched"     // they never could be, so the credential may be good
	Algorithm Kind = "algorithm"     // its alg is not on the issuer's list
	Type      Kind = "typ"           // its typ is not on the issuer's list
	Signature Kind = "signature"     // the signature does not verify
	Subject   Kind = "subject"       // it names nobody, or somebody of another credential
	Proof     Kind = "proof"         // it is bound to a certificate or a key, and was not shown with that
	Claims    Kind = "claims"        // roles, person, tenant or actors cannot be read
)

// Refusal is the error of every credential that names nobody. Its text contains no part
// of the credential.
type Refusal struct {
	Kind Kind
	Text string
}

// Error implements error.
func (r *Refusal) Error() string { return "unauthenticated: " + r.Text }

// Is makes every Refusal match ErrUnauthenticated, and one of kind Unread or Unfetched
// [store.ErrAway]: the credential may be good.
func (r *Refusal) Is(target error) bool {
	return target == ErrUnauthenticated || target == store.ErrAway && (r.Kind == Unread || r.Kind == Unfetched)
}

// Throttled is the error of a refused credential from an address that showed too many.
type Throttled struct {
	*Refusal
	RetryAfter time.Duration // until a refusal is answered as one again
}

// Unwrap returns the refusal.
func (t *Throttled) Unwrap() error { return t.Refusal }

// KindOf returns the kind of the Refusal that err wraps, "" when it wraps none.
func KindOf(err error) Kind {
	if r := (*Refusal)(nil); errors.As(err, &r) {
		return r.Kind
	}
	return ""
}

func refuse(k Kind, text string) error { return &Refusal{Kind: k, Text: text} }
