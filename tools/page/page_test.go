package page_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/tools/page"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// names is a resolver: the addresses of each host, one list for each look-up, the last
// one for all that follow.
type names map[string][][]netip.Addr

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	lists := n[host]
	if len(lists) == 0 {
		return nil, errors.New("no such host")
	}
	if len(lists) > 1 {
		n[host] = lists[1:]
	}
	return append([]netip.Addr{}, lists[0]...), nil
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// serve returns the server and its host:port.
func serve(t testing.TB, handler http.HandlerFunc) (*httptest.Server, string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s, strings.TrimPrefix(s.URL, "http://")
}

func port(t testing.TB, s *httptest.Server) string {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func fetcher(allow []string, resolver page.Resolver) *page.Fetcher {
	return page.New(page.Options{Allow: allow, Version: "1.2", Resolver: resolver, Now: func() time.Time { return now }})
}

// refused fetches and wants a Failure with a text.
func refused(t *testing.T, f *page.Fetcher, address, want string) {
	t.Helper()
	p, err := f.Fetch(t.Context(), address, page.Text, 1000)
	if failure, ok := errors.AsType[page.Failure](err); !ok || !strings.Contains(failure.Refused(), want) {
		t.Errorf("%s: %+v, %v; want a failure with %q", address, p, err, want)
	}
}

// Nothing but the public internet is connected to, however its address is written and
// whatever a name resolves to. Every port of this machine would answer.
func TestEgress(t *testing.T) {
	hits := 0
	s, _ := serve(t, func(http.ResponseWriter, *http.Request) { hits++ })
	port := port(t, s)
	for _, address := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255",
		"169.254.169.254", "169.254.0.1", "168.63.129.16", "192.0.0.192", "100.100.100.200", "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1",
		"224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
		"::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1", "2001::1", "2002:7f00:1::1", "3fff::1",
		"::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::7f00:1", "100::1",
	} {
		a := netip.MustParseAddr(address)
		refused(t, fetcher(nil, names{}), "http://"+netip.AddrPortFrom(a, 80).String()+"/", "is not on the public internet")
		if a.Is4In6() {
			continue // of a name, that is the form in which some resolvers give IPv4
		}
		refused(t, fetcher(nil, names{"name.example": {{a}}}), "http://name.example:"+port+"/", "is not on the public internet")
		refused(t, fetcher(nil, names{"name.example": {append(addrs("1.1.1.1"), a)}}), "http://name.example:"+port+"/", "is not on the public internet")
	}
	refused(t, fetcher(nil, names{"name.example": {addrs("::ffff:127.0.0.1")}}), "http://name.example:"+port+"/", "is not on the public internet")
	refused(t, fetcher(nil, nil), "http://localhost:"+port+"/", "is not on the public internet")
	if hits > 0 {
		t.Errorf("%d requests arrived", hits)
	}
}

func TestAddressesThatAreNotRead(t *testing.T) {
	f := fetcher(nil, names{})
	for address, want := range map[string]string{
		"file:///etc/passwd": "only http and https", "ftp://a/": "only http and https", "gopher://a": "only http and https", "": "only http and https",
		"javascript:1": "only http and https", "http://": "no host", "http:///x": "no host", "http://u:p@a/": "a user or a password", "http://u@a/": "a user or a password",
		"http://a b/": "malformed", "http://a:x/": "malformed", "http://a/" + strings.Repeat("x", 2050): "more than 2048 bytes", "http://[fe80::1%25lo]/": "not on the public internet",
		"http://unknown.example/": "no address is known",
	} {
		refused(t, f, address, want)
	}
}

// The address that was checked is the one that is connected to: a name whose next look-up
// gives another address changes nothing, and each redirect is checked again.
func TestAddressesThatChange(t *testing.T) {
	hits := 0
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		hits++
		http.Redirect(w, r, "http://rebind.example:"+r.URL.Query().Get("port")+"/secret", http.StatusFound)
	})
	port := port(t, s)
	// The first look-up gives this machine, which the operator allows for one name; the second name does not have that right.
	f := fetcher([]string{"ours.example:" + port}, names{"ours.example": {addrs("127.0.0.1")}, "rebind.example": {addrs("127.0.0.1")}})
	refused(t, f, "http://ours.example:"+port+"/?port="+port, "is not on the public internet")
	if hits != 1 {
		t.Errorf("%d requests arrived, want that before the redirect", hits)
	}
	// A host that is looked up twice, once public and then local: one look-up decides, and where it connects is what it gave.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	f = fetcher(nil, names{"rebind.example": {addrs("192.88.99.1"), addrs("127.0.0.1")}})
	if _, err := f.Fetch(ctx, "http://rebind.example:"+port+"/", page.Text, 10); err == nil || hits != 1 {
		t.Errorf("got %v after %d requests", err, hits)
	}
	look := &counted{names: names{"ours.example": {addrs("127.0.0.1"), addrs("169.254.169.254")}}}
	s2, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "ours")
	})
	f = fetcher([]string{"ours.example"}, look)
	got, err := f.Fetch(t.Context(), "http://ours.example:"+portOf(s2)+"/", page.Text, 10)
	if err != nil || got.Content != "ours" || look.n != 1 {
		t.Errorf("%+v, %v after %d look-ups", got, err, look.n)
	}
	refused(t, f, "http://ours.example:"+portOf(s2)+"/", "is not on the public internet")
}

