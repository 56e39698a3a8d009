package websearch

import (
	"strings"
	"time"

	"github.com/toolgate/toolgate/tools/search"
)

// days is how far back a freshness reaches.
var days = map[string]int{"day": 1, "week": 7, "month": 31, "year": 366}

type exaResult struct {
	Title, URL, PublishedDate string
	Highlights                []string
}

// exa is the search of the Exa API, with the highlights of each page as its snippet. Its
// moderation has one level, which both moderate and strict switch on.
//
// Source: https://docs.exa.ai/reference/search
var exa = provider{
	base: "https://api.exa.ai",
	ask: func(q query) request {
		body := map[string]any{"query": q.text, "numResults": q.n, "contents": map[string]any{"highlights": true}}
		if back := days[q.Freshness]; back > 0 {
			body["startPublishedDate"] = q.now.UTC().AddDate(0, 0, -back).Format(time.RFC3339)
		}
		if country := q.country(); country != "" {
			body["userLocation"] = country
		}
		if q.SafeSearch != "" {
			body["moderation"] = q.SafeSearch != "off"
		}
		return request{path: "/search", header: map[string]string{"x-api-key": q.APIKey}, body: body}
	},
	read: func(body []byte, _ query) ([]search.Result, error) {
		return readResults(body, func(r exaResult) search.Result {
			return search.Result{Title: r.Title, URL: r.URL, Snippet: strings.Join(r.Highlights, " … "), PublishedAt: r.PublishedDate}
		})
	},
}
