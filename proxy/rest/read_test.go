package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/registry"
)

// nobody is a gate that takes everybody for an empty principal.
type nobody struct{ *gate }

func (nobody) Identify(context.Context, identity.Credential) (policy.Principal, *proxy.Failure) {
	return policy.Principal{}, nil
}

// names gives the tools in the answer.
func (a answer) names(t *testing.T) []string {
	t.Helper()
	var list struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		t.Fatalf("status %d: %v: %s", a.status, err, a.body)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// TestTools: everybody sees what it may call, and a filter shows no more.
func TestTools(t *testing.T) {
	d := open(t, nil)
	most := []string{"demo__echo", "demo__wait", "demo__fails", "demo__held", "demo__denied", "demo__limited"}
	for _, tt := range []struct {
		who, query string
		want       []string
	}{
		{"alice", "", most},
		{"bob", "", append(most[:6:6], "demo__secret")},
		{"alice", "?name=demo__echo", []string{"demo__echo"}},
		{"alice", "?name=echo", nil},
		{"alice", "?name=", nil},
		{"alice", "?name=demo__secret", nil},
		{"bob", "?name=demo__secret", []string{"demo__secret"}},
		{"alice", "?name=demo__broken", nil}, // gone since it was listed
	} {
		got := d.do(tt.who, http.MethodGet, "/v1/tools"+tt.query, "")
		if diff := cmp.Diff(tt.want, got.names(t)); diff != "" {
			t.Errorf("%s, %q (-want +got):\n%s", tt.who, tt.query, diff)
		}
	}
	for _, query := range []string{"?server=demo", "?name=a&name=b", "?Name=demo__echo", "?name=a;b", "?name=%zz"} {
		if got := d.do("alice", http.MethodGet, "/v1/tools"+query, ""); got.status != 400 || got.text("/code") != "BAD_QUERY" {
			t.Errorf("%q: status %d: %s", query, got.status, got.body)
		}
	}
}

// TestTool: one tool whole.
func TestTool(t *testing.T) {
	d := open(t, nil)
	got := d.do("alice", http.MethodGet, "/v1/tools?name=demo__echo", "")
	const want = `{"tools":[{"name":"demo__echo","server":"demo","tool":"echo","title":"Echo","description":"Says \"it\" again","risk":"low",` +
		`"annotations":{},"fingerprint":"sha256:echo","input_schema":` + anyInput + `,"output_schema":{"type":"object","properties":{"said":{}}}}]}`
	if diff := cmp.Diff(want, got.body); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	bare := d.do("alice", http.MethodGet, "/v1/tools?name=demo__wait", "")
	if !strings.Contains(bare.body, `"description":"",`) || !strings.Contains(bare.body, `"output_schema":{"type":"object"}`) || strings.Contains(bare.body, "title") {
		t.Errorf("a tool that says little: %s", bare.body)
	}
}

// TestToolsFail closed.
func TestToolsFail(t *testing.T) {
	d := open(t, func(_ *gate, o *rest.Options) {
		o.ToolIO = func(string) (*registry.ToolIO, error) { return nil, errors.New("planted") }
	})
	if got := d.do("alice", http.MethodGet, "/v1/tools", ""); got.status != 500 || strings.Contains(got.body, "planted") || strings.Contains(got.body, "demo__") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
}

// put stores text for who and gives its path.
func (d *door) put(who policy.Principal, media, text string) (artifact.Artifact, string) {
	d.t.Helper()
	a, err := d.store().Put(context.Background(), who, media, []byte(text))
	if err != nil {
		d.t.Fatal(err)
	}
	return a, "/v1/artifacts/" + a.ID
}

// TestArtifact: bytes, ranges and conditions as RFC 9110 has them.
func TestArtifact(t *testing.T) {
	d := open(t, nil)
	a, path := d.put(alice, "text/plain", "0123456789")
	etag := `"` + a.ID + `"`
	for _, tt := range []struct {
		name, method, header string
		status               int
		body                 string
	}{
		{"whole", "GET", "X: y", 200, "0123456789"},
		{"head", "HEAD", "X: y", 200, ""},
		{"a range", "GET", "Range: bytes=2-4", 206, "234"},
		{"the end", "GET", "Range: bytes=-3", 206, "789"},
		{"head of a range", "HEAD", "Range: bytes=2-4", 206, ""},
		{"behind the end", "GET", "Range: bytes=10-", 416, ""},
		{"no range", "GET", "Range: bytes=4-2", 416, ""},
		{"another unit", "GET", "Range: lines=1-2", 416, ""},
		{"unchanged", "GET", "If-None-Match: " + etag, 304, ""},
		{"changed", "GET", `If-None-Match: "sha256:0"`, 200, "0123456789"},
		{"still this", "GET", "If-Match: " + etag, 200, "0123456789"},
		{"not this", "GET", `If-Match: "sha256:0"`, 412, ""},
	} {
		got := d.do("alice", tt.method, path, "", tt.header)
		if got.status != tt.status || tt.status < 300 && got.body != tt.body {
			t.Errorf("%s: status %d, body %q, want %d, %q", tt.name, got.status, got.body, tt.status, tt.body)
		}
		if tt.status < 300 && (got.head.Get("Etag") != etag || got.head.Get("Accept-Ranges") != "bytes") {
			t.Errorf("%s: headers %v", tt.name, got.head)
		}
		if tt.status == 416 && (got.text("/code") != "RANGE_NOT_SATISFIABLE" || got.head.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %s %s", tt.name, got.head.Get("Content-Type"), got.body)
		}
	}
	parts := d.do("alice", "GET", path, "", "Range: bytes=0-1,4-5")
	if parts.status != 206 || !strings.HasPrefix(parts.head.Get("Content-Type"), "multipart/byteranges") || !strings.Contains(parts.body, "45") {
		t.Errorf("two ranges: status %d, %s", parts.status, parts.head.Get("Content-Type"))
	}
	escaped := d.do("alice", "GET", strings.Replace(path, ":", "%3A", 1), "")
	if escaped.status != 200 {
		t.Errorf("with its colon escaped: status %d", escaped.status)
	}
}

// TestArtifactsAreInert: nothing that a tool stores runs in a browser.
func TestArtifactsAreInert(t *testing.T) {
	d := open(t, nil)
	for media, want := range map[string]string{
		"text/html": "text/html", "image/svg+xml": "image/svg+xml", "text/javascript": "text/javascript",
		"": "application/octet-stream", "html": "application/octet-stream", "text/html\r\nX-Evil: 1": "application/octet-stream",
	} {
		_, path := d.put(alice, media, "<script>alert(1)</script>"+media)
		got := d.do("alice", http.MethodGet, path, "")
		for name, value := range map[string]string{
			"Content-Type": want, "Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff", "X-Evil": "",
			"Content-Security-Policy": "sandbox; default-src 'none'", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "private, no-cache",
		} {
			if got.head.Get(name) != value {
				t.Errorf("stored as %q: %s is %q, want %q", media, name, got.head.Get(name), value)
			}
		}
	}
}

// untyped is a store that has lost the media types.
type untyped struct{ *gate }

func (u untyped) Get(ctx context.Context, who policy.Principal, id string) (artifact.Artifact, *os.File, error) {
	a, file, err := u.gate.Get(ctx, who, id)
	a.Type = ""
	return a, file, err
}

// TestNothingIsGuessed: bytes without a media type have none.
func TestNothingIsGuessed(t *testing.T) {
	d := open(t, func(g *gate, o *rest.Options) { o.Artifacts = untyped{g} })
	_, path := d.put(alice, "text/html", "<html><script>alert(1)</script>")
	if got := d.do("alice", http.MethodGet, path, ""); got.status != 200 || got.head.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("status %d, Content-Type %q", got.status, got.head.Get("Content-Type"))
	}
}

