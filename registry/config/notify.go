package config

import (
	"encoding/base64"
	"net/mail"
	"net/url"
	"slices"
	"strings"
)

// Notify is one way in which people are told of tickets: Webhook or Email is
// set, never both.
type Notify struct {
	Webhook string // URL that is posted to: https, or http on loopback; unique
	Secret  string // signs what is posted; never empty with Format json
	Format  string // json, slack or teams; "" with Email

	Email []string // addresses; unique over all entries
	SMTP  string   // smtp:// or smtps:// URL of the mail server, with user and password if it wants them
	From  string   // address that mails come from

	Roles []string // only of tickets that one of these may decide; empty = all
}

// fewSecretBytes is what a secret has at least that nobody guesses.
const fewSecretBytes = 24

func (l *loader) notify(n *node) {
	var e Notify
	l.object(n, fields{
		"webhook": l.overTLS(&e.Webhook, "is a webhook that is not called over https"),
		"secret":  l.secret(&e.Secret),
		"format":  l.oneOf(&e.Format, "json", "slack", "teams"),
		"email":   l.mailboxes(&e.Email),
		"smtp":    l.mailServer(&e.SMTP),
		"from":    l.mailbox(&e.From),
		"roles":   l.names(&e.Roles),
	})
	web, post := n.get("webhook"), n.get("email")
	switch {
	case n.kind != kindObject:
	case web == nil && post == nil:
		l.fault(n, `has neither a "webhook" nor an "email"`, "say where people are told")
	case web != nil && post != nil:
		l.fault(post, `stands beside a "webhook"`, "make an entry of its own of it")
	case web != nil:
		l.notifyWebhook(n, &e)
	default:
		l.notifyEmail(n)
	}
	l.cfg.Approvals.Notify = append(l.cfg.Approvals.Notify, e)
}

func (l *loader) notifyWebhook(n *node, e *Notify) {
	if e.Format == "" {
		e.Format = "json"
	}
	if e.Format == "json" {
		l.require(n, "secret", "openssl rand -base64 32 makes one; what receives the webhook checks the signature with it")
	}
	l.misplaced(n, "email", "smtp", "from")
	if e.Webhook != "" && slices.ContainsFunc(l.cfg.Approvals.Notify, func(o Notify) bool { return o.Webhook == e.Webhook }) {
		l.fault(n.get("webhook"), "another entry has this webhook", "join them")
	}
}

func (l *loader) notifyEmail(n *node) {
	l.require(n, "smtp", "the mail server, such as smtp://USER:PASSWORD@HOST:587")
	l.require(n, "from", "the address that mails come from")
	l.misplaced(n, "webhook", "secret", "format")
}

// misplaced reports the keys that belong to the other kind of entry.
func (l *loader) misplaced(n *node, kind string, keys ...string) {
	for _, key := range keys {
		if v := n.get(key); v != nil {
			l.fault(v, `means nothing without "`+kind+`"`, "leave it out")
		}
	}
}

// secret reads what signs webhooks: a key as it is, or "whsec_" and its base64.
func (l *loader) secret(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		if !ok {
			return
		}
		key := []byte(s)
		if text, coded := strings.CutPrefix(s, "whsec_"); coded {
			var err error
			if key, err = base64.StdEncoding.DecodeString(text); err != nil {
				l.fault(n, "begins with whsec_ and goes on with what is not base64", "take the secret as its maker showed it, or one without whsec_")
				return
			}
		}
		if len(key) < fewSecretBytes {
			l.warn(n, "is a secret of less than 24 bytes", "openssl rand -base64 32 makes one that nobody guesses")
		}
		*to = s
	}
}

// mailServer reads the URL of a mail server. It is never quoted: it may hold a
// password.
func (l *loader) mailServer(to *string) func(*node) {
	const hint = "write smtp://USER:PASSWORD@HOST:587 or smtps://…, with %40 for an @ in the password"
	return func(n *node) {
		s, ok := l.filled(n)
		if !ok {
			return
		}
		u, err := url.Parse(s)
		switch {
		case err != nil:
			l.fault(n, "is no URL", hint)
		case u.Scheme != "smtp" && u.Scheme != "smtps":
			l.fault(n, "is no smtp or smtps URL", hint)
		case u.Hostname() == "" || u.Port() == "0" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			l.fault(n, "is more or less than a mail server", hint)
		default:
			*to = s
		}
	}
}

// mailbox reads one address of RFC 5322, with or without a name before it.
func (l *loader) mailbox(to *string) func(*node) {
	return func(n *node) {
		s, ok := l.filled(n)
		if !ok {
			return
		}
		if _, err := mail.ParseAddress(s); err != nil {
			l.fault(n, "is no mail address", `such as "approvals@example.org"`)
			return
		}
		*to = s
	}
}

// mailboxes reads a list of addresses that is not empty.
func (l *loader) mailboxes(to *[]string) func(*node) {
	return func(n *node) {
		var list []string
		l.list(n, func(item *node) {
			var s string
			l.mailbox(&s)(item)
			switch {
			case s == "":
				return
			case slices.Contains(list, s):
				l.fault(item, "is in the list twice", "keep one of them")
			case slices.ContainsFunc(l.cfg.Approvals.Notify, func(o Notify) bool { return slices.Contains(o.Email, s) }):
				l.fault(item, "another entry has this address", "keep one of them")
			}
			list = append(list, s)
		})
		if n.kind == kindArray && len(n.items) == 0 {
			l.fault(n, "is empty", "name who is told")
		}
		*to = list
	}
}
