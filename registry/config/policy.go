package config

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
)

// Remote reports whether the policy is at a URL.
func (s *PolicySource) Remote() bool { return remote(s.Path) }

func remote(path string) bool {
	return strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://")
}

// DataAt says where a path of Data, or the nearest member above it, is written.
func (s *PolicySource) DataAt(path []string) string {
	for n := len(path); n > 0; n-- {
		if at, ok := s.Places[pointer(path[:n])]; ok {
			return at
		}
	}
	return "toolgate.policy.data"
}

// pointer writes a path as a JSON Pointer (RFC 6901).
func pointer(path []string) string {
	var p jsontext.Pointer
	for _, name := range path {
		p = p.AppendToken(name)
	}
	return string(p)
}

func (l *loader) finishPolicy(n *node) {
	p := &l.cfg.Policy
	l.finishSource(n, &p.PolicySource)
	if p.Shadow != nil {
		l.finishSource(n.get("shadow"), p.Shadow)
		p.Shadow.Timeout = cmp.Or(p.Shadow.Timeout, p.Timeout)
	}
	log := n.get("log")
	if log == nil {
		return
	}
	p.Log.File = log.get("file").resolve(p.Log.File)
	p.Log.MaxLag = cmp.Or(p.Log.MaxLag, 5*time.Minute)
	l.checkHeaders(log.get("headers"))
	if at := authorization(log); at != nil && p.Log.Token != "" {
		l.fault(at, `conflicts with "token", which is sent in that header`, "keep one of them")
	}
}

// authorization gives the header Authorization of a section, in any case.
func authorization(n *node) *node {
	headers := n.get("headers").each()
	i := slices.IndexFunc(headers, func(m *node) bool { return strings.EqualFold(m.key, "authorization") })
	if i < 0 {
		return nil
	}
	return headers[i]
}

// finishSource completes a section that says where a policy comes from.
func (l *loader) finishSource(n *node, s *PolicySource) {
	if n == nil || n.faulty {
		return
	}
	if !s.Remote() {
		s.Path = n.get("path").resolve(s.Path)
	}
	if data := n.get("data"); data != nil && !data.faulty {
		s.Places = map[string]string{}
		s.place(data, nil)
	}
	l.checkHeaders(n.get("headers"))
	if token := n.get("token"); token != nil && authorization(n) != nil {
		l.fault(token, `conflicts with the header "Authorization"`, "keep one of them")
	} else if token != nil && !token.faulty {
		bearer := map[string]string{"Authorization": "Bearer " + token.value}
		maps.Copy(bearer, s.Headers)
		s.Headers = bearer
	}
	l.finishKeys(n, s)
	l.finishFetching(n, s)
}

// place notes where each member of n is written.
func (s *PolicySource) place(n *node, path []string) {
	for _, m := range n.members {
		at := append(slices.Clip(path), m.key)
		line, column := m.file.position(m.keyAt)
		s.Places[pointer(at)] = fmt.Sprintf("%s:%d:%d", m.file.name, line, column)
		s.place(m, at)
	}
}

// finishFetching checks what is said about a URL.
func (l *loader) finishFetching(n *node, s *PolicySource) {
	path := n.get("path")
	if !s.Remote() {
		for _, key := range []string{"poll", "token", "headers"} {
			if path == nil || !path.faulty {
				l.fault(n.get(key), "means nothing for a policy that is not fetched", "leave it out, or give path a URL")
			}
		}
		s.Poll = Poll{}
		return
	}
	l.settlePoll(n.get("poll"), &s.Poll)
	u, err := url.Parse(s.Path)
	if err != nil || u.Scheme != "http" || guard.Loopback(u.Hostname()) {
		return
	}
	if len(s.Headers) > 0 {
		l.fault(path, "would be sent secrets without TLS", hintURL)
	}
	if n.get("keys") == nil {
		l.fault(path, "is a policy that is neither fetched over https nor signed: who can change it in transit decides what is allowed",
			`write https://HOST/PATH, or sign it and name the keys in "keys"`)
	}
}

// settlePoll fills in the defaults: who says one end beyond the other's default
// moves the other.
func (l *loader) settlePoll(n *node, p *Poll) {
	least, most := n.get("min"), n.get("max")
	p.Min, p.Max = cmp.Or(p.Min, 30*time.Second), cmp.Or(p.Max, 60*time.Second)
	switch {
	case p.Min <= p.Max:
	case most == nil:
		p.Max = 2 * p.Min
	case least == nil:
		p.Min = p.Max / 2
	default:
		l.fault(least, fmt.Sprintf("is more than max: %s and %s", p.Min, p.Max), "min is the shorter one")
	}
}

// finishKeys reads the keys that sign the policy.
func (l *loader) finishKeys(n *node, s *PolicySource) {
	for _, m := range n.get("keys").each() {
		if m.kind != kindObject || m.faulty {
			continue
		}
		k := s.Keys[m.key]
		k.Algorithm = cmp.Or(k.Algorithm, "RS256")
		at := m.get("key")
		if at == nil {
			at = m.get("path")
			k.Key = l.keyFile(at)
		}
		if k.Key != "" && m.get("key") != nil != (m.get("path") != nil) {
			l.checkKey(at, k)
		}
		s.Keys[m.key] = k
	}
	if id := n.at("signing", "keyid"); id != nil && len(s.Keys) > 0 && s.Signing.KeyID != "" {
		if _, ok := s.Keys[s.Signing.KeyID]; !ok {
			l.fault(id, fmt.Sprintf("no key is named %q", clip(id.text)), "")
		}
	}
}

// keyFile reads a key from a file, whose changes are followed as those of every
// file that was read.
func (l *loader) keyFile(n *node) string {
	if n == nil || n.faulty {
		return ""
	}
	f, cause := l.readNamed(n.resolve(n.value))
	if cause != "" {
		l.faults = append(l.faults, Fault{File: f.name, Message: cause})
	} else if len(bytes.TrimSpace(f.data)) == 0 {
		l.fault(n, "is an empty file", "")
		return ""
	}
	return string(f.data) // unchanged, as opa sign reads it
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
