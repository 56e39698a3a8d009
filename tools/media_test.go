package tools_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/tools"
	"github.com/toolgate/toolgate/tools/media"
	"github.com/toolgate/toolgate/tools/webmedia"
)

func pngOf(width, height int) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, width, height))); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func jpegOf(width, height int) []byte {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, width, height)), nil); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// painter is a media service: routes are METHOD PATH, and asked what it was asked, with the
// body where it is JSON.
type painter struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	keyed bool // every request below /v has the key, and no other one
}

func paint(t *testing.T, routes map[string]http.HandlerFunc) *painter {
	t.Helper()
	p := &painter{keyed: true}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.mu.Lock()
		entry := r.Method + " " + r.URL.Path
		if json.Valid(body) && len(body) > 0 {
			entry += " " + string(body)
		}
		p.asked = append(p.asked, entry)
		p.keyed = p.keyed && (r.Header.Get("Authorization") == "Bearer "+secret) == strings.HasPrefix(r.URL.Path, "/v")
		p.mu.Unlock()
		if route := routes[r.Method+" "+r.URL.Path]; route != nil {
			route(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *painter) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.asked...)
}

func says(status int, format string, args ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, format, args...)
	}
}

// gallery returns the options of a service at p with one model of each form.
func gallery(p *painter, provider, id string, log io.Writer) tools.Options {
	return tools.Options{Log: log, Backends: tools.Backends{Media: &webmedia.Options{
		Provider: provider, BaseURL: p.URL, APIKey: secret, Models: map[string]webmedia.Model{"fox-1": {ID: id, Cost: 0.04}},
		Allow: []string{strings.TrimPrefix(p.URL, "http://")}, Poll: time.Millisecond,
	}}}
}

const foxRequest = `{"prompt":"a red fox","model":"fox-1","aspect_ratio":"16:9","format":"jpeg"}`

func TestMediaByServices(t *testing.T) {
	picture := jpegOf(48, 27)
	coded := base64.StdEncoding.EncodeToString(picture)
	image := func(w http.ResponseWriter, _ *http.Request) { w.Write(picture) }
	looks := 0
	for _, c := range []struct {
		name, provider, id string
		routes             map[string]http.HandlerFunc
		want               []string
	}{
		{"openai in base64", "openai", "gpt-image-1", map[string]http.HandlerFunc{
			"POST /v1/images/generations": says(200, `{"created":1,"data":[{"b64_json":%q}]}`, coded),
		}, []string{`POST /v1/images/generations {"model":"gpt-image-1","n":1,"output_format":"jpeg","prompt":"a red fox","size":"1536x1024"}`}},
		{"openai by address", "openai", "dall-e-3", map[string]http.HandlerFunc{
			"POST /v1/images/generations": func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, `{"data":[{"url":"http://%s/i.jpg"}]}`, r.Host)
			}, "GET /i.jpg": image,
		}, []string{`POST /v1/images/generations {"model":"dall-e-3","n":1,"prompt":"a red fox","size":"1536x1024"}`, "GET /i.jpg"}},
		{"stability", "stability", "core", map[string]http.HandlerFunc{
			"POST /v2beta/stable-image/generate/core": func(w http.ResponseWriter, r *http.Request) {
				if r.FormValue("prompt") != "a red fox" || r.FormValue("aspect_ratio") != "16:9" || r.FormValue("output_format") != "jpeg" {
					w.WriteHeader(http.StatusBadRequest)
				}
				fmt.Fprintf(w, `{"image":%q,"finish_reason":"SUCCESS","seed":1}`, coded)
			},
		}, []string{"POST /v2beta/stable-image/generate/core"}},
		{"replicate", "replicate", "owner/fox", map[string]http.HandlerFunc{
			"POST /v1/models/owner/fox/predictions": says(201, `{"id":"p1","status":"starting","urls":{"get":"http://169.254.169.254/"}}`),
			"GET /v1/predictions/p1": func(w http.ResponseWriter, r *http.Request) {
				switch looks++; looks {
				case 1:
					w.WriteHeader(http.StatusServiceUnavailable) // reading is repeated
				case 2:
					fmt.Fprint(w, `{"id":"p1","status":"processing"}`)
				default:
					fmt.Fprintf(w, `{"id":"p1","status":"succeeded","output":["http://%s/o.jpg"]}`, r.Host)
				}
			}, "GET /o.jpg": image,
		}, []string{
			`POST /v1/models/owner/fox/predictions {"input":{"aspect_ratio":"16:9","output_format":"jpg","prompt":"a red fox"}}`,
			"GET /v1/predictions/p1", "GET /v1/predictions/p1", "GET /v1/predictions/p1", "GET /o.jpg",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := paint(t, c.routes)
			got, raw := reply(t, connect(t, gallery(p, c.provider, c.id, nil)), "generate_media", foxRequest)
			sum := sha256.Sum256(picture)
			want := map[string]any{
				"provider": c.provider, "model": "fox-1", "mime": "image/jpeg", "width": 48.0, "height": 27.0, "bytes": float64(len(picture)),
				"sha256": hex.EncodeToString(sum[:]), "cost_estimate_usd": 0.04,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if content, ok := raw.Content[0].(*mcp.ImageContent); !ok || !bytes.Equal(content.Data, picture) || content.MIMEType != "image/jpeg" {
				t.Error("the image is not that of the service")
			}
			if diff := cmp.Diff(c.want, p.requests()); diff != "" || !p.keyed {
				t.Errorf("keys where they belong: %v (-want +got):\n%s", p.keyed, diff)
			}
		})
	}
}

