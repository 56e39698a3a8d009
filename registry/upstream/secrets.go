package upstream

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// withheld stands for a secret in what a server sends.
const withheld = "[redacted]"

// minSecret is how long a secret must be to be looked for, in bytes: shorter ones are in too
// many texts, and have empty forms.
const minSecret = 4

// secrets are the secrets that toolgate gave a server, in the forms in which it may
// send them back. A nil *secrets has none and costs nothing. It is safe for
// concurrent use.
type secrets struct {
	known atomic.Pointer[forms]
	found atomic.Int64 // messages that had one
}

// forms are those of all secrets.
type forms struct {
	all      [][]byte // longest first
	replacer *strings.Replacer
	escaped  bool // JSON writes some of them with escapes
}

// NewRedactor returns a function that replaces secrets in a text, in every form in which
// they are looked for in what servers send.
func NewRedactor(values []string) func(text string) string { return newSecrets(values).redactText }

// newSecrets returns the forms of secrets, nil when there are none.
func newSecrets(values []string) *secrets {
	if len(values) == 0 {
		return nil
	}
	s := &secrets{}
	s.set(values)
	return s
}

// set replaces the secrets that are looked for.
func (s *secrets) set(values []string) {
	var all, pairs []string
	for _, value := range values {
		if len(value) >= minSecret {
			all = append(all, formsOf(value)...)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	f := &forms{}
	for _, form := range all {
		f.all = append(f.all, []byte(form))
		f.escaped = f.escaped || string(jsonrpc.Quote(form)) != `"`+form+`"`
		pairs = append(pairs, form, withheld)
	}
	f.replacer = strings.NewReplacer(pairs...)
	s.known.Store(f)
}

var percent = regexp.MustCompile(`%[0-9A-F]{2}`)

// formsOf returns the forms of a secret: as it is, URL-encoded, in hexadecimal, and
// as part of a longer text in base64, where it may begin at one of three places.
func formsOf(secret string) []string {
	forms := []string{secret, hex.EncodeToString([]byte(secret))}
	for _, encoded := range []string{url.QueryEscape(secret), url.PathEscape(secret)} {
		forms = append(forms, encoded, percent.ReplaceAllStringFunc(encoded, strings.ToLower))
	}
	for before := range 3 {
		text := append(make([]byte, before), secret...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// The bits at the edges belong to neighbours.
			forms = append(forms, encoding.EncodeToString(text)[(8*before+5)/6:8*len(text)/6])
		}
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

// in reports whether text has a secret.
func (f *forms) in(text []byte) bool {
	return slices.ContainsFunc(f.all, func(form []byte) bool { return bytes.Contains(text, form) })
}

// redact returns JSON of the server without secrets, raw itself when it has none.
func (s *secrets) redact(raw json.RawMessage) json.RawMessage {
	if s == nil || len(raw) == 0 {
		return raw
	}
	f := s.known.Load()
	coded := f.escaped || bytes.Contains(raw, []byte(`\u`)) || bytes.Contains(raw, []byte(`\/`))
	if !f.in(raw) && (!coded || !f.in(jsonrpc.Plain(raw))) {
		return raw
	}
	s.found.Add(1)
	return jsonrpc.MapStrings(raw, f.replacer.Replace)
}

// redactText returns a text of the server without secrets.
func (s *secrets) redactText(text string) string {
	if s == nil {
		return text
	}
	return s.known.Load().replacer.Replace(text)
}

// redactError removes secrets from why a request has no result; s is not nil.
func (s *secrets) redactError(e *Error) *Error {
	if e == nil {
		return nil
	}
	e.RPC = s.redact(e.RPC)
	if e.Err != nil && s.known.Load().in([]byte(e.Err.Error())) {
		e.Err = errors.New(s.redactText(e.Err.Error()))
	}
	return e
}

// redactMessage removes secrets from a request or notification of the server.
func (s *secrets) redactMessage(msg *jsonrpc.Message) {
	if s != nil && msg.Params != nil {
		if clean := s.redact(msg.Params); !bytes.Equal(clean, msg.Params) {
			msg.SetParams(clean)
		}
	}
}
