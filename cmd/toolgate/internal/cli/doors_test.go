package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// doorCase is one call that has to come to the same through every door.
type doorCase struct {
	name, tool, args string
	want             string // canonical code, "" = answered
}

// The order matters: the limit is used up by the one before.
var doorCases = []doorCase{
	{"the tool answers", "up__echo", `{"n": 1}`, ""},
	{"the policy denies", "up__echo", `{"n": -1}`, "POLICY_DENIED"},
	{"the arguments break the schema", "up__echo", `{"n": "one"}`, "INVALID_TOOL_INPUT"},
	{"there is no such tool", "up__nothing", `{}`, "TOOL_NOT_FOUND"},
	{"a tool that is hidden", "up__secret", `{}`, "TOOL_NOT_FOUND"},
	{"the tool fails", "up__fail", `{}`, "TOOL_FAILED"},
	{"the first of a scarce thing", "up__rare", `{}`, ""},
	{"over the limit", "up__rare", `{}`, "RATE_LIMITED"},
	{"a person has to decide", "up__echo", `{"n": 500}`, "APPROVAL_PENDING"},
	{"keys that differ by case", "up__echo", `{"n": 1, "N": 2}`, "INVALID_ENVELOPE"},
}

// inResult marks a code that a tool result carries.
const inResult = "in a result: "

const doorPolicy = `package toolgate

import rego.v2

decision := {"effect": "deny", "rule": "nothing_below_zero", "reason": "n is below zero"} if input.arguments.n < 0

else := {"effect": "deny", "rule": "hidden", "reason": "not for you"} if input.tool.name == "secret"

else := {"effect": "hold", "rule": "much", "reason": "n is large", "approval": {"roles": ["approver"]}} if input.arguments.n > 100

else := {"effect": "allow", "rule": "testers", "reason": "testers may"} if "tester" in input.principal.roles

visible := input.tool.name != "secret"
`

// door makes one call and gives the canonical code of its refusal, "" when it
// was answered.
type door func(t *testing.T, c doorCase) string

// The same cases come to the same decision, the same canonical code and the
// same record through MCP over HTTP, MCP over stdio, NDJSON, REST and the
// command line (one road, many doors). The errors of a token change the form on MCP alone.
func TestDoorsAgree(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{"as the route does": "", "as results": `"errors": "result", `} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDoors(t, token)
		})
	}
}

// testDoors tries all cases through all doors; token has members of every token.
func testDoors(t *testing.T, token string) {
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["mcp.json"] = strings.ReplaceAll(files["mcp.json"], `{"subject"`, "{"+token+`"subject"`)
	write(t, dir, files)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	doors := map[string]door{
		"http":   throughHTTP(t, agents),
		"rest":   throughREST(agents),
		"rpc":    throughRPC(agents),
		"cli":    throughCLI(dir, agents),
		"stdio":  throughStdio(t, dir),
		"ndjson": throughNDJSON(t, dir),
	}
	for name, call := range doors {
		t.Run(name, func(t *testing.T) {
			for _, c := range doorCases {
				want := c.want
				if token != "" && want != "" && want != "APPROVAL_PENDING" && slices.Contains([]string{"http", "stdio", "cli"}, name) {
					want = inResult + want
				}
				if got := call(t, c); got != want {
					t.Errorf("%s: %q, want %q", c.name, got, want)
				}
			}
		})
	}
	records := doorRecords(t, dir)
	for name := range doors {
		if diff := gocmp.Diff(records["http"], records[name]); diff != "" || len(records[name]) != len(doorCases) {
			t.Errorf("%s left %d records, and not those of http (-http +%s):\n%s", name, len(records[name]), name, diff)
		}
	}
}

// A caller without a connection to a server hears so through every door, and nothing is sent.
func TestDoorsWithoutConnection(t *testing.T) {
	t.Parallel()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["token.sh"] = `grep -q '"subject":"http"' && echo '{"token":"token-of-the-owner"}' || echo '{}'`
	for before, after := range map[string]string{
		`{"mcpServers": {`: `{"mcpServers": {"own": {"url": "` + rec.URL + `"}, `,
		`"servers": {`:     `"servers": {"own": {"credential": {"type": "command", "command": ["sh", "-c", "cd ` + dir + ` && . ./token.sh"]}}, `,
	} {
		files["mcp.json"] = strings.Replace(files["mcp.json"], before, after, 1)
	}
	write(t, dir, files)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	c := doorCase{"no connection", "own__look", `{}`, "CONNECTION_REQUIRED"}
	connected := throughHTTP(t, agents)
	// Its tool is known once somebody with a connection has listed it, and it is accepted.
	program.Await(t, "the definition is accepted", func() bool {
		connected(t, c)
		code, _ := toolgate(t, dir, "tool", "accept", "own", "look")
		return code == command.ExitOK
	})
	for name, call := range map[string]door{
		"rest": throughREST(agents), "rpc": throughRPC(agents), "cli": throughCLI(dir, agents), "stdio": throughStdio(t, dir), "ndjson": throughNDJSON(t, dir),
	} {
		got := "" // at first perhaps that the tool is not known or not accepted
		program.Await(t, "the answer through "+name, func() bool {
			got = call(t, c)
			return got == c.want || got == ""
		})
		if got != c.want {
			t.Errorf("%s: the call is answered", name)
		}
	}
	if n := len(rec.Calls()); n > 0 {
		t.Errorf("the server has received %d calls", n)
	}
	program.Await(t, "who is connected is answered", func() bool { return connected(t, c) == "" })
}

