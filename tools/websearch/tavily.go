package websearch

import (
	"github.com/toolgate/toolgate/tools/search"
)

type tavilyResult struct {
	Title, URL, Content string
	PublishedDate       string `json:"published_date"` // of news only
}

// tavily is the search of the Tavily API.
//
// Source: https://docs.tavily.com/documentation/api-reference/endpoint/search
var tavily = provider{
	base: "https://api.tavily.com",
	ask: func(q query) request {
		body := map[string]any{"query": q.text, "max_results": q.n, "search_depth": "basic"}
		if q.Freshness != "" {
			body["time_range"] = q.Freshness
		}
		return request{path: "/search", header: map[string]string{"Authorization": "Bearer " + q.APIKey}, body: body}
	},
	read: func(body []byte, _ query) ([]search.Result, error) {
		return readResults(body, func(r tavilyResult) search.Result {
			return search.Result{Title: r.Title, URL: r.URL, Snippet: r.Content, PublishedAt: r.PublishedDate}
		})
	},
}
