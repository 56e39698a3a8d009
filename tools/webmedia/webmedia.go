// Package webmedia makes the images of generate_media by services: the images API of
// OpenAI, which many gateways and local servers copy, Stability AI, and Replicate.
//
// An image costs money. So a request that makes one is sent once: no failure repeats it,
// since it may have been carried out. Only reading the state of a prediction is repeated.
// Each model has an estimated cost, and the sum of a day has a limit.
//
//	engine, err := webmedia.New(ctx, webmedia.Options{Provider: "openai", APIKey: key, Models: models})
//	picture, err := engine.Make(ctx, media.Request{Prompt: "a red fox", Model: "fox-painter"})
//
// No error, result or log line has the key or a text of the service in it.
package webmedia

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg" // a format of services
	_ "image/png"  // a format of services
	"io"
	"log"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	_ "golang.org/x/image/webp" // a format of services

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/tools/media"
	"github.com/toolgate/toolgate/tools/page"
	"github.com/toolgate/toolgate/tools/service"
)

const (
	maxImage  = 16 << 20 // bytes of an image
	maxAnswer = 24 << 20 // bytes of an answer, which may have an image in base64
	maxSide   = 16_384   // pixels
)

// Options choose a service. The tags are the members of the file of backends.
type Options struct {
	Provider string           `json:"provider"`
	BaseURL  string           `json:"base_url"` // "" = that of the provider
	APIKey   string           `json:"api_key"`  // sent to BaseURL only
	Models   map[string]Model `json:"models"`   // by the names that callers use; no other model is asked for
	Budget   float64          `json:"budget"`   // US dollars a day (UTC), by estimate; 0 = no limit
	Allow    []string         `json:"allow"`    // hosts of images that may have private addresses
	Timeout  time.Duration    `json:"timeout"`  // of one image; 0 = 2 minutes

	Path    string           // of the file with what was spent; required with Budget, created if missing
	Version string           // of toolgate, in the User-Agent
	Log     io.Writer        // failures, for the operator; nil = none
	Now     func() time.Time // nil = time.Now
	Poll    time.Duration    // between two looks at a prediction; 0 = 1 s
}

// Model is a model of a service.
type Model struct {
	ID    string            `json:"id"`    // its name at the service
	Cost  float64           `json:"cost"`  // estimate for one image, in US dollars
	Sizes map[string]string `json:"sizes"` // size or ratio to ask for, by aspect ratio; others as the provider does
}

// job is one image that is asked for.
type job struct {
	media.Request
	model Model
	shape string // size or ratio, in the words of the service
}

// request is what a provider asks for.
type request struct {
	path, contentType string
	header            map[string]string
	body              []byte
}

// provider is the protocol of one service.
type provider struct {
	base   string            // address when none is configured
	shapes map[string]string // size or ratio by aspect ratio
	auth   string            // before the key in Authorization
	ask    func(job) (request, error)
	finish func(ctx context.Context, e *Engine, answer []byte) ([]byte, error) // the image in an answer
	reason func(answer []byte) string                                          // code of an error
}

var providers = map[string]provider{"openai": openai, "replicate": replicate, "stability": stability}

// Engine makes images with one service. It is safe for concurrent use.
type Engine struct {
	provider
	opts    Options
	client  *http.Client
	fetcher *page.Fetcher
	budget  *budget
	log     *log.Logger
}

// New returns the engine of a provider, and opens its budget.
func New(ctx context.Context, opts Options) (*Engine, error) {
	p, ok := providers[opts.Provider]
	if !ok {
		return nil, fmt.Errorf("unknown media provider %q: want render, %s", opts.Provider, strings.Join(slices.Sorted(maps.Keys(providers)), ", "))
	}
	opts.BaseURL = strings.TrimSuffix(cmp.Or(opts.BaseURL, p.base), "/")
	opts.Timeout = cmp.Or(opts.Timeout, 2*time.Minute)
	opts.Poll = cmp.Or(opts.Poll, time.Second)
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	budget, err := openBudget(ctx, opts.Path, opts.Budget)
	if err != nil {
		return nil, err
	}
	return &Engine{
		provider: p, opts: opts, client: service.NewClient(0), budget: budget, log: log.New(opts.Log, "generate_media: ", 0),
		fetcher: page.New(page.Options{Allow: opts.Allow, Timeout: opts.Timeout, Version: opts.Version}),
	}, nil
}

// Close closes the budget and idle connections.
func (e *Engine) Close() error {
	e.client.CloseIdleConnections()
	return e.budget.close()
}

// Make asks the service for one image. An error that is the service's fault, or the
// caller's to change, is a *service.Failure.
func (e *Engine) Make(ctx context.Context, r media.Request) (media.Picture, error) {
	ctx, stop := context.WithTimeout(ctx, e.opts.Timeout)
	defer stop()
	picture, err := e.make(ctx, r)
	if err != nil {
		e.log.Printf("provider %s: %v", e.opts.Provider, err)
	}
	return picture, err
}

func (e *Engine) make(ctx context.Context, r media.Request) (media.Picture, error) {
	j, err := e.plan(r)
	if err != nil {
		return media.Picture{}, err
	}
	day := dayOf(e.opts.Now())
	ok, err := e.budget.take(ctx, j.model.Cost, day)
	if err != nil {
		return media.Picture{}, err
	}
	if !ok {
		return media.Picture{}, &service.Failure{Text: "the budget for images is used up; try again tomorrow (UTC)", Hint: "budget in the file of backends"}
	}
	data, charged, err := e.generate(ctx, j)
	if err != nil && !charged {
		err = errors.Join(err, e.budget.giveBack(ctx, j.model.Cost, day))
	}
	if err != nil {
		return media.Picture{}, err
	}
	return e.inspect(data, j)
}

