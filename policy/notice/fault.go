package notice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/textproto"
	"strconv"
	"time"
)

// Faults of a try are kept, logged and shown, so they are chosen here, and what
// a library or a server says is not repeated: addresses hold secrets, and
// servers quote what they were sent.
var (
	errGone    = errors.New("it answered with status 410: it wants no more notices")
	errSecret  = errors.New("the secret after whsec_ is not base64")
	errAddress = errors.New("its address cannot be used")
	errTimeout = errors.New("it did not answer within " + sendTimeout.String())
	errTerms   = errors.New("it offers no encryption, or no sign-in that may be used")
	errNoTalk  = errors.New("the connection broke off, or the answer was none of the protocol")
)

// refusal is an answer that is no delivery.
type refusal struct {
	text  string
	after time.Duration // how long it asked to be left alone
}

func (r refusal) Error() string { return r.text }

// retryAfter is how long the other side asked to be left alone.
func retryAfter(err error) time.Duration {
	var r refusal
	errors.As(err, &r)
	return r.after
}

// explain says why there was no answer, without an address beyond host and port.
func explain(ctx context.Context, err error) error {
	var (
		dns   *net.DNSError
		op    *net.OpError
		host  x509.HostnameError
		auth  x509.UnknownAuthorityError
		cert  x509.CertificateInvalidError
		check *tls.CertificateVerificationError
		reply *textproto.Error
		quiet net.Error
	)
	switch {
	case errors.As(err, &host), errors.As(err, &auth), errors.As(err, &cert), errors.As(err, &check):
		return errors.New("its certificate is not trusted")
	case errors.As(err, &reply):
		return errors.New("it answered with code " + strconv.Itoa(reply.Code))
	case ctx.Err() != nil, errors.As(err, &quiet) && quiet.Timeout():
		return errTimeout
	case errors.As(err, &dns):
		return errors.New("its host name is not known")
	case errors.As(err, &op) && op.Op == "dial":
		return errors.New("no connection: " + op.Err.Error())
	}
	return errNoTalk
}