type counted struct {
	names
	n int
}

func (c *counted) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	c.n++
	return c.names.LookupNetIP(ctx, network, host)
}

func portOf(s *httptest.Server) string { return s.URL[strings.LastIndex(s.URL, ":")+1:] }

// What an operator allows is one host, on one port where one is named, and never a
// link-local address or a metadata service.
func TestAllowedHosts(t *testing.T) {
	s, at := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "inside")
	})
	port := port(t, s)
	for _, allow := range []string{at, "127.0.0.1"} {
		if p, err := fetcher([]string{allow}, names{}).Fetch(t.Context(), s.URL, page.Text, 10); err != nil || p.Content != "inside" {
			t.Errorf("allow %s: %+v, %v", allow, p, err)
		}
	}
	for _, allow := range []string{"127.0.0.1:1", "127.0.0.2", "localhost", ""} {
		refused(t, fetcher([]string{allow}, names{}), s.URL, "is not on the public internet")
	}
	for _, a := range []string{"169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::", "100.100.100.200", "fd00:ec2::254"} {
		refused(t, fetcher([]string{"inside.example"}, names{"inside.example": {addrs(a)}}), "http://inside.example:"+port+"/", "is not on the public internet")
	}
}

func TestRedirects(t *testing.T) {
	var referer string
	s, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		referer = r.Header.Get("Referer")
		var n int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err == nil && n > 0 {
			http.Redirect(w, r, fmt.Sprintf("/%d", n-1), http.StatusFound)
			return
		}
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "end")
	})
	f := fetcher([]string{at}, names{})
	p, err := f.Fetch(t.Context(), s.URL+"/5", page.Text, 10)
	if err != nil || p.Content != "end" || p.FinalURL != s.URL+"/0" || p.URL != s.URL+"/5" || referer != "" {
		t.Errorf("%+v, %v, referer %q", p, err, referer)
	}
	refused(t, f, s.URL+"/6", "more than 5 redirects")
	for to, want := range map[string]string{
		"file:///etc/passwd": "only http and https", "http://169.254.169.254/latest/": "not on the public internet", "http://[::1]:1/": "not on the public internet",
		"http://u:p@" + at + "/": "a user or a password", "http://localhost:" + port(t, s): "no address is known",
	} {
		refused(t, f, s.URL+"/?to="+url.QueryEscape(to), want)
	}
}