// A service that fails gives a result that says why. No request for an image is repeated.
func TestMediaFailures(t *testing.T) {
	const create = "POST /v1/images/generations"
	for _, c := range []struct {
		name, provider, id string
		route              string
		answer             http.HandlerFunc
		want, hint         string
	}{
		{"key", "openai", "m", create, says(401, `{"error":{"code":"invalid_api_key","message":"no %s"}}`, secret), "refuses toolgate (status 401)", "check api_key"},
		{"balance", "replicate", "a/b", "POST /v1/models/a/b/predictions", says(402, `{"detail":"Insufficient credit"}`), "refuses toolgate (status 402)", "balance"},
		{"quota", "openai", "m", create, says(429, `{"error":{"code":"insufficient_quota"}}`), "refuses toolgate (status 429)", "balance"},
		{"limit", "openai", "m", create, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}, "limits requests; try again in 7s", ""},
		{"down", "stability", "core", "POST /v2beta/stable-image/generate/core", says(503, `{}`), "is out of order (status 503); the image may have been billed", ""},
		{"broken off", "openai", "m", create, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "the image may have been billed", ""},
		{"redirect", "openai", "m", create, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/elsewhere", http.StatusTemporaryRedirect)
		}, "redirects, which is refused", ""},
		{"bad request", "openai", "m", create, says(400, `{"error":{"code":"invalid_size","message":"%s"}}`, secret), "does not accept the request (status 400)", "check id"},
		{"declined by openai", "openai", "m", create, says(400, `{"error":{"code":"moderation_blocked","message":"secret text"}}`), "declined the prompt by its content rules (moderation_blocked)", ""},
		{"declined by stability", "stability", "core", "POST /v2beta/stable-image/generate/core", says(403, `{"id":"1","name":"content_moderation","errors":["x"]}`), "declined the prompt by its content rules (content_moderation)", ""},
		{"filtered by stability", "stability", "core", "POST /v2beta/stable-image/generate/core", says(200, `{"image":"","finish_reason":"CONTENT_FILTERED"}`), "declined the prompt by its content rules (content_filtered)", ""},
		{"declined by replicate", "replicate", "a/b", "POST /v1/models/a/b/predictions", says(201, `{"id":"p","status":"failed","error":"NSFW content detected. secret text"}`), "declined the prompt by its content rules (sensitive)", ""},
		{"failed model", "replicate", "a/b", "POST /v1/models/a/b/predictions", says(201, `{"id":"p","status":"failed","error":"CUDA"}`), "its model failed", ""},
		{"strange id", "replicate", "a/b", "POST /v1/models/a/b/predictions", says(201, `{"id":"../files","status":"starting"}`), "an answer that cannot be read", ""},
		{"no JSON", "openai", "m", create, says(200, `<html>`), "an answer that cannot be read", ""},
		{"no image", "openai", "m", create, says(200, `{"data":[{"b64_json":"PGh0bWw+"}]}`), "sent no image", ""},
		{"metadata", "openai", "m", create, says(200, `{"data":[{"url":"http://169.254.169.254/latest"}]}`), "is not on the public internet", ""},
		{"file", "replicate", "a/b", "POST /v1/models/a/b/predictions", says(201, `{"id":"p","status":"succeeded","output":"file:///etc/passwd"}`), "only http and https addresses are read", ""},
		{"too much", "openai", "m", create, func(w http.ResponseWriter, _ *http.Request) {
			for chunk := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, "sent an answer of more than", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			p := paint(t, map[string]http.HandlerFunc{c.route: c.answer})
			got, err := call(t, connect(t, gallery(p, c.provider, c.id, &log)), "generate_media", `{"prompt":"x","model":"fox-1"}`)
			if err != nil || !got.IsError {
				t.Fatalf("%+v, %v", got, err)
			}
			text := got.Content[0].(*mcp.TextContent).Text
			if !strings.Contains(text, "the media service "+c.provider+" ") || !strings.Contains(text, c.want) || strings.Contains(text, "secret") {
				t.Errorf("the result says %q, want %q", text, c.want)
			}
			if logged := log.String(); !strings.Contains(logged, c.want) || !strings.Contains(logged, c.hint) || strings.Contains(logged, "secret") {
				t.Errorf("the log has %q", logged)
			}
			if asked := p.requests(); len(asked) != 1 {
				t.Errorf("%d requests: %q", len(asked), asked)
			}
		})
	}
}

