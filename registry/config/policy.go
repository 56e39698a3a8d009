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
	"github.com/toolgate/toolgate/internal/tree"
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
	return "toolgate.policy.Data"
}

// pointer writes a path as a JSON Pointer (RFC 6901).
func pointer(path []string) string {
	var p jsontext.Pointer
	for _, name := range path {
		p = p.AppendToken(name)
	}
	return string(p)
}

func (l *loader) finishPolicy(n *tree.Node) {
	p := &l.cfg.Policy
	l.finishSource(n, &p.PolicySource)
	if p.Shadow != nil {
		l.finishSource(n.Get("shadow"), p.Shadow)
		p.Shadow.Timeout = cmp.Or(p.Shadow.Timeout, p.Timeout)
	}
	log := n.Get("log")
	if log == nil {
		return
	}
	p.Log.MaxLag = cmp.Or(p.Log.MaxLag, 5*time.Minute)
	l.checkHeaders(log.Get("headers"))
	if at := authorization(log); at != nil && p.Log.Token != "" {
		l.Fault(at, `conflicts with "token", which is sent in that header`, "keep one of them")
	}
}

// authorization gives the header Authorization of a section, in any case.
func authorization(n *tree.Node) *tree.Node {
	headers := n.Get("headers").Each()
	i := slices.IndexFunc(headers, func(m *tree.Node) bool { return strings.EqualFold(m.Key, "authorization") })
	if i < 0 {
		return nil
	}
	return headers[i]
}

// finishSource completes a section that says where a policy comes from.
func (l *loader) finishSource(n *tree.Node, s *PolicySource) {
	if n == nil || n.Faulty {
		return
	}
	if !s.Remote() {
		s.Path = n.Get("path").Resolve(s.Path)
	}
	if data := n.Get("data"); data != nil && !data.Faulty {
		s.Places = map[string]string{}
		s.place(data, nil)
	}
	l.checkHeaders(n.Get("headers"))
	if token := n.Get("token"); token != nil && authorization(n) != nil {
		l.Fault(token, `conflicts with the header "Authorization"`, "keep one of them")
	} else if token != nil && !token.Faulty {
		bearer := map[string]string{"Authorization": "Bearer " + token.Value}
		maps.Copy(bearer, s.Headers)
		s.Headers = bearer
	}
	l.finishKeys(n, s)
	l.finishFetching(n, s)
}

// place notes where each member of n is written.
func (s *PolicySource) place(n *tree.Node, path []string) {
	for _, m := range n.Members {
		at := append(slices.Clip(path), m.Key)
		line, column := m.File.Position(m.KeyAt)
		s.Places[pointer(at)] = fmt.Sprintf("%s:%d:%d", m.File.Name, line, column)
		s.place(m, at)
	}
}

// finishFetching checks what is said about a URL.
func (l *loader) finishFetching(n *tree.Node, s *PolicySource) {
	path := n.Get("path")
	if !s.Remote() {
		for _, key := range []string{"poll", "token", "headers"} {
			if path == nil || !path.Faulty {
				l.Fault(n.Get(key), "means nothing for a policy that is not fetched", "leave it out, or give path a URL")
			}
		}
		s.Poll = Poll{}
		return
	}
	// Who says one end beyond the other's default moves the other.
	p, least, most := &s.Poll, n.At("poll", "min"), n.At("poll", "max")
	p.Min, p.Max = cmp.Or(p.Min, 30*time.Second), cmp.Or(p.Max, 60*time.Second)
	switch {
	case p.Min <= p.Max:
	case most == nil:
		p.Max = 2 * p.Min
	case least == nil:
		p.Min = p.Max / 2
	default:
		l.Fault(least, fmt.Sprintf("is more than max: %s and %s", p.Min, p.Max), "min is the shorter one")
	}
	u, err := url.Parse(s.Path)
	if err != nil || u.Scheme != "http" || guard.Loopback(u.Hostname()) {
		return
	}
	if len(s.Headers) > 0 {
		l.Fault(path, "would be sent secrets without TLS", hintURL)
	}
	if n.Get("keys") == nil {
		l.Fault(path, "is a policy that is neither fetched over https nor signed: who can change it in transit decides what is allowed",
			`write https://HOST/PATH, or sign it and name the keys in "keys"`)
	}
}

// finishKeys reads the keys that sign the policy.
func (l *loader) finishKeys(n *tree.Node, s *PolicySource) {
	for _, m := range n.Get("keys").Each() {
		if m.Kind != tree.Object || m.Faulty {
			continue
		}
		k := s.Keys[m.Key]
		k.Algorithm = cmp.Or(k.Algorithm, "RS256")
		at := m.Get("key")
		if at == nil {
			at = m.Get("path")
			k.Key = l.keyFile(at)
		}
		if k.Key != "" && m.Get("key") != nil != (m.Get("path") != nil) {
			l.checkKey(at, k)
		}
		s.Keys[m.Key] = k
	}
	if id := n.At("signing", "keyid"); id != nil && len(s.Keys) > 0 && s.Signing.KeyID != "" {
		if _, ok := s.Keys[s.Signing.KeyID]; !ok {
			l.Fault(id, fmt.Sprintf("no key is named %q", tree.Clip(id.Text)), "")
		}
	}
}

// keyFile reads a key from a file, whose changes are followed as those of every
// file that was read.
func (l *loader) keyFile(n *tree.Node) string {
	if n == nil || n.Faulty {
		return ""
	}
	f, cause := l.readNamed(n.Resolve(n.Value))
	if cause != "" {
		l.Faults = append(l.Faults, Fault{File: f.Name, Message: cause})
	} else if len(bytes.TrimSpace(f.Data)) == 0 {
		l.Fault(n, "is an empty file", "")
		return ""
	}
	return string(f.Data) // unchanged, as opa sign reads it
}

// checkKey refuses what could verify nothing, and private keys: who has this
// file could sign policies with them.
func (l *loader) checkKey(n *tree.Node, k PolicyKey) {
	if strings.HasPrefix(k.Algorithm, "HS") {
		if len(k.Key) < fewSecretBytes {
			l.Warn(n, "is a secret of less than 24 bytes", "openssl rand -base64 32 makes one that nobody guesses; better is a key pair")
		}
		return
	}
	block, _ := pem.Decode([]byte(k.Key))
	if block == nil {
		l.Fault(n, "is no PEM", "a public key begins with -----BEGIN PUBLIC KEY-----")
		return
	}
	if strings.Contains(block.Type, "PRIVATE") {
		l.Fault(n, "is a private key: with it policies are signed", "give the public one: openssl pkey -in PRIVATE.pem -pubout")
		return
	}
	var key any
	var err error
	switch block.Type {
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = cert.PublicKey
		}
	default:
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	}
	_, isRSA := key.(*rsa.PublicKey)
	_, isEC := key.(*ecdsa.PublicKey)
	switch {
	case err != nil:
		l.Fault(n, "is no public key or certificate", "openssl pkey -in PRIVATE.pem -pubout makes one")
	case strings.HasPrefix(k.Algorithm, "ES") && !isEC, !strings.HasPrefix(k.Algorithm, "ES") && !isRSA:
		l.Fault(n, "is a key of another kind than "+k.Algorithm+" needs", "RS… and PS… need an RSA key, ES… an elliptic one")
	}
}