func TestPages(t *testing.T) {
	type answer struct{ kind, body string }
	const article = `<html><head><title> A &amp; <b>B </title><style>x{}</style></head><body><h1>Head</h1><script>alert(1)</script>
		<p>One <a href="/two">two</a> <b>three</b>.</p><ul><li>x<li>y</ul><table><tr><th>k<th>v<tr><td>1<td>2</table><!-- hidden --></body></html>`
	for name, c := range map[string]struct {
		answer
		format, title, content string
	}{
		"markdown":       {answer{"text/html; charset=utf-8", article}, page.Markdown, "A & <b>B", "# Head\n\nOne [two](BASE/two) **three**.\n\n- x\n- y\n\nk | v\n\n1 | 2"},
		"text":           {answer{"text/html; charset=utf-8", article}, page.Text, "A & <b>B", "Head\nOne two three.\nx\ny\nk | v\n1 | 2"},
		"xhtml":          {answer{"application/xhtml+xml", "<p>x</p>"}, page.Text, "", "x"},
		"plain":          {answer{"text/plain", " <b>not HTML</b> "}, page.Markdown, "", "<b>not HTML</b>"},
		"json":           {answer{"application/json", `{"a": 1}`}, page.Markdown, "", `{"a": 1}`},
		"problem":        {answer{"application/problem+json", `{}`}, page.Markdown, "", `{}`},
		"a markdown":     {answer{"text/markdown", "# x"}, page.Text, "", "# x"},
		"latin 1":        {answer{"text/plain; charset=iso-8859-1", "caf\xe9"}, page.Text, "", "café"},
		"meta charset":   {answer{"text/html", `<meta charset="shift_jis"><p>` + "\x93\xfa\x96\x7b"}, page.Text, "", "日本"},
		"utf-16":         {answer{"text/plain", "\xff\xfea\x00b\x00"}, page.Text, "", "ab"},
		"not UTF-8":      {answer{"text/plain; charset=utf-8", "a\xffb"}, page.Text, "", "a\ufffdb"},
		"hidden letters": {answer{"text/plain", "a\x1b[31mb\u202ec\u200bd\U000e0041"}, page.Text, "", "a[31mbcd"},
	} {
		t.Run(name, func(t *testing.T) {
			s, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("User-Agent") != "toolgate/1.2" || r.Header.Get("Cookie") != "" {
					t.Errorf("asked with %v", r.Header)
				}
				w.Header().Set("Content-Type", c.kind)
				fmt.Fprint(w, c.body)
			})
			got, err := fetcher([]string{at}, names{}).Fetch(t.Context(), s.URL+"/x", c.format, 1000)
			if err != nil {
				t.Fatal(err)
			}
			kind, _, _ := strings.Cut(c.kind, ";")
			want := page.Page{URL: s.URL + "/x", FinalURL: s.URL + "/x", Title: c.title, Content: strings.ReplaceAll(c.content, "BASE", s.URL), ContentType: kind, FetchedAt: now, Untrusted: true}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestContentIsCut(t *testing.T) {
	s, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		size := 20
		if r.URL.Path == "/large" {
			size = 3 << 20
		}
		fmt.Fprint(w, strings.Repeat("é", size))
	})
	f := fetcher([]string{at}, names{})
	for n, cut := range map[int]bool{1: true, 19: true, 20: false, 21: false} {
		p, err := f.Fetch(t.Context(), s.URL, page.Text, n)
		if err != nil || utf8.RuneCountInString(p.Content) != min(n, 20) || p.Truncated != cut {
			t.Errorf("%d: %+v, %v", n, p, err)
		}
	}
	if p, err := f.Fetch(t.Context(), s.URL+"/large", page.Text, 10<<20); err != nil || !p.Truncated || len(p.Content) > 2<<20+3 {
		t.Errorf("%d bytes, truncated %v, %v", len(p.Content), p.Truncated, err)
	}
}

func TestAnswersThatAreRefused(t *testing.T) {
	const quoted = "text of the server"
	header := func(w http.ResponseWriter, pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			w.Header()[pairs[i]] = []string{pairs[i+1]}
		}
	}
	for want, answer := range map[string]http.HandlerFunc{
		"answers with status 404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, quoted, http.StatusNotFound) },
		"answers with status 204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"neither HTML nor text":   func(w http.ResponseWriter, _ *http.Request) { header(w, "Content-Type", "image/png") },
		"does not say what it is": func(w http.ResponseWriter, _ *http.Request) { header(w, "Content-Type", "") },
		"compresses in a way that was not": func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Type", "text/plain", "Content-Encoding", "br")
		},
		"sent half an answer": func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Type", "text/plain", "Content-Length", "9")
		},
		"its server does not answer":                     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"sent half an answer: it did not answer in time": func(w http.ResponseWriter, r *http.Request) { slowly(w, r) },
		"its HTML is too deep": func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Type", "text/html")
			fmt.Fprint(w, strings.Repeat("<div>", 100_000))
		},
	} {
		s, at := serve(t, answer)
		f := page.New(page.Options{Allow: []string{at}, Timeout: 500 * time.Millisecond})
		_, err := f.Fetch(t.Context(), s.URL, page.Markdown, 10)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), quoted) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// slowly sends a letter and no more until the client has gone.
func slowly(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprint(w, "x")
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// A compressed answer without end is read in part.
func TestAnswersWithoutEnd(t *testing.T) {
	s, at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("accepts %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Encoding", "gzip")
		z, err := gzip.NewWriter(w), error(nil)
		for part := make([]byte, 64<<10); err == nil; { // until the client has gone
			_, err = z.Write(part)
		}
	})
	f := page.New(page.Options{Allow: []string{at}, Timeout: 5 * time.Second})
	if p, err := f.Fetch(t.Context(), s.URL, page.Text, 1<<20); err != nil || !p.Truncated {
		t.Errorf("truncated %v, %v", p.Truncated, err)
	}
}
