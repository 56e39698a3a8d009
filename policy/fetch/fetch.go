// Package fetch brings a policy bundle from a web server to this machine, as
// OPA's servers publish them: conditional requests (ETag), long polling, and a
// copy of the last good one, which serves when the server is away.
//
// OPA's own downloader (v1/download) does not fit: it follows any redirect, asks for
// delta bundles, parses a bundle before its signature is checked, forgets the ETag
// after a failure, asks a long-polling server that answers at once again without a
// pause, and keeps no copy.
//
// What was fetched is a file that somebody loads. It becomes the last good copy
// only when they say so, after it was verified, compiled and tried: nothing here
// looks inside.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	maxBytes   = 128 << 20        // of one bundle, packed
	timeout    = 10 * time.Second // until a server begins to answer, beside what it was asked to wait
	longest    = 2 * time.Minute  // for one answer to come over
	maxHops    = 10
	longPolled = "application/vnd.openpolicyagent.bundles" // the media type of servers that can wait
)

// Options say what to fetch.
type Options struct {
	URL     string            // http or https; may hold secrets, which nothing here tells
	Headers map[string]string // sent to its host, and to no other that it leads to
	Dir     string            // where copies are kept; made with the first one
	Min     time.Duration     // between two questions of Poll at least; 0 = 30 s
	Max     time.Duration     // and at most; less than Min = Min
	Long    time.Duration     // how long the server may wait for a change in Poll; 0 = not at all
	// Transport makes requests; nil = one that gives up on hosts that do not answer.
	Transport http.RoundTripper
}

// Source is one bundle on one server. It is safe for concurrent use, also by
// several processes on one Dir.
type Source struct {
	o      Options
	client *http.Client
}

// New makes a source. It asks nothing yet.
func New(o Options) *Source {
	if o.Min <= 0 {
		o.Min = 30 * time.Second
	}
	o.Max = max(o.Max, o.Min)
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
		t.TLSHandshakeTimeout = 5 * time.Second
		o.Transport = t
	}
	s := &Source{o: o}
	s.client = &http.Client{Transport: o.Transport, CheckRedirect: s.follow}
	return s
}

// Name says which server and path, without what may be secret.
func (s *Source) Name() string {
	u, err := url.Parse(s.o.URL)
	if err != nil {
		return "a policy server"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// Fetch asks the server once, without letting it wait. It gives the last good
// copy when that is what the server still has. Errors name the server and never
// a secret.
func (s *Source) Fetch(ctx context.Context) (*Copy, error) {
	kept, _ := s.Kept() // one that cannot be read is fetched again
	c, _, err := s.ask(ctx, kept.tag(), 0)
	if err != nil || c != nil {
		return c, err
	}
	kept.fresh = true
	return kept, nil
}

// ask makes one request, and returns nil when the bundle still has this tag. The
// server may take wait before it says that. long means that it can wait for changes.
func (s *Source) ask(ctx context.Context, tag string, wait time.Duration) (c *Copy, long bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(timeout+wait, func() { cancel(errors.New("it takes too long to answer")) })
	defer slow.Stop()
	res, err := s.send(ctx, tag, wait)
	if err != nil {
		return nil, false, s.failed(ctx, err)
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	slow.Reset(longest)
	switch {
	case res.StatusCode == http.StatusNotModified && tag != "":
		return nil, true, nil
	case res.StatusCode != http.StatusOK:
		return nil, false, s.failed(ctx, fmt.Errorf("it answered %d %s", res.StatusCode, http.StatusText(res.StatusCode)))
	}
	if c, err = s.store(res); err != nil {
		return nil, false, s.failed(ctx, err)
	}
	return c, res.Header.Get("Content-Type") == longPolled, nil
}

func (s *Source) send(ctx context.Context, tag string, wait time.Duration) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.o.URL, nil)
	if err != nil {
		return nil, err
	}
	for name, value := range s.o.Headers {
		req.Header.Set(name, value)
	}
	prefer := "modes=snapshot"
	if wait > 0 {
		prefer += ";wait=" + strconv.Itoa(int(wait.Seconds()))
	}
	req.Header.Set("Prefer", prefer)
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	return s.client.Do(req)
}

// failed says what went wrong without the URL that Go puts into its errors: a
// query may hold a secret.
func (s *Source) failed(ctx context.Context, err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("fetching the policy from %s: %w", s.Name(), err)
}

// follow decides on a redirect. It must not lead from TLS to plain text, nor
// from this machine to plain text on another; and no header of ours goes to
// another host.
func (s *Source) follow(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= maxHops:
		return fmt.Errorf("it redirects more than %d times", maxHops)
	case req.URL.Scheme != "https" && (first.Scheme == "https" || guard.Loopback(first.Hostname()) && !guard.Loopback(req.URL.Hostname())):
		return errors.New("it redirects to where nothing protects the way")
	}
	req.Header.Del("Referer") // Go says there where it came from, query and all
	if req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		for name := range s.o.Headers {
			req.Header.Del(name)
		}
	}
	return nil
}

