package websearch

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"

	"github.com/toolgate/toolgate/tools/search"
)

// brave is the web search of the Brave Search API. offset counts pages of count results.
//
// Source: https://api-dashboard.search.brave.com/app/documentation/web-search/query
var brave = provider{
	base: "https://api.search.brave.com", pages: 2,
	ask: func(q query) request {
		values := url.Values{"q": {q.text}, "count": {strconv.Itoa(q.n)}, "result_filter": {"web"}, "text_decorations": {"false"}}
		if q.page > 0 {
			values.Set("offset", strconv.Itoa(q.page))
		}
		set(values, "search_lang", q.language())
		set(values, "country", q.country())
		set(values, "safesearch", q.SafeSearch)
		set(values, "freshness", map[string]string{"day": "pd", "week": "pw", "month": "pm", "year": "py"}[q.Freshness])
		return request{path: "/res/v1/web/search", query: values, header: map[string]string{"X-Subscription-Token": q.APIKey}}
	},
	read: func(body []byte, _ query) (hits []search.Result, err error) {
		var answer struct {
			Type string
			Web  struct {
				Results []struct {
					Title, URL, Description string
					PageAge                 string `json:"page_age"`
				}
			}
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, err
		}
		if answer.Type != "search" {
			return nil, errors.New("no search answer")
		}
		for _, r := range answer.Web.Results {
			hits = append(hits, search.Result{Title: r.Title, URL: r.URL, Snippet: r.Description, PublishedAt: r.PageAge})
		}
		return hits, nil
	},
}
