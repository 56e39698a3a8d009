package notice

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/toolgate/toolgate/internal/delivery"
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
type Format = string

// The formats.
const (
	JSON  Format = "json"  // a Body
	Slack Format = "slack" // a message of Slack's incoming webhooks
	Teams Format = "teams" // a message with an Adaptive Card, for Teams' workflows
)

// Channel is the configuration of a destination: exactly one of Webhook and Email. It has the
// fields of config.Notify.
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

// whsec begins a secret that is written in base64.
const whsec = "whsec_"

// webhook returns the channel of a webhook.
func (s *Sender) webhook(f Channel) (*channel, error) {
	u, err := address(f.Webhook, "https", "http")
	if err != nil {
		return nil, err
	}
	format := cmp.Or(f.Format, JSON)
	render, err := renderer(format)
	if err != nil {
		return nil, err
	}
	sign, err := signer(f.Secret)
	if err != nil {
		return nil, err
	}
	h := &hook{url: f.Webhook, render: render, sign: sign, now: s.opts.Now, client: delivery.NewClient(s.opts.Roots)}
	return &channel{
		key: channelKey("webhook", f.Webhook), name: format + ":" + u.Hostname(),
		send: h.send, close: h.client.Close,
	}, nil
}

// A hook posts notices to one address.
type hook struct {
	url    string
	render func(*notice) ([]byte, error)
	sign   *standardwebhooks.Webhook // nil = unsigned
	now    func() time.Time
	client *delivery.Client
}

// signer returns the signer of a secret, nil when there is none. Its error does not
// quote the secret.
func signer(secret string) (*standardwebhooks.Webhook, error) {
	switch {
	case secret == "":
		return nil, nil
	case !strings.HasPrefix(secret, whsec):
		return standardwebhooks.NewWebhookRaw([]byte(secret))
	}
	w, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, errSecret
	}
	return w, nil
}

// send posts n with the headers of Standard Webhooks 1.0: a repeated notice has the
// same id and a new time. An answer of 410 is errGone.
func (h *hook) send(ctx context.Context, n *notice) error {
	body, err := h.render(n)
	if err != nil {
		return err
	}
	now, header := h.now(), http.Header{}
	header.Set(standardwebhooks.HeaderWebhookID, n.id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	if h.sign != nil {
		signature, err := h.sign.Sign(n.id, now, body)
		if err != nil {
			return errSecret
		}
		header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	}
	err = h.client.Post(ctx, h.url, header, body)
	if answer := (*delivery.StatusError)(nil); errors.As(err, &answer) && answer.Status == http.StatusGone {
		return errGone
	}
	return err
}
