package websearch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/tools/search"
	services "github.com/toolgate/toolgate/tools/service"
	"github.com/toolgate/toolgate/tools/websearch"
)

// secret is the key of every engine in these tests, and must be in no result, log or error.
const secret = "sk-very-secret-key"

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// service is a server that answers as a test says, and keeps what it was asked.
type service struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	heads []http.Header
}

func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, nth int)) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		nth := len(s.asked)
		s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+string(body)))
		s.heads = append(s.heads, r.Header)
		s.mu.Unlock()
		answer(w, r, nth)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.asked...)
}

// engine returns an engine and what it logs.
func engine(t *testing.T, opts websearch.Options) (*websearch.Engine, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	opts.APIKey, opts.Version, opts.Log = secret, "1.2", &log
	if opts.Now == nil {
		opts.Now = func() time.Time { return now }
	}
	e, err := websearch.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has the key: %s", log.String())
		}
	})
	return e, &log
}

// protocol is what a provider asks for the query "go & mcp" with 2 results, and an answer
// in the form of its API.
type protocol struct {
	name    string
	opts    websearch.Options
	request string
	header  map[string]string
	answer  string
	want    []search.Result
}

var protocols = []protocol{
	{
		name: "wikipedia", opts: websearch.Options{Contact: "ops@example.org", Locale: "de"},
		request: "GET /w/api.php?action=query&format=json&formatversion=2&list=search&srlimit=2&sroffset=0&srprop=snippet&srsearch=go+%26+mcp",
		header:  map[string]string{"User-Agent": "toolgate/1.2 (ops@example.org)", "Accept": "application/json"},
		answer: `{"batchcomplete":true,"continue":{"sroffset":2,"continue":"-||"},"query":{"searchinfo":{"totalhits":25},"search":[
			{"ns":0,"title":"Go (Programmiersprache)","pageid":1,"snippet":"<span class=\"searchmatch\">Go</span> ist &quot;schnell&quot; &amp; klein"},
			{"ns":0,"title":"AC/DC?","pageid":2,"snippet":""}]}}`,
		want: []search.Result{
			{Title: "Go (Programmiersprache)", URL: "BASE/wiki/Go_%28Programmiersprache%29", Snippet: `Go ist "schnell" & klein`},
			{Title: "AC/DC?", URL: "BASE/wiki/AC%2FDC%3F"},
		},
	},
	{
		name: "searxng", opts: websearch.Options{Locale: "en-GB", SafeSearch: "strict", Freshness: "week"},
		request: "GET /search?format=json&language=en-GB&pageno=1&q=go+%26+mcp&safesearch=2&time_range=week",
		header:  map[string]string{"User-Agent": "toolgate/1.2"},
		answer: `{"query":"go & mcp","number_of_results":0,"results":[
			{"url":"https://www.example.org/a","title":"A","content":"first","publishedDate":"2026-01-02T03:04:05","engine":"x","engines":["x"],"score":4.0,"category":"general"},
			{"url":"https://example.net/b","title":"B","content":"second","publishedDate":null}],"answers":[],"unresponsive_engines":[["y","timeout"]]}`,
		want: []search.Result{
			{Title: "A", URL: "https://www.example.org/a", Snippet: "first", Source: "example.org", PublishedAt: "2026-01-02T03:04:05Z"},
			{Title: "B", URL: "https://example.net/b", Snippet: "second", Source: "example.net"},
		},
	},
	{
		name: "brave", opts: websearch.Options{Locale: "en-GB", SafeSearch: "moderate", Freshness: "month"},
		request: "GET /res/v1/web/search?count=2&country=GB&freshness=pm&q=go+%26+mcp&result_filter=web&safesearch=moderate&search_lang=en&text_decorations=false",
		header:  map[string]string{"X-Subscription-Token": secret},
		answer: `{"type":"search","query":{"original":"go & mcp","more_results_available":true},"web":{"type":"search","results":[
			{"title":"A &#x27;quoted&#x27;","url":"https://example.org/a","description":"<strong>go</strong> one","page_age":"2023-08-03T10:16:15","age":"August 3, 2023"},
			{"title":"B","url":"https://example.org/b","description":"two"}],"family_friendly":true}}`,
		want: []search.Result{
			{Title: "A 'quoted'", URL: "https://example.org/a", Snippet: "go one", Source: "example.org", PublishedAt: "2023-08-03T10:16:15Z"},
			{Title: "B", URL: "https://example.org/b", Snippet: "two", Source: "example.org"},
		},
	},
	{
		name: "tavily", opts: websearch.Options{Freshness: "year"},
		request: `POST /search {"max_results":2,"query":"go \u0026 mcp","search_depth":"basic","time_range":"year"}`,
		header:  map[string]string{"Authorization": "Bearer " + secret, "Content-Type": "application/json"},
		answer: `{"query":"go & mcp","answer":null,"images":[],"results":[
			{"title":"A","url":"https://example.org/a","content":"one","score":0.9,"raw_content":null,"published_date":"Thu, 14 Nov 2024 08:00:00 GMT"},
			{"title":"B","url":"https://example.org/b","content":"two","score":0.8}],"response_time":1.09}`,
		want: []search.Result{
			{Title: "A", URL: "https://example.org/a", Snippet: "one", Source: "example.org", PublishedAt: "2024-11-14T08:00:00Z"},
			{Title: "B", URL: "https://example.org/b", Snippet: "two", Source: "example.org"},
		},
	},
	{
		name: "exa", opts: websearch.Options{Locale: "en-GB", SafeSearch: "off", Freshness: "week"},
		request: `POST /search {"contents":{"highlights":true},"moderation":false,"numResults":2,"query":"go \u0026 mcp","startPublishedDate":"2026-11-17T12:00:00Z","userLocation":"GB"}`,
		header:  map[string]string{"X-Api-Key": secret},
		answer: `{"requestId":"r","resolvedSearchType":"neural","results":[
			{"id":"https://example.org/a","title":"A","url":"https://example.org/a","publishedDate":"2023-11-16T01:36:32.547Z","author":"x","highlights":["one","more"],"highlightScores":[0.4,0.3]},
			{"id":"https://example.org/b","title":null,"url":"https://example.org/b","publishedDate":null}],"costDollars":{"total":0.005}}`,
		want: []search.Result{
			{Title: "A", URL: "https://example.org/a", Snippet: "one … more", Source: "example.org", PublishedAt: "2023-11-16T01:36:32Z"},
			{URL: "https://example.org/b", Source: "example.org"},
		},
	},
}

