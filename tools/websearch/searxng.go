package websearch

import (
	"net/url"
	"strconv"

	"github.com/toolgate/toolgate/tools/search"
)

type searxngResult struct{ Title, URL, Content, PublishedDate string }

// searxng is the JSON form of a SearXNG instance, whose settings must list json in
// search.formats. How many results a page has is up to the instance.
//
// Source: https://docs.searxng.org/dev/search_api.html
var searxng = provider{
	pages: 3,
	ask: func(q query) request {
		values := url.Values{"q": {q.text}, "format": {"json"}, "pageno": {strconv.Itoa(q.page + 1)}}
		set(values, "language", q.Locale)
		set(values, "time_range", q.Freshness)
		set(values, "safesearch", map[string]string{"off": "0", "moderate": "1", "strict": "2"}[q.SafeSearch])
		return request{path: "/search", query: values}
	},
	read: func(body []byte, _ query) ([]search.Result, error) {
		return readResults(body, func(r searxngResult) search.Result {
			return search.Result{Title: r.Title, URL: r.URL, Snippet: r.Content, PublishedAt: r.PublishedDate}
		})
	},
}

// set sets a value that is not empty.
func set(values url.Values, name, value string) {
	if value != "" {
		values.Set(name, value)
	}
}
