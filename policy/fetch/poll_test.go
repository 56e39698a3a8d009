package fetch_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/publisher"
	"github.com/toolgate/toolgate/policy/fetch"
)

// poll runs Poll until the test ends, and gives what it was offered and what it
// said. It refuses copies that hold "bad".
func poll(t *testing.T, s *fetch.Source, serving *fetch.Copy) (offered chan string, said chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	offered, said = make(chan string, 100), make(chan error, 1000)
	var done sync.WaitGroup
	done.Go(func() {
		s.Poll(ctx, serving, func(_ context.Context, c *fetch.Copy) error {
			content := read(t, c)
			offered <- content
			if strings.Contains(content, "bad") {
				return errors.New(content + " is refused")
			}
			return nil
		}, func(err error) { said <- err })
	})
	t.Cleanup(func() { stop(); done.Wait() })
	return offered, said
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// TestLongPolling holds that a server which waits for changes tells each at
// once, that it waits and is not asked in vain, and that only what was taken is
// kept.
func TestLongPolling(t *testing.T) {
	p := publisher.New(t)
	p.Publish([]byte("one"))
	s := fetch.New(fetch.Options{URL: p.URL, Dir: t.TempDir(), Min: time.Hour, Long: 10 * time.Second})
	c, err := s.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(); err != nil {
		t.Fatal(err)
	}
	offered, said := poll(t, s, c)
	await(t, "the server is let wait", func() bool { return p.Waiting() == 1 })
	p.Publish([]byte("two"))
	if got := <-offered; got != "two" {
		t.Errorf("offered %q", got)
	}
	if err := <-said; err != nil {
		t.Error(err)
	}
	await(t, "the server is let wait again", func() bool { return p.Waiting() == 1 })
	if kept, err := s.Kept(); err != nil || read(t, kept) != "two" {
		t.Errorf("kept: %v", err)
	}
	p.Publish([]byte("bad"))
	if got := <-offered; got != "bad" {
		t.Errorf("offered %q", got)
	}
	if err := <-said; err == nil || !strings.Contains(err.Error(), "bad is refused") {
		t.Errorf("said %v", err)
	}
	if kept, err := s.Kept(); err != nil || read(t, kept) != "two" {
		t.Errorf("after a bad one, kept: %v", err)
	}
	if n := len(p.Requests()); n > 4 {
		t.Errorf("%d requests", n)
	}
}

// rounds is a server without a network that gives each request to the next of
// some answers, the last one for ever, and notes when it was asked.
type rounds struct {
	answers []func(*http.Request) *http.Response
	at      []time.Duration
	tags    []string
	began   time.Time
}

func (s *rounds) RoundTrip(r *http.Request) (*http.Response, error) {
	n := min(len(s.at), len(s.answers)-1)
	s.at, s.tags = append(s.at, time.Since(s.began)), append(s.tags, r.Header.Get("If-None-Match"))
	res := s.answers[n](r)
	if res == nil {
		return nil, errors.New("no route to host")
	}
	return res, nil
}

func gives(status int, body, tag string) func(*http.Request) *http.Response {
	return func(*http.Request) *http.Response { return answer(status, body, "ETag", tag) }
}

// TestPace holds how often a server is asked: between Min and Max, after a
// second and then doubled to Max when it fails; that a copy which was refused is
// offered once; that what is the same is not offered again; and that failing
// costs no download.
func TestPace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		away := func(*http.Request) *http.Response { return nil }
		server := &rounds{began: time.Now(), answers: []func(*http.Request) *http.Response{
			gives(200, "one", `"1"`), gives(304, "", ""), // 0: Fetch; 1: after Min to Max
			away, away, away, away, away, away, away, away, // 2 to 9
			gives(200, "one", `"other"`), // 10: the same content under another tag
			gives(200, "bad", `"2"`),     // 11
			gives(304, "", ""),           // 12
			gives(200, "three", `"3"`),   // 13
			gives(304, "", ""),           // 14
		}}
		s := fetch.New(fetch.Options{URL: "https://a.example/", Dir: dir, Min: 30 * time.Second, Max: time.Minute, Transport: server})
		c, err := s.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Keep(); err != nil {
			t.Fatal(err)
		}
		offered, said := poll(t, s, c)
		var how []error
		for len(how) < 14 {
			how = append(how, <-said)
		}
		if got := strings.Join([]string{<-offered, <-offered}, " "); got != "bad three" || len(offered) > 0 {
			t.Errorf("offered %q and %d more", got, len(offered))
		}
		for i, err := range how {
			n := i + 1
			want := n >= 2 && n <= 9 || n == 11 || n == 12
			if (err != nil) != want {
				t.Errorf("request %d: said %v", n, err)
			}
		}
		for n := 1; n <= 14; n++ {
			least, most := 30*time.Second, time.Minute
			if n >= 3 && n <= 10 {
				most = min(time.Second<<(n-3), time.Minute)
				least = most / 2
			}
			if d := server.at[n] - server.at[n-1]; d < least || d > most {
				t.Errorf("request %d came after %v, want %v to %v", n, d, least, most)
			}
		}
		if got := strings.Join(server.tags[1:15], " "); got != strings.TrimSpace(strings.Repeat(`"1" `, 10))+` "other" "2" "2" "3"` {
			t.Errorf("asked with the tags %s", got)
		}
	})
}

// TestServerThatCannotWait holds that a server which answers a long poll at once
// is not asked at once again.
func TestServerThatCannotWait(t *testing.T) {
	n := 0
	for name, answers := range map[string][]func(*http.Request) *http.Response{
		"unchanged at once": {gives(200, "one", `"1"`), gives(304, "", "")},
		"no tag":            {gives(200, "one", "")},
		"another each time": {func(*http.Request) *http.Response {
			n++
			return answer(200, strconv.Itoa(n), "ETag", strconv.Itoa(n), "Content-Type", publisher.MediaType)
		}},
		"bundle type, no tag": {func(*http.Request) *http.Response {
			return answer(200, "one", "Content-Type", publisher.MediaType)
		}},
	} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			server := &rounds{began: time.Now(), answers: answers}
			s := fetch.New(fetch.Options{URL: "https://a.example/", Dir: dir, Min: 30 * time.Second, Long: 20 * time.Second, Transport: server})
			c, err := s.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, said := poll(t, s, c)
			for range 10 {
				if err := <-said; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			least := 4 * time.Minute
			if name == "another each time" {
				least = 8 * time.Second
			}
			if d := time.Since(server.began); d < least {
				t.Errorf("%s: asked ten times in %v", name, d)
			}
		})
	}
}

// TestAwayAtStart holds that a server which was away at the start is asked again
// within a second.
func TestAwayAtStart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		server := &rounds{began: time.Now(), answers: []func(*http.Request) *http.Response{gives(200, "one", `"1"`)}}
		s := fetch.New(fetch.Options{URL: "https://a.example/", Dir: dir, Min: time.Hour, Transport: server})
		offered, _ := poll(t, s, nil)
		if got := <-offered; got != "one" || time.Since(server.began) > time.Second {
			t.Errorf("offered %q after %v", got, time.Since(server.began))
		}
	})
}