// An image at an address that redirects, or of a host that is not allowed, is not fetched.
func TestMediaAddresses(t *testing.T) {
	routes := map[string]http.HandlerFunc{
		"POST /v1/images/generations": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"data":[{"url":"http://%s/i"}]}`, r.Host)
		},
		"GET /i": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/j", http.StatusFound) },
		"GET /j": func(w http.ResponseWriter, _ *http.Request) { w.Write(pngOf(1, 1)) },
	}
	for want, allowed := range map[string]bool{"its server redirects": true, "is not on the public internet": false} {
		p := paint(t, routes)
		opts := gallery(p, "openai", "m", nil)
		if !allowed {
			opts.Backends.Media.Allow = nil
		}
		got, err := call(t, connect(t, opts), "generate_media", `{"prompt":"x","model":"fox-1"}`)
		if err != nil || !got.IsError || !strings.Contains(got.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v", want, got, err)
		}
	}
}

// What a caller asks for is checked before the service is asked.
func TestMediaArguments(t *testing.T) {
	p := paint(t, nil)
	session := connect(t, gallery(p, "openai", "m", nil))
	for args, want := range map[string]string{
		`{"prompt":"x","model":"gpt-image-1"}`:                `unknown model "gpt-image-1": use one of fox-1`,
		`{"prompt":"x","model":"fox-1","aspect_ratio":"2:1"}`: `unknown aspect ratio "2:1"`,
		`{"prompt":"x","model":"fox-1","format":"svg"}`:       `does not make the format "svg"`,
	} {
		got, err := call(t, session, "generate_media", args)
		if err != nil || !got.IsError || !strings.Contains(got.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v", args, got, err)
		}
	}
	if asked := p.requests(); len(asked) != 0 {
		t.Errorf("the service was asked: %q", asked)
	}
}

// Images cost a budget: all but those that the service refused to make.
func TestMediaBudget(t *testing.T) {
	status := http.StatusBadRequest
	p := paint(t, map[string]http.HandlerFunc{"POST /v1/images/generations": func(w http.ResponseWriter, _ *http.Request) {
		if status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		fmt.Fprintf(w, `{"data":[{"b64_json":%q}]}`, base64.StdEncoding.EncodeToString(pngOf(1, 1)))
	}})
	opts := gallery(p, "openai", "m", nil)
	opts.Dir = t.TempDir()
	now := time.Date(2026, 11, 24, 23, 0, 0, 0, time.UTC)
	opts.Backends.Media.Budget, opts.Backends.Media.Now = 0.12, func() time.Time { return now }
	session := connect(t, opts)
	try := func(answer int, want string) {
		t.Helper()
		status = answer
		got, err := call(t, session, "generate_media", `{"prompt":"x","model":"fox-1"}`)
		if err != nil || got.IsError != (want != "") || want != "" && !strings.Contains(got.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("status %d: %+v, %v; want %q", answer, got, err, want)
		}
	}
	for range 5 {
		try(400, "does not accept")
	}
	try(200, "")
	try(500, "may have been billed")
	session.Close()
	session = connect(t, opts) // a restart does not renew the budget
	try(200, "")
	try(200, "the budget for images is used up")
	session = connect(t, opts)
	try(200, "the budget for images is used up")
	now = now.Add(2 * time.Hour)
	try(200, "")
}

// Servers with one directory share the budget of a day, whoever asks first.
func TestMediaBudgetIsShared(t *testing.T) {
	p := paint(t, map[string]http.HandlerFunc{"POST /v1/images/generations": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"data":[{"b64_json":%q}]}`, base64.StdEncoding.EncodeToString(pngOf(1, 1)))
	}})
	opts := *gallery(p, "openai", "m", nil).Backends.Media
	opts.Path, opts.Budget = filepath.Join(t.TempDir(), "media.db"), 0.12
	var made atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		engine, err := webmedia.New(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		for range 4 {
			wg.Go(func() {
				if _, err := engine.Make(t.Context(), media.Request{Prompt: "x", Model: "fox-1"}); err == nil {
					made.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if n := made.Load(); n != 3 || len(p.requests()) != 3 {
		t.Errorf("%d images were made by %d requests, want 3", n, len(p.requests()))
	}
}

// A prediction whose caller waits no longer is cancelled.
func TestMediaTimeOut(t *testing.T) {
	p := paint(t, map[string]http.HandlerFunc{
		"POST /v1/models/a/b/predictions": says(201, `{"id":"p","status":"starting"}`),
		"GET /v1/predictions/p":           says(200, `{"id":"p","status":"processing"}`),
		"POST /v1/predictions/p/cancel":   says(200, `{"id":"p","status":"canceled"}`),
	})
	opts := gallery(p, "replicate", "a/b", nil)
	opts.Backends.Media.Timeout, opts.Backends.Media.Poll = 2*time.Second, 100*time.Millisecond
	got, err := call(t, connect(t, opts), "generate_media", `{"prompt":"x","model":"fox-1"}`)
	if err != nil || !got.IsError {
		t.Fatalf("%+v, %v", got, err)
	}
	if asked := p.requests(); !slices.Contains(asked, "POST /v1/predictions/p/cancel") {
		t.Errorf("%s: the requests are %q", got.Content[0].(*mcp.TextContent).Text, asked)
	}
}

// A caller that asks for progress gets it while the service works.
func TestMediaProgress(t *testing.T) {
	reported := make(chan float64, 1000)
	p := paint(t, map[string]http.HandlerFunc{"POST /v1/images/generations": func(w http.ResponseWriter, r *http.Request) {
		for range 2 {
			select {
			case <-reported:
			case <-r.Context().Done():
			}
		}
		fmt.Fprintf(w, `{"data":[{"b64_json":%q}]}`, base64.StdEncoding.EncodeToString(pngOf(1, 1)))
	}})
	opts := gallery(p, "openai", "m", nil)
	opts.ProgressEvery = 5 * time.Millisecond
	in, out := serve(t, opts)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			select {
			case reported <- r.Params.Progress:
			default:
			}
		},
	})
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: out, Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	params := &mcp.CallToolParams{Name: "generate_media", Arguments: json.RawMessage(`{"prompt":"x","model":"fox-1"}`)}
	params.SetProgressToken("p")
	if got, err := session.CallTool(t.Context(), params); err != nil || got.IsError {
		t.Errorf("%+v, %v", got, err)
	}
}

// With the provider render, the offline renderer also makes SVG, and says what it cannot draw.
func TestRenderByChoice(t *testing.T) {
	session := connect(t, tools.Options{Backends: tools.Backends{Media: &webmedia.Options{Provider: "render"}}})
	got, raw := reply(t, session, "generate_media", `{"prompt":"Fruit\nApples: 3","model":"chart-1","format":"svg"}`)
	if content, ok := raw.Content[0].(*mcp.ImageContent); !ok || !bytes.Contains(content.Data, []byte(">Apples<")) || got["mime"] != "image/svg+xml" {
		t.Errorf("got %v", got)
	}
	for args, want := range map[string]string{
		`{"prompt":"no numbers","model":"chart-1"}`:       "a chart needs",
		`{"prompt":"no arrows","model":"diagram-1"}`:      "a diagram needs",
		`{"prompt":"x","model":"card-1","format":"webp"}`: "png and svg only",
	} {
		refused, err := call(t, session, "generate_media", args)
		if err != nil || !refused.IsError || !strings.Contains(refused.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v", args, refused, err)
		}
	}
}
