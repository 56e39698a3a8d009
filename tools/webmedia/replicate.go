package webmedia

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// replicate is the HTTP API of Replicate: a request creates a prediction, which is read
// until it has ended. An id is OWNER/NAME of an official model, or OWNER/NAME:VERSION.
//
// Source: https://replicate.com/docs/reference/http
var replicate = provider{
	base: "https://api.replicate.com", auth: "Bearer ",
	shapes: map[string]string{"1:1": "1:1", "4:3": "4:3", "16:9": "16:9", "3:4": "3:4", "9:16": "9:16"},
	ask: func(j job) (request, error) {
		format := j.Format
		if format == "jpeg" {
			format = "jpg"
		}
		body := map[string]any{"input": map[string]any{"prompt": j.Prompt, "aspect_ratio": j.shape, "output_format": format}}
		path := "/v1/models/" + j.model.ID + "/predictions"
		if _, version, ok := strings.Cut(j.model.ID, ":"); ok {
			body["version"], path = version, "/v1/predictions"
		}
		text, err := json.Marshal(body)
		return request{path: path, contentType: "application/json", body: text}, err
	},
	finish: func(ctx context.Context, e *Engine, answer []byte) ([]byte, error) { return e.follow(ctx, answer) },
	reason: func([]byte) string { return "" },
}

// prediction is the state of one prediction. Output is an address or a list of them.
type prediction struct {
	ID, Status string
	Error      any
	Output     json.RawMessage
}

// predictionID is compiled when it is first used: its counted repeat makes it large.
var predictionID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) })

// sensitive are parts of the errors of models for what breaks their rules.
var sensitive = []string{"nsfw", "flagged as sensitive", "(e005)"}

// follow reads a prediction until it has ended, and cancels it when ctx ends before.
func (e *Engine) follow(ctx context.Context, answer []byte) ([]byte, error) {
	for failures := 0; ; {
		var p prediction
		if err := json.Unmarshal(answer, &p); err != nil || !predictionID().MatchString(p.ID) {
			return nil, e.unreadable()
		}
		switch p.Status {
		case "succeeded":
			return e.output(ctx, p)
		case "failed", "canceled", "aborted":
			return nil, e.ended(p)
		}
		for {
			if !wait.For(ctx, e.opts.Poll) {
				return nil, e.cancel(ctx, p.ID)
			}
			next, _, err := e.exchange(ctx, http.MethodGet, request{path: "/v1/predictions/" + p.ID})
			if err == nil {
				answer = next
				break
			}
			if failures++; failures > maxLooks {
				return nil, err
			}
		}
	}
}

// maxLooks is how many looks at a prediction may fail.
const maxLooks = 3

// cancelTimeout is for the request that ends a prediction whose caller waits no longer.
const cancelTimeout = 5 * time.Second

func (e *Engine) cancel(ctx context.Context, id string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	if _, _, err := e.exchange(ctx, http.MethodPost, request{path: "/v1/predictions/" + id + "/cancel"}); err != nil {
		return e.failed("did not finish in time, and its prediction could not be cancelled; the image may be billed")
	}
	return e.failed("did not finish in time, and its prediction was cancelled")
}

// ended explains a prediction without a result.
func (e *Engine) ended(p prediction) error {
	text, _ := p.Error.(string)
	for _, part := range sensitive {
		if strings.Contains(strings.ToLower(text), part) {
			return e.declines("sensitive")
		}
	}
	if p.Status != "failed" {
		return e.failed("cancelled the prediction")
	}
	return e.failed("could not make the image: its model failed")
}

func (e *Engine) output(ctx context.Context, p prediction) ([]byte, error) {
	var address string
	if json.Unmarshal(p.Output, &address) == nil && address != "" {
		return e.fetch(ctx, address)
	}
	var list []string
	if json.Unmarshal(p.Output, &list) != nil || len(list) == 0 {
		return nil, e.unreadable()
	}
	return e.fetch(ctx, list[0])
}
