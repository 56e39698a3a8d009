// Package publisher is a web server of policy bundles for tests, like OPA's bundle
// servers: ETag, conditional requests, long polling. Tests can make it fail and read
// the requests that it received.
package publisher

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// MediaType is the media type of bundles from servers that support long polling.
const MediaType = "application/vnd.openpolicyagent.bundles"

// Publisher serves one bundle at every path. It is safe for concurrent use.
type Publisher struct {
	URL string // of the bundle

	mu      sync.Mutex // protects the fields below
	content []byte
	status  int           // status of every answer, 0 for none
	plain   bool          // without ETag and long polling
	changed chan struct{} // closed by every change
	asked   []*http.Request
	full    int // answers with the bundle
	waiting int // requests that wait for a change
}

// New starts a publisher without a bundle. It stops with the test.
func New(t testing.TB) *Publisher {
	p := &Publisher{changed: make(chan struct{})}
	s := httptest.NewServer(p)
	t.Cleanup(func() {
		p.change(func() { p.status = http.StatusServiceUnavailable }) // ends every long poll
		s.Close()
	})
	p.URL = s.URL + "/bundle.tar.gz"
	return p
}

// Pack returns a bundle of files, by name.
func Pack(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Publish replaces the bundle.
func (p *Publisher) Publish(content []byte) {
	p.change(func() { p.content, p.status = content, 0 })
}

// Fail answers every request with a status; 0 ends this.
func (p *Publisher) Fail(status int) { p.change(func() { p.status = status }) }

// Plain makes it a plain file server, without ETag and long polling.
func (p *Publisher) Plain() { p.change(func() { p.plain = true }) }

func (p *Publisher) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Requests returns the requests so far.
func (p *Publisher) Requests() []*http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// FullAnswers returns the number of answers that contained the bundle.
func (p *Publisher) FullAnswers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full
}

// Waiting returns the number of requests that wait for a change.
func (p *Publisher) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// ServeHTTP answers as OPA's bundle servers do.
func (p *Publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r)
	end := time.Now().Add(wait(r))
	for p.status == 0 && !p.plain && tag(p.content) == r.Header.Get("If-None-Match") && time.Now().Before(end) && r.Context().Err() == nil {
		p.await(r, time.Until(end))
	}
	status, content, plain := p.status, p.content, p.plain
	unchanged := !plain && tag(content) == r.Header.Get("If-None-Match")
	if status == 0 && !unchanged {
		p.full++
	}
	p.mu.Unlock()
	if status != 0 {
		http.Error(w, "no", status)
		return
	}
	if !plain {
		w.Header().Set("ETag", tag(content))
		w.Header().Set("Content-Type", MediaType)
	}
	if unchanged {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(content) // the client may have disconnected
}

// await waits for a change; p.mu is unlocked meanwhile.
func (p *Publisher) await(r *http.Request, d time.Duration) {
	changed := p.changed
	p.waiting++
	p.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-r.Context().Done():
	}
	p.mu.Lock()
	p.waiting--
}

func tag(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}

// wait returns how long a request permits the server to wait.
func wait(r *http.Request) time.Duration {
	for part := range strings.SplitSeq(r.Header.Get("Prefer"), ";") {
		if seconds, ok := strings.CutPrefix(part, "wait="); ok {
			n, err := strconv.Atoi(seconds)
			if err == nil {
				return time.Duration(n) * time.Second
			}
		}
	}
	return 0
}