func each(t *testing.T, do func(t *testing.T, p protocol)) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			p.opts.Provider = p.name
			do(t, p)
		})
	}
}

func TestEachProviderIsAskedInItsProtocol(t *testing.T) {
	each(t, func(t *testing.T, p protocol) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { fmt.Fprint(w, p.answer) })
		p.opts.BaseURL = s.URL + "/"
		e, _ := engine(t, p.opts)
		got, err := e.Search(t.Context(), "go & mcp", 2)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{p.request}, s.requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		for name, want := range p.header {
			if got := s.heads[0].Get(name); got != want {
				t.Errorf("header %s is %q, want %q", name, got, want)
			}
		}
		for i, r := range got {
			if r.ID == "" || r.Provider != p.name {
				t.Errorf("result %d has id %q and provider %q", i, r.ID, r.Provider)
			}
			got[i].ID, got[i].Provider, got[i].URL = "", "", strings.Replace(r.URL, s.URL, "BASE", 1)
			if p.name == "wikipedia" {
				got[i].Source = ""
			}
		}
		if diff := cmp.Diff(p.want, got); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

// Whatever a service answers, the failure names it and what to do, and quotes neither
// the key nor the service. The log has the same, and a hint for the operator.
func TestFailures(t *testing.T) {
	const quoted = "text of the service"
	status := func(code int, header ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			fmt.Fprint(w, quoted, secret)
		}
	}
	for name, c := range map[string]struct {
		answer    func(http.ResponseWriter)
		want, log string
	}{
		"no such key":       {status(401), "refuses toolgate (status 401)", "check api_key"},
		"not paid":          {status(402), "refuses toolgate (status 402)", "check api_key"},
		"forbidden":         {status(403), "refuses toolgate (status 403)", "check api_key"},
		"limit":             {status(429, "Retry-After", "30"), "limits requests; try again in 30s", ""},
		"limit until":       {status(429, "Retry-After", now.Add(90*time.Second).Format(http.TimeFormat)), "limits requests; try again in 1m30s", ""},
		"limit of brave":    {status(429, "X-RateLimit-Reset", "1, 1419704"), "limits requests; try again in 1s", ""},
		"limit without end": {status(429, "Retry-After", "99999999999"), "limits requests; try again later", ""},
		"long limit":        {status(429, "Retry-After", "999999"), "limits requests; try again in 24h0m0s", ""},
		"broken":            {status(500), "is out of order (status 500)", ""},
		"busy":              {status(503, "Retry-After", "5"), "is out of order (status 503); try again in 5s", ""},
		"bad request":       {status(422), "does not accept the search (status 422)", "check api_key"},
		"plan used up":      {status(432), "refuses toolgate (status 432)", "check api_key"},
		"no JSON":           {func(w http.ResponseWriter) { fmt.Fprint(w, "<html>", quoted) }, "sent an answer that cannot be read", ""},
		"half JSON":         {func(w http.ResponseWriter) { fmt.Fprint(w, `{"results":[{"title":"`, quoted) }, "sent an answer that cannot be read", ""},
		"another shape":     {func(w http.ResponseWriter) { fmt.Fprint(w, `{"results":{"title":"x"},"web":[],"query":[]}`) }, "sent an answer that cannot be read", ""},
		"too large":         {func(w http.ResponseWriter) { fmt.Fprint(w, `{"x":"`, strings.Repeat("x", 2<<20), `"}`) }, "sent an answer of more than 2097152 bytes", ""},
		"half an answer": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		}, "sent half an answer", ""},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, p protocol) {
				s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { c.answer(w) })
				p.opts.BaseURL = s.URL
				e, log := engine(t, p.opts)
				got, err := e.Search(t.Context(), "x", 3)
				f, ok := errors.AsType[*services.Failure](err)
				if !ok || !strings.Contains(f.Refused(), "the search service "+p.name+" "+c.want) {
					t.Fatalf("got %v, %v; want %q", got, err, c.want)
				}
				for _, text := range []string{err.Error(), log.String()} {
					if strings.Contains(text, quoted) || strings.Contains(text, secret) || strings.Contains(text, s.URL) {
						t.Errorf("quotes too much: %s", text)
					}
				}
				if !strings.Contains(log.String(), c.want) || !strings.Contains(log.String(), c.log) || strings.Contains(f.Refused(), "hint") {
					t.Errorf("log %q, failure %q", log.String(), f.Refused())
				}
			})
		})
	}
}

