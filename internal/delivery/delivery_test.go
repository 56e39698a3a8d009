package delivery_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/delivery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackoff(t *testing.T) {
	b := delivery.Backoff{First: 2 * time.Second, Longest: 5 * time.Minute}
	for failures, most := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 9: 5 * time.Minute, 1000: 5 * time.Minute} {
		for range 100 {
			if d := b.After(failures); d < most/2 || d >= most {
				t.Fatalf("after %d failures: %v, want %v to %v", failures, d, most/2, most)
			}
		}
	}
	for asked, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, time.Hour: 5 * time.Minute} {
		if d := b.Pause(1, &delivery.StatusError{Status: 503, RetryAfter: asked}); d != want {
			t.Errorf("Retry-After %v: %v, want %v", asked, d, want)
		}
	}
	if d := b.Pause(1, errors.New("away")); d >= 2*time.Second {
		t.Errorf("without Retry-After: %v", d)
	}
}

func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w delivery.Workers
		if w.Stop() {
			t.Error("workers that never began were stopped")
		}
		ended := make(chan bool, 2)
		task := func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second); ended <- true }
		for range 2 {
			w.Start(task, task)
			if !w.Stop() || len(ended) != 2 {
				t.Errorf("%d of 2 tasks ended with Stop", len(ended))
			}
			<-ended
			<-ended
		}
	})
}

// What an answer says is in no error, and only 2xx accepts.
func TestPost(t *testing.T) {
	answer := func(status int, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if string(body) != "{}" || r.Header.Get("X-Team") != "payments" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("User-Agent") != "toolgate" {
				t.Errorf("%s %v", body, r.Header)
			}
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "planted")
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		after  time.Duration
	}{
		"accepted":    {answer(204), "", 0},
		"refused":     {answer(422), "it answered with status 422", 0},
		"redirect":    {answer(307, "Location", "/planted"), "it answered with status 307: redirects are not followed", 0},
		"retry after": {answer(503, "Retry-After", "60"), "it answered with status 503", time.Minute},
		"retry never": {answer(503, "Retry-After", "99999999999"), "it answered with status 503", time.Hour},
		"retry past":  {answer(503, "Retry-After", "-1"), "it answered with status 503", 0},
		"retry date":  {answer(503, "Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"), "it answered with status 503", 0},
		"broken off":  {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, delivery.ErrProtocol.Error(), 0},
		"endless head": {
			answer(200, "X-Planted", strings.Repeat("x", 1<<20)), delivery.ErrProtocol.Error(), 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.answer)
			defer srv.Close()
			client := delivery.NewClient(nil)
			defer client.Close()
			err := client.Post(t.Context(), srv.URL+"/planted?planted", http.Header{"X-Team": {"payments"}}, []byte("{}"))
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if e := (*delivery.StatusError)(nil); errors.As(err, &e) && e.RetryAfter != c.after {
				t.Errorf("retry after %v, want %v", e.RetryAfter, c.after)
			}
		})
	}
}

func TestPostWithoutAnAnswer(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	gone, stop := context.WithCancel(t.Context())
	stop()
	for name, c := range map[string]struct {
		ctx       context.Context
		url, want string
	}{
		"certificate": {t.Context(), srv.URL, "its certificate is not trusted"},
		"nobody":      {t.Context(), "http://planted:planted@127.0.0.1:1/planted", "no connection: connect: connection refused"},
		"no address":  {t.Context(), "http://127.0.0.1:planted/", delivery.ErrAddress.Error()},
		"too late":    {gone, srv.URL, delivery.ErrTimeout.Error()},
	} {
		client := delivery.NewClient(x509.NewCertPool())
		err := client.Post(c.ctx, c.url, nil, nil)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		client.Close()
	}
}
