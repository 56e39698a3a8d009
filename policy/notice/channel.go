package notice

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
)

// Faults of attempts are stored, logged and shown, so their texts are chosen here and
// in package delivery, and never repeat what a library or a server says: addresses
// hold secrets, and servers quote the requests that they got.
var (
	errGone   = errors.New("it answered with status 410: it wants no more notices")
	errSecret = errors.New("the secret after whsec_ is not base64")
	errNoTLS  = errors.New("it offers no encryption, or no sign-in that may be used")
)

// Format is the form of a webhook's payload.
type Format string

// The formats.
const (
	JSON  Format = "json"  // a Body
	Slack Format = "slack" // a message of Slack's incoming webhooks
	Teams Format = "teams" // a message with an Adaptive Card, for Teams' workflows
)

// Channel is the configuration of a destination: exactly one of Webhook and Email.
// Its fields may be secrets and are not for printing.
type Channel struct {
	Webhook string // http or https URL
	Secret  string // signs the payload: "whsec_" and base64, or the key itself; "" = unsigned
	Format  Format // of the payload; "" = JSON

	Email []string // addresses; each gets a mail of its own
	SMTP  string   // smtp:// or smtps:// URL of the mail server, with user and password if it requires them
	From  string   // sender's address

	Roles []string // only tickets that one of these roles may decide; empty = all
}

// A channel is one destination.
type channel struct {
	key   string // names it in the store: a digest
	name  string // for people: its kind and host, no secret
	roles []string
	send  func(context.Context, *notice) error // errors are fit for people to read
	close func()
	due   chan struct{} // has room for one
}

// wake makes the channel's worker look for a due notice.
func (c *channel) wake() {
	select {
	case c.due <- struct{}{}:
	default: // the worker is going to look already
	}
}

// buildChannels builds the channels of a configuration. Its error says which one is
// invalid.
func (s *Sender) buildChannels(from []Channel) ([]*channel, error) {
	var built []*channel
	for i, f := range from {
		made, err := s.buildChannel(f)
		if err != nil {
			return nil, fmt.Errorf("making channel %d of notices: %w", i, err)
		}
		for _, c := range made {
			c.roles, c.due = f.Roles, make(chan struct{}, 1)
			built = append(built, c)
		}
	}
	return built, nil
}

func (s *Sender) buildChannel(f Channel) ([]*channel, error) {
	if f.Webhook != "" {
		c, err := s.webhook(f)
		return []*channel{c}, err
	}
	var all []*channel
	for _, to := range f.Email {
		c, err := s.mail(f, to)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("neither a webhook nor an email address")
	}
	return all, nil
}

// address parses a URL. Its error never quotes it.
func address(text string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	for _, s := range schemes {
		if u.Scheme == s && u.Hostname() != "" {
			return u, nil
		}
	}
	return nil, fmt.Errorf("not a URL of %v with a host", schemes)
}

// channelKey returns a digest that names a destination in the store: the destination
// itself may be a secret.
func channelKey(kind, place string) string {
	sum := sha256.Sum256([]byte(kind + " " + place))
	return hex.EncodeToString(sum[:16])
}

// read decodes the body of a notice.
func (n *notice) read() (b Body, err error) {
	if err := json.Unmarshal(n.body, &b); err != nil {
		return Body{}, errors.New("the stored notice cannot be read")
	}
	return b, nil
}