// store writes an answer to a file of its own beside the copy that is kept.
func (s *Source) store(res *http.Response) (*Copy, error) {
	if err := os.MkdirAll(s.o.Dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.o.Dir, fetched+"*.tar.gz") // mode 0600
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(res.Body, maxBytes+1))
	if err == nil && n > maxBytes {
		err = fmt.Errorf("it sent more than %d bytes", maxBytes)
	}
	if err == nil && n == 0 {
		err = errors.New("it sent nothing")
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return &Copy{
		Path: f.Name(), Fetched: time.Now().UTC(), source: s, fresh: true,
		note: note{ETag: res.Header.Get("ETag"), SHA256: hex.EncodeToString(sum.Sum(nil))},
	}, nil
}

// fetched begins the names of copies that nobody has decided upon.
const fetched = ".fetched-"

// Copy is a bundle on this machine.
type Copy struct {
	Path    string    // of the .tar.gz
	Fetched time.Time // when it was fetched
	Kept    bool      // it is the last good copy

	source *Source
	note   note
	fresh  bool // the server said just now that it is the one
}

// note is what is kept beside the last good copy.
type note struct {
	ETag   string `json:"etag"`
	SHA256 string `json:"sha256"` // hex, of the copy that it speaks of
}

// tag is the ETag to ask with; "" asks for the whole.
func (c *Copy) tag() string {
	if c == nil {
		return ""
	}
	return c.note.ETag
}

// Kept gives the last good copy of this URL; the error is fs.ErrNotExist when
// there is none.
func (s *Source) Kept() (*Copy, error) {
	path := s.keptPath()
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("looking for the last good policy: %w", err)
	}
	c := &Copy{Path: path, Fetched: info.ModTime().UTC(), Kept: true, source: s}
	// A note about another copy, or none, costs one download and no more.
	sum, err := sumOf(path)
	if err != nil {
		return nil, fmt.Errorf("reading the last good policy: %w", err)
	}
	var n note
	if data, err := os.ReadFile(notePath(path)); err == nil && json.Unmarshal(data, &n) == nil && n.SHA256 == sum {
		c.note = n
	}
	c.note.SHA256 = sum
	return c, nil
}

// keptPath is where the last good copy lies: another URL has another place, so
// that none is ever taken for it.
func (s *Source) keptPath() string {
	sum := sha256.Sum256([]byte(s.o.URL))
	return filepath.Join(s.o.Dir, hex.EncodeToString(sum[:8])+".tar.gz")
}

func notePath(path string) string { return strings.TrimSuffix(path, ".tar.gz") + ".json" }

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Keep makes the copy the last good one, whole or not at all.
func (c *Copy) Keep() error {
	if c.Kept {
		return nil
	}
	path := c.source.keptPath()
	text, err := json.Marshal(c.note)
	if err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	// Between the two renames the note speaks of another copy, and is not
	// believed.
	beside := notePath(c.Path)
	if err := os.WriteFile(beside, text, 0o600); err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	if err := errors.Join(os.Rename(c.Path, path), os.Rename(beside, notePath(path))); err != nil {
		return fmt.Errorf("keeping a policy: %w", err)
	}
	c.Path, c.Kept = path, true
	return c.source.sweep()
}

