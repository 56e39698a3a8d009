package peers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// statelessMeta returns the _meta member of a request of the stateless revision.
func statelessMeta(capabilities string) string {
	return fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":%s}`, statelessRevision, capabilities)
}

// TestParameterHeaders: arguments that headers repeat reach the server by every
// route and in every spelling: directly, over stdio --connect, and through a
// second toolgate.
func TestParameterHeaders(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.HTTP(t, recorder.Config{Stateless: &recorder.Stateless{Tools: []recorder.StatelessTool{{Name: "echo", Definition: json.RawMessage(
		`{"name":"echo","inputSchema":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"},"s":{"type":"string","x-mcp-header":"S"}}}}`)}}}})
	near := serveReady(t, configure(t, setup{servers: []server{httpOf("far", rec, nil)}}))
	through := server{"near", map[string]any{"type": "http", "url": near.Agents + "/mcp/far", "headers": map[string]any{"Authorization": "Bearer " + agentToken}}, nil}
	front := serveReady(t, configure(t, setup{servers: []server{through}}))
	bridge := openCommand(t, nil, program.Toolgate(t), "stdio", "--connect", near.Agents, "--token", agentToken)
	bridge.exchange(t, []byte(`{"jsonrpc":"2.0","id":"list","method":"tools/list","params":{`+statelessMeta("{}")+`}}`))

	request := func(tool, arguments string) []byte {
		return []byte(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `,` + statelessMeta("{}") + `}}`)
	}
	for _, tt := range []struct{ arguments, header, value string }{
		{`{"n":9007199254740993}`, "N", "9007199254740993"},
		{`{"n":1e22}`, "N", "10000000000000000000000"},
		{`{"s":""}`, "S", "=?base64??="},
	} {
		direct := func(address, tool string) []byte {
			return postStateless(t, address, "tools/call", tool, request(tool, tt.arguments), http.Header{"Mcp-Param-" + tt.header: {tt.value}})
		}
		for route, answer := range map[string][]byte{
			"direct":               direct(near.Agents+"/mcp", "far__echo"),
			"stdio --connect":      bridge.exchange(t, request("far__echo", tt.arguments)),
			"toolgate to toolgate": direct(front.Agents+"/mcp", "near__echo"),
		} {
			if result, failure := splitAnswer(answer); result == nil || failure != nil || strings.Contains(string(result), `"isError":true`) {
				t.Errorf("%s, %s: %s", route, tt.arguments, answer)
			}
		}
	}
	calls := 0
	for _, method := range rec.Methods() {
		if method == "tools/call" {
			calls++
		}
	}
	if calls != 9 {
		t.Errorf("%d calls reached the server, want 9", calls)
	}
	if wrong := rec.Violations(); wrong != nil {
		t.Errorf("violations: %v", wrong)
	}
}

// postStateless sends one request of the stateless revision with extra headers and
// returns its answer. name is the tool, or "".
func postStateless(t testing.TB, address, method, name string, body []byte, extra http.Header) []byte {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), timeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if extra != nil {
		req.Header = extra
	}
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + agentToken,
		"Mcp-Protocol-Version": statelessRevision, "Mcp-Method": method, "Mcp-Name": name,
	} {
		req.Header.Set(header, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	answer := text.Bytes()
	for line := range bytes.Lines(answer) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && isResponse(bytes.TrimSpace(data)) {
			return bytes.TrimSpace(data)
		}
	}
	return answer
}
