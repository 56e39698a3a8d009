// Package authority issues certificates for tests, for servers and clients.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// Authority is a certificate authority. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns an authority that is valid for ten years.
func New(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making authority: %w", err)
	}
	a := &Authority{key: key}
	a.cert, err = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(9, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &key.PublicKey)
	return a, err
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Issue returns a certificate for names, which are host names and addresses, and its
// key. It is valid until the end of a time from now, and was valid a day before that or
// before now, whichever is earlier.
func (a *Authority) Issue(valid time.Duration, names ...string) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing certificate: %w", err)
	}
	end := time.Now().Add(valid)
	from := time.Now().AddDate(0, 0, -1)
	if day := end.AddDate(0, 0, -1); day.Before(from) {
		from = day
	}
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, NotBefore: from, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	signed, err := a.sign(c, &own.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	return encode("CERTIFICATE", signed.Raw), encode("PRIVATE KEY", der), err
}

// Write issues a certificate to the files path.crt and path.key, and to path.pem, which
// has both.
func (a *Authority) Write(path string, valid time.Duration, names ...string) error {
	cert, key, err := a.Issue(valid, names...)
	for ending, text := range map[string][]byte{".crt": cert, ".key": key, ".pem": append(cert[:len(cert):len(cert)], key...)} {
		if err == nil {
			err = os.WriteFile(path+ending, text, 0o600)
		}
	}
	return err
}

// sign signs a certificate, or makes the authority's own.
func (a *Authority) sign(c *x509.Certificate, public *ecdsa.PublicKey) (*x509.Certificate, error) {
	parent := a.cert
	if parent == nil {
		parent = c
	}
	var err error
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
