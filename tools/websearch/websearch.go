// Package websearch is the search of search_internet by services on the network: the
// Action API of Wikipedia, SearXNG, Brave, Tavily and Exa.
//
// A provider is two functions, in a file of its own: one writes the request of a search,
// one reads the answer. All else is the Engine's: sending, retries, pages, the cache and
// the cleaning of what others wrote.
//
//	engine, err := websearch.New(websearch.Options{Provider: "brave", APIKey: key, Version: "1.0"})
//	results, err := engine.Search(ctx, "model context protocol", 5)
//
// No error, result or log line has the key or a text of the service in it, but for
// titles, snippets and addresses of results.
package websearch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/tools/search"
	"github.com/toolgate/toolgate/tools/service"
)

// Options choose a service. The tags are the members of the file of backends.
type Options struct {
	Provider   string        `json:"provider"`
	BaseURL    string        `json:"base_url"`   // "" = that of the provider
	APIKey     string        `json:"api_key"`    // sent to BaseURL only
	Contact    string        `json:"contact"`    // of the operator, in the User-Agent
	Locale     string        `json:"locale"`     // language or language-COUNTRY; "" = as the service does
	SafeSearch string        `json:"safesearch"` // off, moderate or strict; "" = as the service does
	Freshness  string        `json:"freshness"`  // day, week, month or year; "" = any age
	Timeout    time.Duration `json:"timeout"`    // of one search; 0 = 10 s
	Cache      time.Duration `json:"cache"`      // age until which results are reused; 0 = never
	Folder     string        `json:"folder"`     // of the provider local, which is package search

	Version string           // of toolgate, in the User-Agent
	Log     io.Writer        // failures, for the operator; nil = none
	Now     func() time.Time // nil = time.Now
}

// query is one page of a search.
type query struct {
	Options
	text string
	n    int       // results that are wanted
	page int       // from 0
	now  time.Time // start of the search
}

// language and country are the parts of the locale, "" where it has none.
func (q query) language() string { l, _, _ := strings.Cut(q.Locale, "-"); return l }
func (q query) country() string  { _, c, _ := strings.Cut(q.Locale, "-"); return c }

// request is what a provider asks for.
type request struct {
	path   string // below the base address
	query  url.Values
	header map[string]string
	body   any // as JSON, by POST; nil = GET
}

// provider is the protocol of one service.
type provider struct {
	base   string // address when none is configured
	serial bool   // it wants one request at a time
	pages  int    // that one search may read
	ask    func(q query) request
	read   func(body []byte, q query) ([]search.Result, error)
}

// readResults makes a hit of each element of the member results, which must be there.
func readResults[T any](body []byte, hit func(T) search.Result) (hits []search.Result, err error) {
	var answer struct{ Results *[]T }
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Results == nil {
		return nil, errors.New("no member results")
	}
	for _, r := range *answer.Results {
		hits = append(hits, hit(r))
	}
	return hits, nil
}

var providers = map[string]provider{"brave": brave, "exa": exa, "searxng": searxng, "tavily": tavily, "wikipedia": wikipedia}

// Engine searches with one service. It is safe for concurrent use.
type Engine struct {
	provider
	opts   Options
	client *http.Client
	turn   chan struct{} // holds the request of a serial provider
	cache  *cache
	log    *log.Logger
}

// New returns the engine of a provider.
func New(opts Options) (*Engine, error) {
	p, ok := providers[opts.Provider]
	if !ok {
		return nil, fmt.Errorf("unknown search provider %q: want local, %s", opts.Provider, strings.Join(slices.Sorted(maps.Keys(providers)), ", "))
	}
	language := cmp.Or(query{Options: opts}.language(), "en")
	opts.BaseURL = strings.TrimSuffix(cmp.Or(opts.BaseURL, strings.Replace(p.base, "{language}", language, 1)), "/")
	opts.Timeout = cmp.Or(opts.Timeout, 10*time.Second)
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Engine{
		provider: p, opts: opts, client: service.NewClient(maxRedirects), turn: make(chan struct{}, 1),
		cache: newCache(opts.Cache), log: log.New(opts.Log, "search_internet: ", 0),
	}, nil
}

// Provider names the service in results.
func (e *Engine) Provider() string { return e.opts.Provider }

// Close closes idle connections.
func (e *Engine) Close() error {
	e.client.CloseIdleConnections()
	return nil
}

// Search returns the results of the service for text, best first: at most n, no page
// twice. An error that is the service's fault is a *service.Failure.
func (e *Engine) Search(ctx context.Context, text string, n int) ([]search.Result, error) {
	if n < 1 || n > search.MaxResults {
		return nil, fmt.Errorf("searching: num_results is %d, must be 1 to %d", n, search.MaxResults)
	}
	now := e.opts.Now()
	key := fmt.Sprintf("%d %s", n, text)
	if results, ok := e.cache.get(key, now); ok {
		return results, nil
	}
	ctx, stop := context.WithTimeout(ctx, e.opts.Timeout)
	defer stop()
	results, err := e.collect(ctx, query{Options: e.opts, text: text, n: n, now: now})
	if err != nil {
		e.log.Printf("provider %s: %v", e.opts.Provider, err)
		if len(results) == 0 {
			return nil, err
		}
		return results, nil // of the first pages
	}
	e.cache.put(key, results, now)
	return results, nil
}

// collect reads pages until there are enough results or a page has no new one.
func (e *Engine) collect(ctx context.Context, q query) ([]search.Result, error) {
	found, seen := make([]search.Result, 0, q.n), map[string]bool{}
	for ; q.page < max(e.pages, 1) && len(found) < q.n; q.page++ {
		hits, err := e.one(ctx, q)
		if err != nil {
			return found, err
		}
		before := len(seen)
		for _, hit := range hits {
			r, key := clean(hit, e.opts.Provider)
			if key == "" || seen[key] {
				continue
			}
			if seen[key] = true; len(found) < q.n {
				found = append(found, r)
			}
		}
		if len(seen) == before {
			break
		}
	}
	return found, nil
}
