package proxy

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// Bounds of what a refused call leaves in the trail, in bytes: so that callers cannot
// fill the disk with what they may not do.
const (
	wholeArguments = 4 << 10 // arguments up to this size are recorded whole
	excerptBytes   = 1 << 10 // of larger ones
	recordedText   = 512     // of a name, an id or a reason
)

// shorten bounds the record of a refused call. Large arguments are recorded as their
// digest, their length and an excerpt, and cannot be judged again.
func shorten(r *audit.Record) {
	for _, text := range []*string{&r.Exposed, &r.Method, &r.RequestID, &r.Error} {
		*text = clip(*text, recordedText)
	}
	if len(r.Task) > wholeArguments {
		r.Task = nil
	}
	if n := len(r.Arguments); n > wholeArguments {
		r.ArgumentsBytes, r.ArgumentsExcerpt = n, clip(string(r.Arguments[:excerptBytes]), excerptBytes)
		r.Arguments, r.Input = nil, nil
	}
}

// clip cuts a text to n bytes, at the beginning of a character.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.ToValidUTF8(text[:n], "")
}

// limitRefused takes from the principal's limit of refused calls for f, whose outcome
// is in rec. It returns nil when there was a token; otherwise the call is counted in a
// folded record, and the failure is the one to answer with. Callers without a name
// share one limit.
func (c *call) limitRefused(f *Failure, rec *audit.Record) *Failure {
	g := c.gate
	refusals := []audit.Outcome{audit.Denied, audit.Invalid, audit.Unknown, audit.Limited}
	if c.sent || c.in.resumed != nil ||
		!slices.Contains(refusals, rec.Outcome) && f.Kernel.Code != signal.CodeAuditUnavailable {
		return nil
	}
	who := c.caller()
	over := g.opts.Refused.Spend(c.start, *who, policy.Tool{}, nil)
	if over == nil {
		return nil
	}
	g.opts.Fold(audit.Principal{Subject: who.Subject, Roles: who.Roles, Client: who.Client, Tenant: who.Tenant},
		audit.Event{Name: audit.EventCallsRefused, Reason: f.Kernel.Code})
	if f.Kernel.Code == signal.CodeUnauthenticated { // a status of the transport, which clients act on
		return f
	}
	over.Rule = "refused"
	return c.limited(over).remedy("correct the calls: those that are denied, unknown or malformed are limited too")
}
