package tools_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/tools"
	"github.com/toolgate/toolgate/tools/page"
	"github.com/toolgate/toolgate/tools/websearch"
)

// secret is the key of the search service in these tests.
const secret = "sk-very-secret-key"

// A service that answers gives results in the form of the contract; one that refuses gives a
// result that says so, and a line for the operator.
func TestSearchByAService(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Subscription-Token") != secret || r.URL.Query().Get("q") == "refuse" {
			http.Error(w, "no "+secret, http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"type":"search","web":{"results":[{"title":"<b>A</b>","url":"https://www.example.org/a","description":"one","page_age":"2026-01-02T03:04:05"}]}}`)
	}))
	defer s.Close()
	var log bytes.Buffer
	opts := tools.Options{Log: &log, Backends: tools.Backends{Search: &websearch.Options{Provider: "brave", BaseURL: s.URL, APIKey: secret}}}
	session := connect(t, opts)
	got, raw := reply(t, session, "search_internet", `{"query":"x","num_results":2.0}`)
	first := got["results"].([]any)[0].(map[string]any)
	delete(first, "id")
	want := map[string]any{
		"title": "A", "url": "https://www.example.org/a", "snippet": "one", "published_at": "2026-01-02T03:04:05Z", "source": "example.org", "provider": "brave",
	}
	if diff := cmp.Diff(want, first); diff != "" || got["provider"] != "brave" || got["untrusted"] != true || raw.IsError {
		t.Errorf("%v (-want +got):\n%s", got, diff)
	}
	refused, err := call(t, session, "search_internet", `{"query":"refuse"}`)
	if err != nil || !refused.IsError || refused.StructuredContent != nil {
		t.Fatalf("%+v, %v", refused, err)
	}
	text := refused.Content[0].(*mcp.TextContent).Text
	if text != "the search service brave refuses toolgate (status 401)" {
		t.Errorf("the result says %q", text)
	}
	if logged := log.String(); !strings.Contains(logged, "search_internet: provider brave: the search service brave refuses toolgate (status 401) (hint: check api_key") || strings.Contains(logged, secret) {
		t.Errorf("the log has %q", logged)
	}
}

func TestFetchPage(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<title>T</title><p>one <b>two</b>")
	}))
	defer s.Close()
	opts := tools.Options{Backends: tools.Backends{Fetch: &page.Options{Allow: []string{strings.TrimPrefix(s.URL, "http://")}}}}
	session := connect(t, opts)
	got, _ := reply(t, session, "fetch_page", `{"url":"`+s.URL+`"}`)
	if got["content"] != "one **two**" || got["title"] != "T" || got["untrusted"] != true || got["truncated"] != false {
		t.Errorf("got %v", got)
	}
	if got, _ = reply(t, session, "fetch_page", `{"url":"`+s.URL+`","format":"text","max_characters":3e0}`); got["content"] != "one" || got["truncated"] != true {
		t.Errorf("got %v", got)
	}
	refused, err := call(t, session, "fetch_page", `{"url":"http://169.254.169.254/latest/meta-data/"}`)
	if err != nil || !refused.IsError || !strings.Contains(refused.Content[0].(*mcp.TextContent).Text, "not on the public internet") {
		t.Errorf("%+v, %v", refused, err)
	}
	for args, want := range map[string]string{
		`{"url":"http://a","max_characters":0}`: "max_characters is 0", `{"url":"http://a","max_characters":100001}`: "max_characters is 100001",
		`{"url":"http://a","max_characters":1.5}`: "is not an integer", `{"url":"http://a","format":"html"}`: "unknown format", `{"url":"http://a","headers":{}}`: "bad arguments",
	} {
		if got, err := call(t, session, "fetch_page", args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", args, got, err)
		}
	}
}

// fetch_page is served only where the file of backends has a section for it.
func TestPagesAreReadOnlyWhenChosen(t *testing.T) {
	for name, c := range map[string]struct {
		opts tools.Options
		want int
	}{"offline": {tools.Options{}, 3}, "chosen": {tools.Options{Backends: tools.Backends{Fetch: &page.Options{}}}, 4}} {
		session := connect(t, c.opts)
		list, err := session.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != c.want {
			t.Errorf("%s: %d tools, %v", name, len(list.Tools), err)
		}
		if got, err := call(t, session, "fetch_page", `{"url":"http://169.254.169.254/"}`); (err == nil) != (c.want == 4) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// The published schema and the decoder have the same members.
func TestBackendsAreTheSchemas(t *testing.T) {
	text, err := schemas.Files.ReadFile("backends.json")
	if err != nil {
		t.Fatal(err)
	}
	type object struct {
		Properties map[string]object `json:"properties"`
	}
	var schema object
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	described, decoded := map[string]bool{}, map[string]bool{}
	for name, o := range schema.Properties {
		for member := range o.Properties {
			described[name+"."+member] = true
		}
	}
	typ := reflect.TypeFor[tools.Backends]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		for j := range f.Type.Elem().NumField() {
			if tag := f.Type.Elem().Field(j).Tag.Get("json"); tag != "" {
				decoded[f.Tag.Get("json")+"."+tag] = true
			}
		}
	}
	if diff := cmp.Diff(described, decoded); diff != "" {
		t.Errorf("(-described +decoded):\n%s", diff)
	}
}
