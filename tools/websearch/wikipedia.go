package websearch

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/tools/search"
	"github.com/toolgate/toolgate/tools/service"
)

// wikipedia is the Action API of MediaWiki, list=search. Wikimedia asks for requests one
// after the other, and for a User-Agent with a contact.
//
// Source: https://www.mediawiki.org/wiki/API:Search and API:Etiquette
var wikipedia = provider{
	base: "https://{language}.wikipedia.org", serial: true, pages: 2,
	ask: func(q query) request {
		return request{path: "/w/api.php", query: url.Values{
			"action": {"query"}, "list": {"search"}, "format": {"json"}, "formatversion": {"2"}, "srsearch": {q.text},
			"srprop": {"snippet"}, "srlimit": {strconv.Itoa(q.n)}, "sroffset": {strconv.Itoa(q.page * q.n)},
		}}
	},
	read: func(body []byte, q query) (hits []search.Result, err error) {
		var answer struct {
			Error *struct{ Code string }
			Query *struct {
				Search []struct{ Title, Snippet string }
			}
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return nil, err
		}
		switch {
		case answer.Error != nil && (answer.Error.Code == "ratelimited" || answer.Error.Code == "maxlag"):
			return nil, &service.Failure{Text: "limits requests; try again later"}
		case answer.Error != nil || answer.Query == nil:
			return nil, &service.Failure{Text: "does not accept the search"}
		}
		for _, page := range answer.Query.Search {
			address := q.BaseURL + "/wiki/" + url.PathEscape(strings.ReplaceAll(page.Title, " ", "_"))
			hits = append(hits, search.Result{Title: page.Title, URL: address, Snippet: page.Snippet})
		}
		return hits, nil
	},
}