// The bounds of messages that the configuration sets hold at every door, and those of no
// door are narrower: a bridge leaves them to its endpoint. NDJSON has its own size, and the
// command line that of the system.
func TestDoorsLimits(t *testing.T) {
	t.Parallel()
	parts.Long(t, "sends large messages")
	nested := func(n int) string { return `{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	long := func(mib float64) string { return `{"x":"` + strings.Repeat("x", int(mib*(1<<20))) + `"}` }
	cases := []doorCase{
		{"deeper than by default", "up__echo", nested(150), ""},
		{"too deep", "up__echo", nested(300), "INVALID_ENVELOPE"},
		{"larger than by default", "up__echo", long(4.5), ""},
		{"too large", "up__echo", long(5.5), "TOO_LARGE"},
	}
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	files := doorFiles()
	files["mcp.json"] = strings.Replace(files["mcp.json"], `"limits": {`, `"limits": {"max_message_mib": 5, "max_depth": 200, `, 1)
	write(t, dir, files)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	for name, call := range map[string]door{
		"http":   throughHTTP(t, agents),
		"rest":   throughREST(agents),
		"rpc":    throughRPC(agents),
		"cli":    throughCLI(dir, agents),
		"stdio":  throughStdio(t, dir),
		"bridge": throughStdio(t, dir, "--connect", "http://"+agents+"/mcp"),
		"ndjson": throughNDJSON(t, dir),
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				if len(c.args) > 1<<16 && (name == "ndjson" || name == "cli") {
					continue
				}
				if got := call(t, c); got != c.want {
					t.Errorf("%s: %q, want %q", c.name, got, c.want)
				}
			}
		})
	}
}

var doorNames = []string{"http", "rest", "rpc", "cli", "stdio", "ndjson"}

func doorToken(door string) string { return "token-of-" + door }

func doorFiles() map[string]string {
	var tokens []string
	for _, name := range doorNames {
		sum := sha256.Sum256([]byte(doorToken(name)))
		tokens = append(tokens, fmt.Sprintf(`{"subject": %q, "roles": ["tester"], "sha256": %q}`, name, hex.EncodeToString(sum[:])))
	}
	const schema = `{"type": "object", "properties": {"n": {"type": "number"}}}`
	tool := func(name, does string) string {
		return fmt.Sprintf(`{"Name": %q, "Does": %q, "Definition": {"name": %q, "inputSchema": %s}, "Error": {"code": -32042, "message": "no luck"}}`, name, does, name, schema)
	}
	return map[string]string{
		"policy/p.rego": doorPolicy,
		"up.json":       `{"Tools": [` + tool("echo", "") + "," + tool("fail", "fail") + "," + tool("rare", "") + "," + tool("secret", "") + `]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "approvals": {"hold": "0s"}, "servers": {"up": {"isolation": "shared"}},
				"limits": {"default": "off", "refused": "off", "rules": [{"tool": "up__rare", "rate": "1/1h"}]},
				"identity": {"tokens": [` + strings.Join(tokens, ",") + `]}}}`,
	}
}

func throughHTTP(t *testing.T, agents string) door {
	e := &command.Env{Addr: "http://" + agents, Token: doorToken("http")}
	a, err := e.Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return func(t *testing.T, c doorCase) string {
		result, fault := a.Do(t.Context(), &mcpclient.Call{ID: a.NextID(), Method: "tools/call", Params: doorParams(c)})
		if fault != nil && fault.RPC == nil {
			t.Fatal(fault)
		}
		if fault != nil {
			return rpcCode(t, answer{Error: fault.RPC})
		}
		return rpcCode(t, answer{Result: result})
	}
}

func doorParams(c doorCase) json.RawMessage {
	return fmt.Appendf(nil, `{"name":%q,"arguments":%s}`, c.tool, c.args)
}

// answer is a JSON-RPC answer.
type answer struct{ Result, Error json.RawMessage }

// rpcCode reads the canonical code from a JSON-RPC answer, whatever its dialect.
func rpcCode(t *testing.T, a answer) string {
	t.Helper()
	var failed struct{ Data struct{ Code string } }
	if a.Error != nil {
		decode(t, a.Error, &failed)
		return cmp.Or(failed.Data.Code, "an error without a code")
	}
	var result struct {
		IsError bool
		Meta    struct {
			Approval struct{ Status string } `json:"io.toolgate/approval"`
			Error    struct{ Code string }   `json:"io.toolgate/error"`
		} `json:"_meta"`
	}
	decode(t, a.Result, &result)
	switch {
	case result.Meta.Approval.Status == "pending" && result.IsError:
		return "APPROVAL_PENDING"
	case result.IsError:
		return inResult + result.Meta.Error.Code
	}
	return ""
}

func throughCLI(dir, agents string) door {
	return func(t *testing.T, c doorCase) string {
		args := []string{"tool", "call", c.tool, "--args", c.args, "--addr", "http://" + agents, "--token", doorToken("cli"), "-o", "json"}
		cmd := exec.CommandContext(t.Context(), "toolgate", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TOOLGATE_CONFIG=", "TOOLGATE_TOKEN=")
		out, err := cmd.Output()
		if err == nil {
			return ""
		}
		if cmd.ProcessState.ExitCode() == command.ExitApproval {
			return "APPROVAL_PENDING"
		}
		if bytes.Contains(out, []byte(`"isError"`)) {
			return rpcCode(t, answer{Result: out})
		}
		var failed struct{ Error struct{ Code string } }
		decode(t, out, &failed)
		return failed.Error.Code
	}
}

func throughREST(agents string) door {
	return func(t *testing.T, c doorCase) string {
		res, body := postDoor(t, "http://"+agents+"/v1/jobs", doorToken("rest"), fmt.Appendf(nil, `{"query":"","tool":%q,"args":%s}`, c.tool, c.args))
		if res.StatusCode == http.StatusOK {
			return ""
		}
		var problem struct{ Code string }
		decode(t, body, &problem)
		return cmp.Or(problem.Code, string(body))
	}
}

func throughRPC(agents string) door {
	return func(t *testing.T, c doorCase) string {
		_, body := postDoor(t, "http://"+agents+"/v1/rpc", doorToken("rpc"), jsonrpc.NewRequest(json.RawMessage(`"1"`), "tools/call", doorParams(c)))
		var got answer
		decode(t, body, &got)
		return rpcCode(t, got)
	}
}

// postDoor makes one request at a door, and returns the response with its body.
func postDoor(t *testing.T, url, token string, body []byte) (*http.Response, []byte) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, text
}

// talk starts a toolgate that speaks one line at a time.
func talk(t *testing.T, dir string, args ...string) func(line []byte) []byte {
	t.Helper()
	cmd := exec.Command("toolgate", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TOOLGATE_CONFIG=", "TOOLGATE_TOKEN=")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(out)
	return func(line []byte) []byte {
		if _, err := in.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
		got, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

func throughStdio(t *testing.T, dir string, args ...string) door {
	say := talk(t, dir, append([]string{"stdio", "--token", doorToken("stdio")}, args...)...)
	say(jsonrpc.NewRequest(json.RawMessage("0"), "initialize", json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)))
	awaitTools(say, jsonrpc.NewRequest(json.RawMessage("0"), "tools/list", nil))
	return func(t *testing.T, c doorCase) string {
		var got answer
		decode(t, say(jsonrpc.NewRequest(json.RawMessage("1"), "tools/call", doorParams(c))), &got)
		return rpcCode(t, got)
	}
}

// awaitTools asks for the tools until the upstream has listed its own: a list
// waits only a second for a server that starts.
func awaitTools(say func([]byte) []byte, list []byte) {
	for !bytes.Contains(say(list), []byte("up__echo")) {
	}
}

// NDJSON has no numbers: its fixed texts stand for three codes, every other
// refusal begins with its own.
func throughNDJSON(t *testing.T, dir string) door {
	say := talk(t, dir, "ndjson", "--token", doorToken("ndjson"))
	awaitTools(say, []byte(`{"id":"0","type":"list_actions"}`))
	return func(t *testing.T, c doorCase) string {
		var got struct {
			OK    bool
			Error string
		}
		decode(t, say(fmt.Appendf(nil, `{"id":"1","type":"invoke","payload":{"action":%q,"input":%s}}`, c.tool, c.args)), &got)
		switch {
		case got.OK:
			return ""
		case got.Error == "Invalid request envelope":
			return "INVALID_ENVELOPE"
		case got.Error == "Unknown action: '"+c.tool+"'":
			return "TOOL_NOT_FOUND"
		case strings.HasPrefix(got.Error, "Input validation failed for action '"+c.tool+"'"):
			return "INVALID_TOOL_INPUT"
		}
		code, _, _ := strings.Cut(got.Error, ":")
		return code
	}
}

// doorRecord is what must be the same whatever the door.
type doorRecord struct {
	Server, Tool, Exposed, Outcome, Code, Stage string
	Digest                                      string `json:"arguments_sha256"`
	Policy                                      struct{ Effect, Rule, Reason, Revision string }
}

// doorRecords gives the outcome records by principal, in order.
func doorRecords(t *testing.T, dir string) map[string][]doorRecord {
	t.Helper()
	code, out := toolgate(t, dir, "audit", "tail", "-n", "1000", "-o", "json")
	if code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, out)
	}
	found := map[string][]doorRecord{}
	for line := range strings.Lines(out) {
		var r struct {
			doorRecord
			Kind      string
			Principal struct{ Subject string }
		}
		decode(t, []byte(line), &r)
		if r.Kind == "outcome" {
			found[r.Principal.Subject] = append(found[r.Principal.Subject], r.doorRecord)
		}
	}
	return found
}