// TestNobodyElsesArtifacts: what was not granted does not exist, nor does what
// was never there; nobody can tell which.
func TestNobodyElsesArtifacts(t *testing.T) {
	d := open(t, nil)
	_, path := d.put(alice, "text/plain", "alice's")
	if got := d.do("alice", http.MethodGet, path, ""); got.status != 200 {
		t.Fatalf("alice: status %d", got.status)
	}
	hidden := d.do("bob", http.MethodGet, path, "")
	absent := d.do("bob", http.MethodGet, anyArtifact, "")
	if hidden.status != 404 || hidden.body != absent.body || absent.status != 404 {
		t.Errorf("hidden: %d %s, absent: %d %s", hidden.status, hidden.body, absent.status, absent.body)
	}
	for _, name := range []string{"Date", "Content-Length"} {
		hidden.head.Del(name)
		absent.head.Del(name)
	}
	if diff := cmp.Diff(absent.head, hidden.head); diff != "" {
		t.Errorf("headers tell them apart:\n%s", diff)
	}
	if got := d.do("bob", http.MethodGet, path, "", "If-None-Match: *"); got.status != 404 {
		t.Errorf("a condition tells: status %d", got.status)
	}
	d.put(bob, "text/plain", "alice's")
	if got := d.do("bob", http.MethodGet, path, ""); got.status != 200 {
		t.Errorf("the same bytes, his own: status %d", got.status)
	}
	if got := d.do("carol", http.MethodGet, path, ""); got.status != 500 || strings.Contains(got.body, "planted") {
		t.Errorf("a broken disk: status %d: %s", got.status, got.body)
	}
}
