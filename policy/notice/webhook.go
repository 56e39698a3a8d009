package notice

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	// maxAnswerBytes is how much of an answer is read, its head and its body each.
	maxAnswerBytes = 64 << 10
	// whsec begins a secret that is written in base64.
	whsec = "whsec_"
)

// webhook makes the channel of a webhook.
func (s *Sender) webhook(f Channel) (*channel, error) {
	u, err := address(f.Webhook, "https", "http")
	if err != nil {
		return nil, err
	}
	format := f.Format
	if format == "" {
		format = JSON
	}
	render, err := renderer(format)
	if err != nil {
		return nil, err
	}
	sign, err := signer(f.Secret)
	if err != nil {
		return nil, err
	}
	h := &hook{url: f.Webhook, render: render, sign: sign, now: s.opts.Now, client: &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: s.opts.Roots},
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           1,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: maxAnswerBytes,
		},
		// A redirect would take what was signed for one place to another.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return &channel{
		key: keyOf("webhook", f.Webhook), name: string(format) + ":" + u.Hostname(),
		send: h.send, close: h.client.CloseIdleConnections,
	}, nil
}

// hook posts notices to one address.
type hook struct {
	url    string
	render func(*parcel) ([]byte, error)
	sign   *standardwebhooks.Webhook // nil = unsigned
	now    func() time.Time
	client *http.Client
}

// signer reads a secret, nil when there is none. Its error does not quote it.
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

// send posts p. Only an answer of 2xx is a delivery.
func (h *hook) send(ctx context.Context, p *parcel) error {
	body, err := h.render(p)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return errAddress
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "toolgate")
	if err := h.headers(req.Header, p.id, body); err != nil {
		return err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return explain(ctx, err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswerBytes) // read for the connection's sake only
	return verdict(res)
}

// headers are those of Standard Webhooks 1.0. The id of a repeat is that of the
// first try, the time is its own.
func (h *hook) headers(to http.Header, id string, body []byte) error {
	now := h.now()
	to.Set(standardwebhooks.HeaderWebhookID, id)
	to.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	if h.sign == nil {
		return nil
	}
	signature, err := h.sign.Sign(id, now, body)
	if err != nil {
		return errSecret
	}
	to.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return nil
}

// verdict is what a status means. What the answer says is not repeated: it may
// quote what it was sent.
func verdict(res *http.Response) error {
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return nil
	case res.StatusCode == http.StatusGone:
		return errGone
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return refusal{text: "it redirected with status " + strconv.Itoa(res.StatusCode) + ", and redirects are not followed"}
	}
	after, _ := strconv.Atoi(res.Header.Get("Retry-After")) // a date is taken for none
	return refusal{
		text:  "it answered with status " + strconv.Itoa(res.StatusCode),
		after: min(time.Duration(max(0, min(after, 3600)))*time.Second, longestWait),
	}
}