// Only a GET is repeated, once, after a failure of a gateway.
func TestRetries(t *testing.T) {
	for _, status := range []int{401, 429, 500, 502, 503, 504} {
		each(t, func(t *testing.T, p protocol) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, nth int) {
				if nth == 0 {
					w.WriteHeader(status)
					return
				}
				fmt.Fprint(w, p.answer)
			})
			p.opts.BaseURL = s.URL
			e, _ := engine(t, p.opts)
			_, err := e.Search(t.Context(), "x", 2)
			again := status > 500 && p.name != "tavily" && p.name != "exa"
			if n := len(s.requests()); again != (err == nil) || again != (n == 2) {
				t.Errorf("status %d: %d requests, %v", status, n, err)
			}
		})
	}
}

// A connection that ends before an answer is tried once more, and twice is enough.
func TestConnectionsThatEnd(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) })
	for provider, most := range map[string]int{"brave": 2, "exa": 1} {
		before := len(s.requests())
		e, _ := engine(t, websearch.Options{Provider: provider, BaseURL: s.URL})
		if _, err := e.Search(t.Context(), "x", 2); err == nil || len(s.requests())-before > most {
			t.Errorf("%s: %d requests, %v", provider, len(s.requests())-before, err)
		}
	}
}

func TestSlowServices(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	each(t, func(t *testing.T, p protocol) {
		p.opts.BaseURL, p.opts.Timeout = s.URL, 50*time.Millisecond
		e, _ := engine(t, p.opts)
		if _, err := e.Search(t.Context(), "x", 2); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("got %v", err)
		}
	})
}

