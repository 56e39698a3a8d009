package identity

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"net/url"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/internal/store"
)

const (
	maxProofBytes = 8 << 10     // of a DPoP header
	proofWindow   = time.Minute // how far iat may be in the past or in the future
	// keepProof is how long a proof is remembered after its iat: the clocks of replicas differ.
	keepProof   = 2 * proofWindow
	spendWithin = 5 * time.Second // one access to the store
)

// DPoP is the DPoP header of one request, whose token was shown with the scheme DPoP (RFC 9449
// section 7.1). It is judged once, and good for that request alone. It is safe for concurrent use.
type DPoP struct {
	jwt          string // "" = the request does not have exactly one
	method, path string // of the request
	spent        bool   // by another replica, which has judged it and passed the request on

	mu     sync.Mutex // protects the fields below
	judged bool
	fault  error // why it proves nothing
}

// refused reports whether p was judged, and proves nothing.
func (p *DPoP) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault != nil
}

// spentKey is the key, in the context of a request, of whether its proof was spent.
type spentKey struct{}

// WithSpentProof returns the context of a request that was identified, and that another replica
// serves: [FromRequest] does not take its proof for a replay there.
func WithSpentProof(ctx context.Context) context.Context {
	return context.WithValue(ctx, spentKey{}, true)
}

// HasSpentProof reports whether ctx is from WithSpentProof.
func HasSpentProof(ctx context.Context) bool { return ctx.Value(spentKey{}) != nil }

// proofClaims are the claims of a proof (RFC 9449 section 4.2).
type proofClaims struct {
	ID       string  `json:"jti"`
	Method   string  `json:"htm"`
	Address  string  `json:"htu"`
	IssuedAt float64 `json:"iat"`
	Token    string  `json:"ath"`
}

// checkProof refuses the proof of c unless the key with a thumbprint made it for this request and
// token, and it was not shown before (RFC 9449 section 4.3). It fails closed: when the store
// cannot say whether it was, the refusal is Unread.
func (s *state) checkProof(ctx context.Context, c *Credential, thumbprint string) error {
	p := c.DPoP
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.judged {
		return p.fault
	}
	claims, err := readProof(p.jwt, thumbprint)
	if err == nil {
		err = s.judgeProof(p, claims, c.Bearer)
	}
	if err == nil && !p.spent {
		id := sha256.Sum256([]byte(thumbprint + "." + claims.ID))
		err = s.spend(ctx, id, s.now(), time.Unix(int64(claims.IssuedAt), 0).Add(keepProof))
	}
	p.judged, p.fault = true, err
	return err
}

// readProof returns the claims of a proof that the key with a thumbprint has signed. go-jose
// refuses other algorithms, private and symmetric keys, and critical headers.
func readProof(jwt, thumbprint string) (claims proofClaims, err error) {
	if jwt == "" || len(jwt) > maxProofBytes {
		return claims, refuse(Proof, "the token needs one DPoP header of at most 8 KiB")
	}
	var accepted []jose.SignatureAlgorithm
	for _, name := range Algorithms() {
		accepted = append(accepted, jose.SignatureAlgorithm(name))
	}
	signed, err := jose.ParseSignedCompact(jwt, accepted)
	if err != nil {
		return claims, refuse(Proof, "the DPoP header is no proof with a public key and an accepted algorithm")
	}
	header := signed.Signatures[0].Protected
	if header.ExtraHeaders[jose.HeaderType] != "dpop+jwt" || header.JSONWebKey == nil {
		return claims, refuse(Proof, "the DPoP header is not a dpop+jwt with its key")
	}
	sum, err := header.JSONWebKey.Thumbprint(crypto.SHA256)
	if err != nil || subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum)), []byte(thumbprint)) != 1 {
		return claims, refuse(Proof, "the proof is by another key than that of the token")
	}
	text, err := signed.Verify(header.JSONWebKey)
	if err != nil {
		return claims, refuse(Proof, "the signature of the proof does not verify")
	}
	if err := jsonv2.Unmarshal(text, &claims); err != nil || claims.ID == "" { // names are exact, and none comes twice
		return claims, refuse(Proof, "the claims of the proof cannot be read")
	}
	return claims, nil
}

// judgeProof compares the claims of a proof with its request, its token and the time.
func (s *state) judgeProof(p *DPoP, claims proofClaims, token string) error {
	hash := sha256.Sum256([]byte(token))
	age := float64(s.now().Unix()) - claims.IssuedAt
	switch {
	case claims.Method != p.method:
		return refuse(Proof, "the proof is for another method")
	case !s.addresses(claims.Address, p.path):
		return refuse(Proof, "the proof is for another address")
	case subtle.ConstantTimeCompare([]byte(claims.Token), []byte(base64.RawURLEncoding.EncodeToString(hash[:]))) != 1:
		return refuse(Proof, "the proof is for another token")
	case age > proofWindow.Seconds() || age < -proofWindow.Seconds():
		return refuse(Proof, "the proof is older than a minute, or from the future")
	}
	return nil
}

// addresses reports whether an address is that of a path at our public origin. Query, fragment,
// the case of scheme and host, and the default port do not count.
func (s *state) addresses(address, path string) bool {
	said, err := url.Parse(address)
	public, ours := url.Parse(s.public)
	if err != nil || ours != nil || public.Host == "" || said.User != nil {
		return false
	}
	host := func(u *url.URL) string {
		return strings.TrimSuffix(strings.ToLower(u.Host), map[string]string{"https": ":443", "http": ":80"}[u.Scheme])
	}
	return said.Scheme == public.Scheme && host(said) == host(public) && said.EscapedPath() == path
}

// Proofs remembers in a store, which replicas share, the proofs that were shown, until they are too
// old to be shown again. It is safe for concurrent use.
type Proofs struct {
	db *store.DB

	mu    sync.Mutex // protects the field below
	swept time.Time
}

// NewProofs returns the Proofs in db.
func NewProofs(db *store.DB) *Proofs { return &Proofs{db: db} }

// Spend remembers a proof until a time. It returns a Refusal when the proof was shown before, and
// one of the kind Unread when that cannot be known. The first call in a minute forgets old ones.
func (p *Proofs) Spend(ctx context.Context, id [sha256.Size]byte, now, until time.Time) error {
	p.mu.Lock()
	sweep := now.Sub(p.swept) >= time.Minute
	if sweep {
		p.swept = now
	}
	p.mu.Unlock()
	added := int64(0)
	err := p.db.UpdateWithin(ctx, spendWithin, func(ctx context.Context, tx *sql.Tx) error {
		if sweep {
			if _, err := tx.ExecContext(ctx, "DELETE FROM spent_proofs WHERE until < ?", store.Time{To: &now}); err != nil {
				return err
			}
		}
		done, err := tx.ExecContext(ctx, "INSERT INTO spent_proofs (id, until) VALUES (?, ?) ON CONFLICT DO NOTHING", id[:], store.Time{To: &until})
		if err == nil {
			added, err = done.RowsAffected()
		}
		return err
	})
	switch {
	case err != nil:
		return errUnread
	case added == 0:
		return errReplayed
	}
	return nil
}

var (
	// errReplayed refuses a proof that was shown before.
	errReplayed = refuse(Proof, "the proof was shown before")
	// errUnread refuses a proof when the store cannot be read.
	errUnread = refuse(Unread, "whether the proof was shown before cannot be read from the store")
)
