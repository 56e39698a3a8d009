package config

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
)

// signatureAlgorithms are what policies may be signed with (RFC 7518).
var signatureAlgorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
}

func (l *loader) policyKeys(n *node, s *PolicySource) {
	if !l.is(n, kindObject) {
		return
	}
	if len(n.members) == 0 {
		l.fault(n, "is empty", "name the keys that sign the policy, or leave it out")
	}
	s.Keys = make(map[string]PolicyKey, len(n.members))
	for _, m := range n.members {
		if strings.TrimSpace(m.key) == "" {
			l.faultAt(n.file, m.offset, m.value.path, "is no name for a key", "")
			continue
		}
		s.Keys[m.key] = l.policyKey(m.value)
	}
}

func (l *loader) policyKey(n *node) PolicyKey {
	k := PolicyKey{Algorithm: "RS256"}
	inline, stored := n.get("key"), n.get("path")
	l.object(n, fields{
		"algorithm": l.oneOf(&k.Algorithm, signatureAlgorithms...),
		"key":       l.keyText(&k.Key),
		"path":      l.keyFile(&k.Key),
		"scope":     l.filledTo(&k.Scope),
	})
	switch {
	case n.kind != kindObject:
	case inline != nil && stored != nil:
		l.fault(stored, `stands beside a "key"`, "keep one of them")
	case inline == nil && stored == nil:
		l.fault(n, `has neither a "key" nor a "path"`, "the public key of whoever signs the policy, in PEM")
	case k.Key != "":
		at := inline
		if at == nil {
			at = stored
		}
		l.checkKey(at, k)
	}
	return k
}

// keyText reads a key. It has line ends, and is never quoted.
func (l *loader) keyText(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.text(n)
		if ok && strings.TrimSpace(s) == "" {
			l.fault(n, "is empty", "")
			return
		}
		if ok {
			*to = s
		}
	}
}

// keyFile reads a key from a file, whose changes are followed as those of every
// file that was read.
func (l *loader) keyFile(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		if !ok {
			return
		}
		f := l.readNamed(n.resolve(s))
		switch {
		case f.data == nil:
		case strings.TrimSpace(string(f.data)) == "":
			l.fault(n, "is an empty file", "")
		default:
			*to = string(f.data) // as it is, as opa sign takes it
		}
	}
}

// checkKey refuses what could verify nothing, and private keys: who has this
// file could sign policies with them.
func (l *loader) checkKey(n *node, k PolicyKey) {
	if strings.HasPrefix(k.Algorithm, "HS") {
		if len(k.Key) < fewSecretBytes {
			l.warn(n, "is a secret of less than 24 bytes", "openssl rand -base64 32 makes one that nobody guesses; better is a key pair")
		}
		return
	}
	block, _ := pem.Decode([]byte(k.Key))
	if block == nil {
		l.fault(n, "is no PEM", "a public key begins with -----BEGIN PUBLIC KEY-----")
		return
	}
	if strings.Contains(block.Type, "PRIVATE") {
		l.fault(n, "is a private key: with it policies are signed", "give the public one: openssl pkey -in PRIVATE.pem -pubout")
		return
	}
	key, err := publicKey(block)
	_, isRSA := key.(*rsa.PublicKey)
	_, isEC := key.(*ecdsa.PublicKey)
	switch {
	case err != nil:
		l.fault(n, "is no public key or certificate", "openssl pkey -in PRIVATE.pem -pubout makes one")
	case strings.HasPrefix(k.Algorithm, "ES") && !isEC, !strings.HasPrefix(k.Algorithm, "ES") && !isRSA:
		l.fault(n, "is a key of another kind than "+k.Algorithm+" needs", "RS… and PS… need an RSA key, ES… an elliptic one")
	}
}

func publicKey(block *pem.Block) (any, error) {
	switch block.Type {
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	}
	return x509.ParsePKIXPublicKey(block.Bytes)
}