// A redirect to another host would carry the key there.
func TestKeysDoNotTravel(t *testing.T) {
	other := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		fmt.Fprint(w, `{"type":"search","results":[],"query":{"search":[]}}`)
	})
	each(t, func(t *testing.T, p protocol) {
		for _, status := range []int{301, 302, 303, 307, 308} {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Location", other.URL+"/"+secret)
				w.WriteHeader(status)
			})
			p.opts.BaseURL = s.URL
			e, _ := engine(t, p.opts)
			if _, err := e.Search(t.Context(), "x", 2); err == nil || !strings.Contains(err.Error(), "redirects to another host") || strings.Contains(err.Error(), secret) {
				t.Errorf("status %d: got %v", status, err)
			}
		}
	})
	if got := other.requests(); len(got) > 0 {
		t.Errorf("the other host was asked: %v %v", got, other.heads)
	}
}

// searxngPage is an answer of SearXNG with pages at addresses.
func searxngPage(w io.Writer, addresses ...string) {
	type result struct {
		URL     string `json:"url"`
		Title   string `json:"title"`
		Content string `json:"content"`
	}
	results := []result{}
	for _, a := range addresses {
		results = append(results, result{a, "title", "content"})
	}
	text, err := json.Marshal(map[string]any{"results": results})
	if err != nil {
		panic(err)
	}
	w.Write(text)
}

func TestPages(t *testing.T) {
	for name, c := range map[string]struct {
		pages [][]string
		asked int
		want  string
	}{
		"enough on one":  {[][]string{{"http://a/1", "http://a/2", "http://a/3", "http://a/4", "http://a/5"}}, 1, "1 2 3 4"},
		"two":            {[][]string{{"http://a/1", "http://a/2"}, {"http://a/3", "http://a/4"}}, 2, "1 2 3 4"},
		"the same again": {[][]string{{"http://a/1", "http://a/2"}, {"http://a/1", "http://a/2/"}}, 2, "1 2"},
		"an end":         {[][]string{{"http://a/1"}, {}}, 2, "1"},
		"nothing":        {[][]string{{}}, 1, ""},
		"most":           {[][]string{{"http://a/1"}, {"http://a/2"}, {"http://a/3"}, {"http://a/4"}}, 3, "1 2 3"},
		"one page twice": {[][]string{{"http://a/1", "https://www.a/1#x", "http://A/1/", "http://u:p@a/1", "http://a/1?q"}, {}}, 2, "1 1?q"},
		"no pages":       {[][]string{{"file:///etc/passwd", "ftp://a/x", "javascript:alert(1)", "http:///x", "x", "", "http://a/" + strings.Repeat("x", 3000)}}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, nth int) { searxngPage(w, c.pages[nth]...) })
			e, _ := engine(t, websearch.Options{Provider: "searxng", BaseURL: s.URL})
			got, err := e.Search(t.Context(), "x", 4)
			var paths []string
			for _, r := range got {
				paths = append(paths, strings.TrimPrefix(r.URL, "http://a/"))
			}
			if err != nil || strings.Join(paths, " ") != c.want || len(s.requests()) != c.asked {
				t.Errorf("got %v, %v after %v", paths, err, s.requests())
			}
		})
	}
}

// A page that fails after others leaves their results.
func TestALaterPageFails(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, nth int) {
		if nth > 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		searxngPage(w, "http://a/1")
	})
	e, log := engine(t, websearch.Options{Provider: "searxng", BaseURL: s.URL, Cache: time.Hour})
	got, err := e.Search(t.Context(), "x", 4)
	if err != nil || len(got) != 1 || !strings.Contains(log.String(), "limits requests") {
		t.Errorf("got %v, %v; log %s", got, err, log)
	}
	if _, err := e.Search(t.Context(), "x", 4); err == nil {
		t.Error("half a search was kept in the cache")
	}
}

