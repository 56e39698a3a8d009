package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/digitorus/pkcs7"
	"github.com/digitorus/timestamp"
	"golang.org/x/mod/sumdb/note"
)

// A TimestampAnchor is a DirectoryAnchor whose notes have a time-stamp (RFC 3161) of their
// text as a second signature, by the name rfc3161. It shows that a checkpoint was not
// made later than it says, also to whoever does not trust the directory.
type TimestampAnchor struct {
	DirectoryAnchor
	URL   string
	Roots *x509.CertPool // that issued the certificates of the authority; nil = those of any issuer
}

// stampName is the name of time-stamps among the signatures of a note.
const stampName = "rfc3161"

// stampWithin bounds how long after a checkpoint it is time-stamped.
const stampWithin = time.Hour

// maxStamp bounds the response of an authority, in bytes.
const maxStamp = 64 << 10

// Publish implements Anchor. A note without a valid time-stamp is not kept.
func (a TimestampAnchor) Publish(ctx context.Context, c Checkpoint, signed []byte) error {
	token, err := a.stamp(ctx, c.text())
	if err != nil {
		return fmt.Errorf("time-stamping checkpoint: %w", err)
	}
	verifier := TimestampVerifier(a.Roots)
	if !verifier.Verify([]byte(c.text()), token) {
		return errors.New("time-stamping checkpoint: the time-stamp is not valid for it")
	}
	return a.DirectoryAnchor.Publish(ctx, c, addSignature(signed, verifier, token))
}

// stamp asks the authority for a time-stamp of text. It needs no nonce: the text names its
// time, so that no earlier response fits.
func (a TimestampAnchor) stamp(ctx context.Context, text string) ([]byte, error) {
	ask, err := timestamp.CreateRequest(strings.NewReader(text), &timestamp.RequestOptions{Certificates: true})
	if err != nil {
		return nil, err
	}
	reply, err := post(ctx, a.URL, "application/timestamp-query", ask, maxStamp)
	if err != nil {
		return nil, err
	}
	stamped, err := parseStamp(func() (*timestamp.Timestamp, error) { return timestamp.ParseResponse(reply) })
	if err != nil {
		return nil, errors.New("the response has no time-stamp")
	}
	return stamped.RawToken, nil
}

// parseStamp calls parse, and turns a panic over what an authority sent into an error.
func parseStamp(parse func() (*timestamp.Timestamp, error)) (t *timestamp.Timestamp, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("parsing time-stamp: %v", r)
		}
	}()
	return parse()
}

// addSignature adds a line to a signed note.
func addSignature(signed []byte, v note.Verifier, signature []byte) []byte {
	raw := append(binary.BigEndian.AppendUint32(nil, v.KeyHash()), signature...)
	return fmt.Appendf(bytes.Clone(signed), "— %s %s\n", v.Name(), base64.StdEncoding.EncodeToString(raw))
}

// TimestampVerifier returns the verifier of time-stamps of checkpoints. The certificate of
// the authority must be for time-stamping, valid at the time that the stamp names, and
// issued by one of roots; nil accepts every issuer. The stamp must be at most an hour
// away from the time that the checkpoint names.
func TimestampVerifier(roots *x509.CertPool) note.Verifier { return stampVerifier{roots} }

type stampVerifier struct{ roots *x509.CertPool }

// Name implements note.Verifier.
func (stampVerifier) Name() string { return stampName }

// KeyHash implements note.Verifier: authorities have no common key, so it is a constant.
func (stampVerifier) KeyHash() uint32 {
	sum := sha256.Sum256([]byte(stampName + "\n"))
	return binary.BigEndian.Uint32(sum[:])
}

// Verify implements note.Verifier.
func (v stampVerifier) Verify(text, token []byte) bool {
	c, err := parseCheckpoint(string(text))
	if err != nil {
		return false
	}
	stamped, err := parseStamp(func() (*timestamp.Timestamp, error) { return v.parse(token) })
	sum := sha256.Sum256(text)
	return err == nil && bytes.Equal(stamped.HashedMessage, sum[:]) && stamped.Time.Sub(c.Time).Abs() <= stampWithin
}

// parse returns the time-stamp in token when its only signer is an authority.
func (v stampVerifier) parse(token []byte) (*timestamp.Timestamp, error) {
	stamped, err := timestamp.Parse(token)
	if err != nil {
		return nil, err
	}
	p7, err := pkcs7.Parse(token)
	if err != nil {
		return nil, err
	}
	signer := p7.GetOnlySigner()
	if signer == nil {
		return nil, errors.New("it needs one signer, with a certificate")
	}
	opts := x509.VerifyOptions{Roots: v.roots, Intermediates: x509.NewCertPool(), CurrentTime: stamped.Time, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}}
	for _, c := range p7.Certificates {
		opts.Intermediates.AddCert(c)
	}
	return stamped, p7.VerifyWithOpts(opts)
}

// post sends body and returns the response, at most limit bytes of it. Redirects are not
// followed, and errors do not name the address, which may hold a secret. The error is a
// statusError when the status is not 2xx.
func post(ctx context.Context, address, mediaType string, body []byte, limit int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the address cannot be read")
	}
	r.Header.Set("Content-Type", mediaType)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return nil, statusError(res.StatusCode)
	}
	reply, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil || int64(len(reply)) > limit {
		return nil, errors.New("the response breaks off or is too long")
	}
	return reply, nil
}

// statusError is the status of a response that is no success.
type statusError int

// Error implements error.
func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }
