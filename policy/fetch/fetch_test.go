package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/publisher"
	"github.com/toolgate/toolgate/policy/fetch"
)

func read(t *testing.T, c *fetch.Copy) string {
	t.Helper()
	content, err := os.ReadFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// left are the files in a directory.
func left(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return len(entries)
}

// TestFetch holds that a bundle is fetched whole once, then by its ETag, that
// only a copy that was kept is the last good one, and that it outlives the
// server.
func TestFetch(t *testing.T) {
	p, dir := publisher.New(t), filepath.Join(t.TempDir(), "policy")
	p.Publish([]byte("one"))
	s := fetch.New(fetch.Options{URL: p.URL, Dir: dir})
	if _, err := s.Kept(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a copy before the first: %v", err)
	}
	if left(t, dir) != 0 {
		t.Error("looking made the directory")
	}
	dropped, err := s.Fetch(t.Context())
	if err != nil || read(t, dropped) != "one" {
		t.Fatalf("got %v, %v", dropped, err)
	}
	if err := dropped.Drop(); err != nil || left(t, dir) != 0 {
		t.Errorf("after dropping: %v, %d files", err, left(t, dir))
	}
	c, err := s.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(); err != nil || !c.Kept || read(t, c) != "one" {
		t.Fatalf("keeping: %v", err)
	}
	again, err := fetch.New(fetch.Options{URL: p.URL, Dir: dir}).Fetch(t.Context())
	if err != nil || !again.Kept || read(t, again) != "one" || p.FullAnswers() != 2 {
		t.Errorf("asked again: %+v, %v, %d whole answers; want the copy that is kept", again, err, p.FullAnswers())
	}
	if err := again.Drop(); err != nil || read(t, again) != "one" {
		t.Errorf("dropping what is kept: %v", err)
	}
	p.Publish([]byte("two"))
	if c, err = s.Fetch(t.Context()); err != nil || read(t, c) != "two" || c.Kept {
		t.Fatalf("after a change: %+v, %v", c, err)
	}
	if kept, err := s.Kept(); err != nil || read(t, kept) != "one" {
		t.Errorf("what nobody decided upon is the last good one: %v", err)
	}
	if err := c.Keep(); err != nil {
		t.Fatal(err)
	}
	p.Fail(http.StatusInternalServerError)
	if _, err := s.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a server that fails: %v", err)
	}
	if kept, err := s.Kept(); err != nil || read(t, kept) != "two" {
		t.Errorf("with the server away: %v", err)
	}
	if other, err := fetch.New(fetch.Options{URL: p.URL + "?other", Dir: dir}).Kept(); err == nil {
		t.Errorf("the copy of one URL is taken for another's: %v", other.Path)
	}
	if n := left(t, dir); n != 2 {
		t.Errorf("%d files are left, want the copy and its note", n)
	}
}

// TestDamagedCopy holds that a note which does not speak of the copy beside it
// is not believed: the bundle is fetched whole again.
func TestDamagedCopy(t *testing.T) {
	p, dir := publisher.New(t), t.TempDir()
	p.Publish([]byte("one"))
	s := fetch.New(fetch.Options{URL: p.URL, Dir: dir})
	c, err := s.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Path, []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = s.Fetch(t.Context()); err != nil || read(t, c) != "one" {
		t.Errorf("got %v, %v", c, err)
	}
}

// TestSweep holds that what a dead process left goes, and what a live one is
// deciding upon stays.
func TestSweep(t *testing.T) {
	p, dir := publisher.New(t), t.TempDir()
	p.Publish([]byte("one"))
	s := fetch.New(fetch.Options{URL: p.URL, Dir: dir})
	var copies []*fetch.Copy
	for range 3 {
		c, err := s.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		copies = append(copies, c)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(copies[0].Path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := copies[1].Keep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(copies[0].Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a dead process left is there: %v", err)
	}
	if read(t, copies[2]) != "one" {
		t.Error("what a live process is deciding upon is gone")
	}
}

// TestSecretsStayHome holds that headers go to the host that they are for and no
// further, and that errors tell neither them nor the query.
func TestSecretsStayHome(t *testing.T) {
	var elsewhere http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = r.Header
		_, _ = w.Write([]byte("moved"))
	}))
	defer other.Close()
	var home http.Header
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		home = r.Header
		if r.URL.Path == "/gone" {
			panic(http.ErrAbortHandler)
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer first.Close()
	o := fetch.Options{URL: first.URL + "/b?sig=s3cret", Dir: t.TempDir(), Headers: map[string]string{"Authorization": "Bearer s3cret", "X-Team": "s3cret"}}
	c, err := fetch.New(o).Fetch(t.Context())
	if err != nil || read(t, c) != "moved" {
		t.Fatalf("got %v, %v", c, err)
	}
	if home.Get("X-Team") != "s3cret" || home.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("the server was sent %v", home)
	}
	for name, values := range elsewhere {
		if strings.Contains(strings.Join(values, ""), "s3cret") {
			t.Errorf("another host was sent %s: %v", name, values)
		}
	}
	o.URL = strings.Replace(first.URL, "http://", "http://user:s3cret@", 1) + "/gone?sig=s3cret"
	if _, err := fetch.New(o).Fetch(t.Context()); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "/gone") {
		t.Errorf("the error is %v", err)
	}
}

// route answers requests without a network.
type route func(*http.Request) (*http.Response, error)

func (f route) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, body string, headers ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// TestRedirects holds that a redirect leads to no way that is less protected.
func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"https://a.example/", "https://b.example/", true},
		{"https://a.example/", "http://a.example/", false},
		{"http://127.0.0.1/", "http://localhost:81/", true},
		{"http://127.0.0.1/", "https://a.example/", true},
		{"http://127.0.0.1/", "http://a.example/", false},
		{"http://a.example/", "http://b.example/", true}, // signed, or it would not be configured
	} {
		s := fetch.New(fetch.Options{URL: c.from, Dir: t.TempDir(), Transport: route(func(r *http.Request) (*http.Response, error) {
			if r.URL.String() == c.from {
				return answer(http.StatusFound, "", "Location", c.to), nil
			}
			return answer(http.StatusOK, "x"), nil
		})})
		if _, err := s.Fetch(t.Context()); (err == nil) != c.ok {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
	loop := fetch.New(fetch.Options{URL: "https://a.example/", Dir: t.TempDir(), Transport: route(func(*http.Request) (*http.Response, error) {
		return answer(http.StatusFound, "", "Location", "/"), nil
	})})
	if _, err := loop.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 10 times") {
		t.Errorf("a loop: %v", err)
	}
}

// TestWrongAnswers holds that nothing is left of what is no bundle.
func TestWrongAnswers(t *testing.T) {
	for name, res := range map[string]func() *http.Response{
		"empty":              func() *http.Response { return answer(200, "") },
		"unasked unchanged":  func() *http.Response { return answer(304, "") },
		"not found":          func() *http.Response { return answer(404, "x") },
		"too large":          func() *http.Response { r := answer(200, ""); r.Body = io.NopCloser(endless{}); return r },
		"cut":                func() *http.Response { r := answer(200, ""); r.Body = io.NopCloser(broken{}); return r },
		"partial, not asked": func() *http.Response { return answer(206, "x") },
	} {
		dir := t.TempDir()
		s := fetch.New(fetch.Options{URL: "https://a.example/", Dir: dir, Transport: route(func(*http.Request) (*http.Response, error) { return res(), nil })})
		if c, err := s.Fetch(t.Context()); err == nil || left(t, dir) != 0 {
			t.Errorf("%s: %v, %v, %d files", name, c, err, left(t, dir))
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

type broken struct{}

func (broken) Read(b []byte) (int, error) { return copy(b, "half"), io.ErrUnexpectedEOF }

// TestSlowServer holds that a server which says nothing is given up, in time
// that does not pass.
func TestSlowServer(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := fetch.New(fetch.Options{URL: "https://a.example/?s3cret", Dir: dir, Transport: route(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		_, err := s.Fetch(context.Background())
		if err == nil || !strings.Contains(err.Error(), "too long") || time.Since(began) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestManyAtOnce holds that processes which share a directory do not hurt each
// other's copies.
func TestManyAtOnce(t *testing.T) {
	p, dir := publisher.New(t), t.TempDir()
	body := bytes.Repeat([]byte("x"), 1<<20)
	p.Publish(body)
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			c, err := fetch.New(fetch.Options{URL: p.URL, Dir: dir}).Fetch(context.Background())
			if err == nil {
				err = c.Keep()
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	kept, err := fetch.New(fetch.Options{URL: p.URL, Dir: dir}).Kept()
	if err != nil || read(t, kept) != string(body) {
		t.Errorf("what is kept: %v", err)
	}
}
