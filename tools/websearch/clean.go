package websearch

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/html"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/tools/search"
)

// Bounds of a result, in bytes.
const (
	maxTitle   = 200
	maxSnippet = 600
	maxURL     = 2048
)

// clean returns a hit as it may be shown, and the key that pages with the same address
// share. The key is "" for what is no page on the web.
func clean(hit search.Result, provider string) (r search.Result, key string) {
	u, err := url.Parse(strings.TrimSpace(hit.URL))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || len(hit.URL) > maxURL {
		return r, ""
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	u.Host = strings.ToLower(u.Host)
	site := strings.TrimPrefix(u.Host, "www.")
	key = site + strings.TrimSuffix(u.EscapedPath(), "/") + "?" + u.RawQuery
	sum := sha256.Sum256([]byte(key))
	r = search.Result{
		ID: hex.EncodeToString(sum[:8]), URL: u.String(), Source: site, Provider: provider, PublishedAt: date(hit.PublishedAt),
		Title: text.Clip(plain(hit.Title), maxTitle, "…"), Snippet: text.Clip(plain(hit.Snippet), maxSnippet, "…"),
	}
	return r, key
}

// plain returns the text in HTML on one line, without hidden characters, and without
// what a page does not show.
func plain(markup string) string {
	var b strings.Builder
	z, unseen := html.NewTokenizer(strings.NewReader(markup)), false
	for {
		switch z.Next() {
		case html.ErrorToken:
			return strings.Join(strings.Fields(text.RemoveHidden(strings.ToValidUTF8(b.String(), "\ufffd"))), " ")
		case html.TextToken:
			if !unseen {
				b.Write(z.Text())
			}
		case html.StartTagToken:
			switch name, _ := z.TagName(); string(name) {
			case "script", "style":
				unseen = true
			case "br", "p":
				b.WriteByte(' ')
			}
		case html.EndTagToken:
			unseen = false
		}
	}
}

// layouts are the forms in which services write dates.
var layouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.RFC1123, time.RFC1123Z, time.DateOnly}

// date returns a day or a time in the form of RFC 3339, "" for what is neither.
func date(text string) string {
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
		case layout == time.DateOnly:
			return text
		default:
			return t.UTC().Format(time.RFC3339)
		}
	}
	return ""
}
