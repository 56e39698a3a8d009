// Package page reads a page of the web for fetch_page, and turns HTML into Markdown or
// text.
//
// A server inside a network can be used to reach what only that network should: a model
// that reads a malicious page asks for http://169.254.169.254. So every connection, after
// redirects too, goes to an address that was looked up once, checked, and is the one that
// is connected to. No proxy, no cookie and no credential is used.
//
//	fetcher := page.New(page.Options{Version: "1.0"})
//	p, err := fetcher.Fetch(ctx, "https://example.org/", page.Markdown, 10_000)
package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html/charset"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/text"
)

// The formats of a page's content.
const (
	Markdown = "markdown"
	Text     = "text"
)

const (
	maxRedirects = 5
	maxBody      = 2 << 20 // bytes that are read of a page, decompressed
	maxURL       = 2048    // bytes
	maxTitle     = 300     // characters
)

// Options are the settings of a Fetcher. The tags are the members of the file of backends.
type Options struct {
	Allow   []string      `json:"allow"`   // hosts, as HOST or HOST:PORT, that may have private addresses
	Timeout time.Duration `json:"timeout"` // of one page; 0 = 15 s

	Version  string           // of toolgate, in the User-Agent
	Resolver Resolver         // nil = that of the system
	Now      func() time.Time // nil = time.Now
}

// Page is what was read.
type Page struct {
	URL         string    `json:"url"`
	FinalURL    string    `json:"final_url"` // after redirects
	Title       string    `json:"title"`
	Content     string    `json:"content"`
	Truncated   bool      `json:"truncated"` // the page has more
	ContentType string    `json:"content_type"`
	FetchedAt   time.Time `json:"fetched_at"`
	Untrusted   bool      `json:"untrusted"` // always true
}

// Failure is why a page was not read. It quotes nothing that its server sent.
type Failure string

// Error gives the text, as an error reads.
func (f Failure) Error() string { return "fetching page: " + string(f) }

// Refused gives the text for the result of the call.
func (f Failure) Refused() string { return f.Error() }

func refuse(text string) error { return Failure(text) }

// Fetcher reads pages. It is safe for concurrent use.
type Fetcher struct {
	opts   Options
	client *http.Client
}

// New returns a fetcher.
func New(opts Options) *Fetcher {
	opts.Timeout = cmp.Or(opts.Timeout, 15*time.Second)
	if opts.Resolver == nil {
		opts.Resolver = net.DefaultResolver
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	f := &Fetcher{opts: opts}
	f.client = &http.Client{
		Transport: &http.Transport{
			DialContext: f.dial, DisableKeepAlives: true, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10, TLSHandshakeTimeout: opts.Timeout,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return refuse(fmt.Sprintf("more than %d redirects", maxRedirects))
			}
			next.Header.Del("Referer")
			return checkURL(next.URL)
		},
	}
	return f
}

func checkURL(u *url.URL) error {
	switch {
	case len(u.String()) > maxURL:
		return refuse(fmt.Sprintf("the address has more than %d bytes", maxURL))
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse("only http and https addresses are read")
	case u.Hostname() == "":
		return refuse("the address has no host")
	case u.User != nil:
		return refuse("an address with a user or a password is not read")
	}
	return nil
}