// plan checks what is asked for.
func (e *Engine) plan(r media.Request) (job, error) {
	model, ok := e.opts.Models[r.Model]
	if !ok {
		return job{}, &service.Failure{Text: fmt.Sprintf("unknown model %.64q: use one of %s", r.Model, strings.Join(slices.Sorted(maps.Keys(e.opts.Models)), ", "))}
	}
	r.Aspect, r.Format = cmp.Or(r.Aspect, "1:1"), cmp.Or(r.Format, "png")
	shape := cmp.Or(model.Sizes[r.Aspect], e.shapes[r.Aspect])
	switch {
	case shape == "":
		return job{}, &service.Failure{Text: fmt.Sprintf("unknown aspect ratio %.64q", r.Aspect)}
	case r.Format != "png" && r.Format != "jpeg" && r.Format != "webp":
		return job{}, e.failed(fmt.Sprintf("does not make the format %.16q: use png, jpeg or webp", r.Format))
	}
	return job{r, model, shape}, nil
}

// generate asks for an image; charged reports, with an error, that it may be billed.
func (e *Engine) generate(ctx context.Context, j job) (image []byte, charged bool, err error) {
	r, err := e.ask(j)
	if err != nil {
		return nil, false, fmt.Errorf("writing a request: %w", err)
	}
	answer, status, err := e.exchange(ctx, http.MethodPost, r)
	if err != nil {
		return nil, status == 0 || status >= 500, err
	}
	image, err = e.finish(ctx, e, answer)
	return image, true, err
}

// exchange makes one request. The status is 0 when there is no answer.
func (e *Engine) exchange(ctx context.Context, method string, r request) (answer []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, e.opts.BaseURL+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, 0, e.failed("cannot be asked: its address is malformed")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "toolgate/"+cmp.Or(e.opts.Version, "dev"))
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if e.opts.APIKey != "" {
		req.Header.Set("Authorization", e.auth+e.opts.APIKey)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	res, err := e.client.Do(req)
	switch {
	case errors.Is(err, service.ErrRedirect):
		return nil, http.StatusFound, e.failed("redirects, which is refused")
	case err != nil:
		return nil, 0, e.failed("does not answer: " + delivery.Explain(ctx, err).Error() + mayBeBilled(method))
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case res.StatusCode < 200 || res.StatusCode > 299:
		return nil, res.StatusCode, e.refusal(res, answer, method)
	case err != nil:
		return nil, 0, e.failed("sent half an answer: " + delivery.Explain(ctx, err).Error() + mayBeBilled(method))
	case len(answer) > maxAnswer:
		return nil, 0, e.failed(fmt.Sprintf("sent an answer of more than %d bytes", maxAnswer))
	}
	return answer, res.StatusCode, nil
}

func mayBeBilled(method string) string {
	if method == http.MethodPost {
		return "; the image may have been billed"
	}
	return ""
}

// declined are the codes of services for a prompt or an image that breaks their rules.
var declined = []string{"moderation_blocked", "content_policy_violation", "content_moderation", "content_filtered"}

// refusal explains an answer without an image.
func (e *Engine) refusal(res *http.Response, answer []byte, method string) *service.Failure {
	code := e.reason(answer)
	switch status := res.StatusCode; {
	case slices.Contains(declined, code):
		return e.declines(code)
	case service.RefusesKey(status) || code == "insufficient_quota" || code == "billing_hard_limit_reached":
		f := e.failed(fmt.Sprintf("refuses toolgate (status %d)", status))
		f.Hint = "check api_key, its rights, and the balance of its account"
		return f
	case status == http.StatusTooManyRequests:
		return e.failed("limits requests" + service.ComeBack(res.Header, e.opts.Now()))
	case status >= 500:
		return e.failed(fmt.Sprintf("is out of order (status %d)", status) + mayBeBilled(method))
	default:
		f := e.failed(fmt.Sprintf("does not accept the request (status %d)", status))
		f.Hint = "check id and sizes of the model"
		return f
	}
}

// declines is the failure of a prompt that breaks the rules of a service.
func (e *Engine) declines(code string) *service.Failure {
	return e.failed("declined the prompt by its content rules (" + code + "): change the prompt")
}

func (e *Engine) failed(what string) *service.Failure {
	return &service.Failure{Text: "the media service " + e.opts.Provider + " " + what}
}

// unreadable is the failure of an answer that is not of the protocol.
func (e *Engine) unreadable() *service.Failure {
	return e.failed("sent an answer that cannot be read; the image may have been billed")
}

// fetch reads an image that a service has put at an address, which may be any: only the
// public internet is read, without the key.
func (e *Engine) fetch(ctx context.Context, address string) ([]byte, error) {
	data, err := e.fetcher.Download(ctx, address, maxImage)
	if failure, ok := errors.AsType[page.Failure](err); ok {
		return nil, e.failed("made an image that cannot be fetched: " + string(failure))
	}
	return data, err
}

// inspect describes an image by its bytes, whatever the service says that it is.
func (e *Engine) inspect(data []byte, j job) (media.Picture, error) {
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || len(data) > maxImage || config.Width < 1 || config.Height < 1 || config.Width > maxSide || config.Height > maxSide {
		return media.Picture{}, e.failed("sent no image in PNG, JPEG or WebP, or too large a one; it may have been billed")
	}
	return media.NewPicture(data, "image/"+format, config.Width, config.Height, e.opts.Provider, j.Request.Model, j.model.Cost), nil
}
