package mcp_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// modernMeta is what a client without a session says of itself.
const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"roots":{}}}`

// sessionless makes a request of who without a session; members are those of
// params but for _meta, "" for none.
func sessionless(who, path, method, members string) *http.Request {
	params := `{` + modernMeta + `}`
	if members != "" {
		params = `{` + members + `,` + modernMeta + `}`
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	req := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	standardHeaders(req, who)
	req.Header.Set("MCP-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", method)
	var named struct{ Name, URI, TaskID string }
	if json.Unmarshal([]byte(params), &named) == nil {
		for _, name := range []string{named.TaskID, named.URI, named.Name} {
			if name != "" {
				req.Header.Set("Mcp-Name", name)
			}
		}
	}
	return req
}

// serve gives the answer of d to req.
func serve(d *mcp.Door, req *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, req)
	return rec
}

// region is a tool whose arguments have headers. Some annotations are none: of
// a number, of no token, out of reach.
var region = &registry.Tool{Server: "demo", Name: "région", Exposed: "demo__région", Definition: json.RawMessage(`{"name":"région","inputSchema":{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},
	"count":{"type":"integer","x-mcp-header":"count"},
	"deep":{"type":"object","properties":{"flag":{"type":"boolean","x-mcp-header":"Flag"}}},
	"half":{"type":"number","x-mcp-header":"Half"},
	"odd":{"type":"string","x-mcp-header":"no token"},
	"list":{"type":"array","items":{"type":"string","x-mcp-header":"Item"}}}}}`)}

// Headers repeat the body, or nothing is called; each rule has its line. A want
// of "" lets the call pass.
func TestHeaders(t *testing.T) {
	const name = "Mcp-Name"
	sealed := func(text string) string { return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?=" }
	for _, tt := range []struct {
		what, args string
		set        []string // header, value; a value of "-" takes it away, a second one adds a line
		want       string
	}{
		{"nothing to repeat", `{}`, nil, ""},
		{"no revision", `{}`, []string{"MCP-Protocol-Version", "-"}, "Mcp-Protocol-Version is missing"},
		{"two revisions", `{}`, []string{"Mcp-Protocol-Version", "+2026-07-28"}, "more than once"},
		{"another revision", `{}`, []string{"MCP-Protocol-Version", "2025-11-25"}, `says \"2025-11-25\"`},
		{"no method", `{}`, []string{"Mcp-Method", "-"}, "Mcp-Method is missing"},
		{"two methods", `{}`, []string{"Mcp-Method", "+tools/call"}, "more than once"},
		{"another method", `{}`, []string{"Mcp-Method", "tools/list"}, `says \"tools/list\"`},
		{"a method in capitals", `{}`, []string{"Mcp-Method", "TOOLS/CALL"}, `says \"TOOLS/CALL\"`},
		{"a method in base64", `{}`, []string{"Mcp-Method", sealed("tools/call")}, "says"},
		{"no name", `{}`, []string{name, "-"}, "Mcp-Name is missing"},
		{"two names", `{}`, []string{name, "+x"}, "more than once"},
		{"another name", `{}`, []string{name, "echo"}, `says \"echo\"`},
		{"a name that is not ASCII", `{}`, []string{name, "région"}, "cannot be read"},
		{"a name in bad base64", `{}`, []string{name, "=?base64?!?="}, "cannot be read"},
		{"a name in base64 without padding", `{}`, []string{name, strings.ReplaceAll(sealed("régions"), "=?=", "?=")}, "cannot be read"},

		{"an argument", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu"}, ""},
		{"an argument in small letters", `{"region":"eu"}`, []string{"mcp-param-region", "eu"}, ""},
		{"an empty argument", `{"region":""}`, []string{"Mcp-Param-Region", ""}, ""},
		{"an argument in base64", `{"region":"eu"}`, []string{"Mcp-Param-Region", sealed("eu")}, ""},
		{"an argument that needs base64", `{"region":" é\n"}`, []string{"Mcp-Param-Region", sealed(" é\n")}, ""},
		{"an argument that looks like base64", `{"region":"=?base64?eu?="}`, []string{"Mcp-Param-Region", sealed("=?base64?eu?=")}, ""},
		{"half a mark is no mark", `{"region":"=?base64?eu"}`, []string{"Mcp-Param-Region", "=?base64?eu"}, ""},
		{"an argument without a header", `{"region":"eu"}`, nil, "Mcp-Param-Region is missing"},
		{"another argument", `{"region":"eu"}`, []string{"Mcp-Param-Region", "us"}, `says \"us\"`},
		{"another argument in base64", `{"region":"eu"}`, []string{"Mcp-Param-Region", sealed("us")}, `says \"us\"`},
		{"an argument in bad base64", `{"region":"Hello"}`, []string{"Mcp-Param-Region", "=?base64?SGVs!!!bG8=?="}, "cannot be read"},
		{"two headers for one argument", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu", "Mcp-Param-Region", "+eu"}, "more than once"},
		{"a header without an argument", `{}`, []string{"Mcp-Param-Region", "eu"}, "has no argument region"},
		{"a header of nothing", `{"region":null}`, []string{"Mcp-Param-Region", "null"}, "has no argument region"},
		{"nothing has no header", `{"region":null}`, nil, ""},
		{"a string where a number is", `{"region":5}`, []string{"Mcp-Param-Region", "5"}, ""},
		{"an integer", `{"count":42}`, []string{"Mcp-Param-Count", "42"}, ""},
		{"an integer in other digits", `{"count":42}`, []string{"Mcp-Param-Count", "42.0"}, ""},
		{"an integer with an exponent", `{"count":4.2e1}`, []string{"Mcp-Param-Count", "42"}, ""},
		{"another integer", `{"count":42}`, []string{"Mcp-Param-Count", "43"}, `says \"43\"`},
		{"not quite the integer", `{"count":9007199254740991}`, []string{"Mcp-Param-Count", "9007199254740990.6"}, "says"},
		{"an integer beyond what is safe", `{"count":9007199254740993}`, []string{"Mcp-Param-Count", "9007199254740992"}, "says"},
		{"a large integer", `{"count":9007199254740993}`, []string{"Mcp-Param-Count", "9007199254740993"}, ""},
		{"a large integer with an exponent", `{"count":1e22}`, []string{"Mcp-Param-Count", "10000000000000000000000"}, ""},
		{"a large integer as JavaScript spells it", `{"count":1e22}`, []string{"Mcp-Param-Count", "1e+22"}, ""},
		{"another large integer", `{"count":1e22}`, []string{"Mcp-Param-Count", "10000000000000000000001"}, "says"},
		{"an empty argument in base64", `{"region":""}`, []string{"Mcp-Param-Region", sealed("")}, ""},
		{"words for an integer", `{"count":42}`, []string{"Mcp-Param-Count", "0x2A"}, "says"},
		{"an integer that is not there", `{"count":42}`, nil, "Mcp-Param-Count is missing"},
		{"a flag", `{"deep":{"flag":true}}`, []string{"Mcp-Param-Flag", "true"}, ""},
		{"another flag", `{"deep":{"flag":true}}`, []string{"Mcp-Param-Flag", "True"}, `says \"True\"`},
		{"a flag out of reach", `{"deep":[{"flag":true}]}`, nil, ""},
		{"a list has no header", `{"region":["eu"]}`, nil, ""},
		{"a header for a list", `{"region":["eu"]}`, []string{"Mcp-Param-Region", `["eu"] `}, "says"},
		{"a number has no header", `{"half":0.5}`, nil, ""},
		{"what is no token has no header", `{"odd":"x"}`, nil, ""},
		{"items have no header", `{"list":["x"]}`, []string{"Mcp-Param-Item", "y"}, ""},
		{"a header that no argument has", `{}`, []string{"Mcp-Param-Other", "y"}, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			g := newGate()
			g.tools, g.behave["région"] = append(g.tools, region), echo
			d := newDoor(t, g, nil)
			req := sessionless("alice", "/mcp/demo", "tools/call", `"name":"région","arguments":`+tt.args)
			req.Header.Set(name, sealed("région"))
			for i := 0; i < len(tt.set); i += 2 {
				switch value := tt.set[i+1]; {
				case value == "-":
					req.Header.Del(tt.set[i])
				case strings.HasPrefix(value, "+"):
					req.Header.Add(tt.set[i], value[1:])
				default:
					req.Header.Set(tt.set[i], value)
				}
			}
			rec := serve(d, req)
			if tt.want == "" {
				if rec.Code != http.StatusOK || g.calls() != 1 {
					t.Errorf("%d %s", rec.Code, rec.Body)
				}
				return
			}
			if rec.Code != http.StatusBadRequest || !strings.Contains(rec.Body.String(), `"code":-32020`) || !strings.Contains(rec.Body.String(), tt.want) {
				t.Errorf("%d %s, want %s", rec.Code, rec.Body, tt.want)
			}
			if g.calls() != 0 || !slices.Equal(g.refusals(), []string{signal.CodeHeaderMismatch + " tools/call"}) {
				t.Errorf("%d calls, refusals %v", g.calls(), g.refusals())
			}
		})
	}
}

// A tool that the caller does not see wants no headers, so that nobody learns
// of it.
func TestHiddenToolWantsNoHeaders(t *testing.T) {
	g := newGate()
	hidden := *region
	hidden.Name, hidden.Exposed = "denied", "demo__denied"
	g.tools = slices.DeleteFunc(g.tools, func(t *registry.Tool) bool { return t.Name == "denied" })
	g.tools = append(g.tools, &hidden)
	d := newDoor(t, g, nil)
	for who, want := range map[string]int{"alice": http.StatusBadRequest, "bob": http.StatusOK} {
		if rec := serve(d, sessionless(who, "/mcp", "tools/call", `"name":"demo__denied","arguments":{"region":"eu"}`)); rec.Code != want {
			t.Errorf("%s: %d %s", who, rec.Code, rec.Body)
		}
	}
}