// Wikipedia asks for one request after the other: a second one waits, here for too long.
func TestWikipediaIsAskedSerially(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, nth int) {
		if nth == 0 {
			close(arrived)
			<-release
		}
		fmt.Fprint(w, `{"query":{"search":[]}}`)
	})
	e, _ := engine(t, websearch.Options{Provider: "wikipedia", BaseURL: s.URL, Timeout: time.Minute})
	first := make(chan error, 1)
	go func() {
		_, err := e.Search(t.Context(), "first", 2)
		first <- err
	}()
	<-arrived
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := e.Search(ctx, "second", 2); err == nil || !strings.Contains(err.Error(), "did not answer in time") || len(s.requests()) != 1 {
		t.Errorf("got %v after %v", err, s.requests())
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if _, err := e.Search(t.Context(), "third", 2); err != nil {
		t.Error(err)
	}
}

func TestWikipediaErrors(t *testing.T) {
	for code, want := range map[string]string{"ratelimited": "limits requests", "maxlag": "limits requests", "srsearch-error": "does not accept"} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			fmt.Fprintf(w, `{"error":{"code":%q,"info":"text"}}`, code)
		})
		e, _ := engine(t, websearch.Options{Provider: "wikipedia", BaseURL: s.URL})
		if _, err := e.Search(t.Context(), "x", 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestCache(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { searxngPage(w, "http://a/1", "http://a/2") })
	at := now
	e, _ := engine(t, websearch.Options{Provider: "searxng", BaseURL: s.URL, Cache: time.Minute, Now: func() time.Time { return at }})
	asked := func(text string, n, want int) {
		t.Helper()
		got, err := e.Search(t.Context(), text, n)
		if err != nil || len(got) != n || len(s.requests()) != want {
			t.Errorf("%d results, %v, %d requests, want %d", len(got), err, len(s.requests()), want)
		}
		got[0].Title = "changed by the caller"
	}
	asked("x", 2, 1)
	asked("x", 2, 1)
	asked("x", 1, 2) // another number is another search
	asked("y", 2, 3)
	at = at.Add(time.Minute - 1)
	asked("x", 2, 3)
	at = at.Add(1)
	asked("x", 2, 4)
	asked("x", 2, 4)
	if got, _ := e.Search(t.Context(), "x", 2); got[0].Title != "title" {
		t.Errorf("the cache gave away its own results: %v", got[0])
	}
}

func TestTextsAreCleaned(t *testing.T) {
	for markup, want := range map[string]string{
		"a <b>bold</b> word":                       "a bold word",
		"<script>alert(1)</script>seen":            "seen",
		"<style>x{}</style>a<br>b<p>c":             "a b c",
		"1 &lt; 2 &amp;&amp; 3 &gt; 2":             "1 < 2 && 3 > 2",
		"a\x1b[31mred\x07\u202e\u200b z":           "a[31mred z",
		"<!-- hidden -->x":                         "x",
		"<img src=x onerror=alert(1)>pic":          "pic",
		"  many \n\t spaces ":                      "many spaces",
		"broken <a href=":                          "broken",
		"\xff\xfe":                                 "\ufffd\ufffd",
		strings.Repeat("é", 400):                   strings.Repeat("é", 300) + "…",
		"x\U000e0041\U000e0042\U000e0043 tag text": "x tag text",
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			text, err := json.Marshal(map[string]any{"results": []any{map[string]any{"url": "http://a/", "title": "t", "content": markup}}})
			if err != nil {
				t.Error(err)
			}
			w.Write(text)
		})
		e, _ := engine(t, websearch.Options{Provider: "searxng", BaseURL: s.URL})
		got, err := e.Search(t.Context(), "x", 1)
		if err != nil || len(got) != 1 || got[0].Snippet != want {
			t.Errorf("%q: %+v, %v; want %q", markup, got, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, provider := range []string{"", "local", "google"} {
		if e, err := websearch.New(websearch.Options{Provider: provider, APIKey: secret}); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v, %v", provider, e, err)
		}
	}
	e, _ := engine(t, websearch.Options{Provider: "brave"})
	for _, n := range []int{0, -1, 11} {
		if _, err := e.Search(t.Context(), "x", n); err == nil || !strings.Contains(err.Error(), "num_results is") {
			t.Errorf("%d results: %v", n, err)
		}
	}
}