// Fetch reads the page at address, and gives at most maxCharacters of its content in
// a format. An error that concerns the page is a Failure.
func (f *Fetcher) Fetch(ctx context.Context, address, format string, maxCharacters int) (Page, error) {
	u, err := url.Parse(address)
	if err != nil {
		return Page{}, refuse("the address is malformed")
	}
	if err := checkURL(u); err != nil {
		return Page{}, err
	}
	ctx, stop := context.WithTimeout(ctx, f.opts.Timeout)
	defer stop()
	res, err := f.get(ctx, f.client, u.String())
	if err != nil {
		return Page{}, err
	}
	defer res.Body.Close()
	kind, body, cut, err := read(ctx, res)
	if err != nil {
		return Page{}, err
	}
	p := Page{
		URL: address, FinalURL: res.Request.URL.String(), ContentType: kind, Truncated: cut,
		FetchedAt: f.opts.Now().UTC().Truncate(time.Second), Untrusted: true,
	}
	if p.Content = body; isHTML(kind) {
		if p.Title, p.Content, cut, err = convert(ctx, body, format, p.FinalURL); err != nil {
			return Page{}, refuse("its HTML is too deep or takes too long to read")
		}
		p.Truncated = p.Truncated || cut
	}
	content, more := first(strings.TrimSpace(text.RemoveHidden(p.Content)), maxCharacters)
	p.Content, p.Truncated = content, p.Truncated || more
	p.Title, _ = first(strings.Join(strings.Fields(text.RemoveHidden(p.Title)), " "), maxTitle)
	return p, nil
}

// first returns at most n characters of text, and whether it has more.
func first(text string, n int) (string, bool) {
	if utf8.RuneCountInString(text) <= n {
		return text, false
	}
	return string([]rune(text)[:n]), true
}

// Download reads a file of at most limit bytes, from an address that a page may have. It
// follows no redirect. An error that concerns the file is a Failure.
func (f *Fetcher) Download(ctx context.Context, address string, limit int64) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, refuse("the address is malformed")
	}
	if err := checkURL(u); err != nil {
		return nil, err
	}
	client := *f.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return refuse("its server redirects") }
	res, err := f.get(ctx, &client, u.String())
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return nil, refuse("its server sent half an answer: " + delivery.Explain(ctx, err).Error())
	case int64(len(data)) > limit:
		return nil, refuse(fmt.Sprintf("it has more than %d bytes", limit))
	}
	return data, nil
}

func (f *Fetcher) get(ctx context.Context, client *http.Client, address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, refuse("the address is malformed")
	}
	req.Header.Set("User-Agent", "toolgate/"+cmp.Or(f.opts.Version, "dev"))
	req.Header.Set("Accept", "text/html, text/markdown, text/plain, application/json;q=0.9, */*;q=0.1")
	res, err := client.Do(req)
	if failure, ok := errors.AsType[Failure](err); ok {
		return nil, failure
	}
	if err != nil {
		return nil, refuse("its server does not answer: " + delivery.Explain(ctx, err).Error())
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, refuse(fmt.Sprintf("its server answers with status %d", res.StatusCode))
	}
	return res, nil
}

func isHTML(kind string) bool { return kind == "text/html" || kind == "application/xhtml+xml" }

// read returns the media type of an answer and its text in UTF-8. cut reports that the
// answer has more than was read.
func read(ctx context.Context, res *http.Response) (kind, body string, cut bool, err error) {
	kind, _, err = mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case err != nil:
		return "", "", false, refuse("its server does not say what it is")
	case !isHTML(kind) && kind != "text/plain" && kind != "text/markdown" && kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return "", "", false, refuse("it is neither HTML nor text, Markdown or JSON")
	case res.Header.Get("Content-Encoding") != "": // net/http removes that of gzip
		return "", "", false, refuse("its server compresses in a way that was not asked for")
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return "", "", false, refuse("its server sent half an answer: " + delivery.Explain(ctx, err).Error())
	}
	raw, cut = raw[:min(len(raw), maxBody)], len(raw) > maxBody
	text, err := decode(raw, res.Header.Get("Content-Type"))
	if err != nil {
		return "", "", false, refuse("its characters are in an unknown encoding")
	}
	return kind, text, cut, nil
}

// decode returns raw in UTF-8: by a byte order mark, the charset of the media type, or
// what HTML says.
func decode(raw []byte, contentType string) (string, error) {
	encoding, _, _ := charset.DetermineEncoding(raw[:min(len(raw), 1024)], contentType)
	text, err := encoding.NewDecoder().Bytes(raw)
	if err != nil {
		return "", err
	}
	return strings.ToValidUTF8(string(text), "\ufffd"), nil
}
