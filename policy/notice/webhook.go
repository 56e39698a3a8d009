package notice

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/toolgate/toolgate/internal/delivery"
)

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
		key: channelKey("webhook", f.Webhook), name: string(format) + ":" + u.Hostname(),
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