// Drop removes a copy that is not wanted; the last good one stays.
func (c *Copy) Drop() error {
	if c.Kept {
		return nil
	}
	if err := os.Remove(c.Path); err != nil {
		return fmt.Errorf("removing a policy that is not wanted: %w", err)
	}
	return nil
}

// sweep removes what processes left that died before they decided.
func (s *Source) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.o.Dir, fetched+"*"))
	if err != nil {
		return fmt.Errorf("sweeping policies: %w", err)
	}
	var errs []error
	for _, path := range left {
		info, err := os.Stat(path)
		if err == nil && time.Since(info.ModTime()) > time.Hour {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// firstRetry is how soon a server is asked again that failed once.
const firstRetry = time.Second

// Poll asks the server again and again until ctx ends.
// serving is the copy that the caller has; nil = none. take is given every new
// one: when it returns nil the copy becomes the last good one, else it is
// dropped and not offered again until the server has another. said reports how
// each round went, nil for well; while the server has a copy that was not taken,
// that is how it goes.
//
// The time between rounds is random between Min and Max. A server that can wait
// for changes is asked again at once, or after a second if it answered at once. After failures the time begins at a second
// and doubles up to Max.
func (s *Source) Poll(ctx context.Context, serving *Copy, take func(context.Context, *Copy) error, said func(error)) {
	p := poller{source: s, take: take, long: s.o.Long}
	if serving != nil {
		p.last = serving.note
	}
	failures, pause := 0, s.pause()
	switch {
	case serving == nil || !serving.fresh:
		pause = backoff(0, s.o.Max)
	case p.long > 0:
		pause = 0
	}
	for wait.For(ctx, pause) {
		began := time.Now()
		changed, err := p.round(ctx)
		if ctx.Err() == nil {
			said(err)
		}
		if err == nil || Refused(err) {
			pause, failures = p.rest(changed, time.Since(began)), 0
			continue
		}
		pause = backoff(failures, s.o.Max)
		failures++
	}
}

// rest is how long to wait after a round that took so long. A server that says
// at once that nothing has changed does not wait for changes; and one that has
// another bundle each time shall not keep us busy.
func (p *poller) rest(changed bool, took time.Duration) time.Duration {
	switch {
	case p.long == 0 || !changed && took < p.long/2:
		return p.source.pause()
	case took < firstRetry:
		return firstRetry
	}
	return 0
}

// poller is the state of one Poll.
type poller struct {
	source *Source
	take   func(context.Context, *Copy) error
	last   note          // of the copy that was offered last
	why    error         // why that was not taken, a refusal; nil = it was
	long   time.Duration // how long the server may wait; 0 = it cannot, or need not
}

// refusal is why a copy was not taken. It is not fetched again for that.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refused reports whether an error that Poll said is that of take: the server
// has a copy, and it was not taken.
func Refused(err error) bool { return errors.As(err, new(refusal)) }

// round asks once, and reports whether there was something new.
func (p *poller) round(ctx context.Context) (changed bool, err error) {
	c, long, err := p.source.ask(ctx, p.last.ETag, p.long)
	if err != nil {
		return false, err
	}
	if c == nil {
		return false, p.why
	}
	p.long = 0
	if long {
		p.long = p.source.o.Long
	}
	same := c.note.SHA256 == p.last.SHA256
	p.last = c.note
	if same {
		return false, errors.Join(p.why, c.Drop())
	}
	if err := p.take(ctx, c); err != nil {
		p.why = refusal{err}
		return true, errors.Join(p.why, c.Drop())
	}
	p.why = nil
	return true, c.Keep()
}

// pause is a random time between Min and Max, so that many toolgates do not ask
// together.
func (s *Source) pause() time.Duration {
	return s.o.Min + time.Duration(rand.Int64N(int64(s.o.Max-s.o.Min)+1))
}

// backoff is how long to wait after so many failures before this one.
func backoff(failures int, most time.Duration) time.Duration {
	d := min(firstRetry<<min(failures, 20), most)
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1))
}
