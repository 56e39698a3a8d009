package tools_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/contract"
	"github.com/toolgate/toolgate/tools"
	"github.com/toolgate/toolgate/tools/page"
	"github.com/toolgate/toolgate/tools/webmedia"
	"github.com/toolgate/toolgate/tools/websearch"
)

// serve runs the server until the test ends and returns the client's ends of its
// pipes.
func serve(t testing.TB, opts tools.Options) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	serverIn, in := io.Pipe()
	out, serverOut := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := tools.Serve(context.Background(), opts, serverIn, serverOut)
		serverOut.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		in.Close()
		out.Close()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return in, out
}

func connect(t testing.TB, opts tools.Options) *mcp.ClientSession {
	t.Helper()
	in, out := serve(t, opts)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: out, Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

func call(t testing.TB, s *mcp.ClientSession, tool, args string) (*mcp.CallToolResult, error) {
	t.Helper()
	return s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
}

// reply makes a call and decodes the structured content. It must equal the text
// content and match the contract.
func reply(t testing.TB, s *mcp.ClientSession, tool, args string) (map[string]any, *mcp.CallToolResult) {
	t.Helper()
	got, err := call(t, s, tool, args)
	if err != nil {
		t.Fatalf("%s %s: %v", tool, args, err)
	}
	text := got.Content[len(got.Content)-1].(*mcp.TextContent).Text
	checkOutput(t, s, tool, text)
	var fromText map[string]any
	if err := json.Unmarshal([]byte(text), &fromText); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(fromText), got.StructuredContent); diff != "" {
		t.Errorf("text (-) and structured content (+) differ:\n%s", diff)
	}
	return fromText, got
}

// checkOutput checks output by the schema that the server lists.
func checkOutput(t testing.TB, session *mcp.ClientSession, tool, output string) {
	t.Helper()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, listed := range list.Tools {
		if listed.Name != tool {
			continue
		}
		raw, err := json.Marshal(listed.OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		s, err := schema.Compile(raw)
		if err != nil {
			t.Fatal(err)
		}
		if faults, err := s.Validate(json.RawMessage(output)); err != nil || len(faults) > 0 {
			t.Errorf("%s: the output does not match the contract: %v %v\n%s", tool, faults, err, output)
		}
		return
	}
	t.Errorf("%s is not listed", tool)
}

func TestContractsAreListedAsTheyAre(t *testing.T) {
	t.Run("offline", func(t *testing.T) { checkList(t, tools.Options{}, contract.Tools()) })
	t.Run("backends", func(t *testing.T) {
		opts := tools.Options{Backends: tools.Backends{Search: &websearch.Options{Provider: "local"}, Fetch: &page.Options{}, Media: &webmedia.Options{Provider: "render"}}}
		checkList(t, opts, contract.Tools("search_internet", "fetch_page", "generate_media"))
	})
}

func checkList(t *testing.T, opts tools.Options, contracts []contract.Tool) {
	t.Helper()
	in, out := serve(t, opts)
	lines := bufio.NewReader(out)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if _, err := lines.ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Result struct{ Tools []map[string]any }
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]any{}
	for _, tool := range answer.Result.Tools {
		got[tool["name"].(string)] = tool
	}
	if len(got) != len(contracts) {
		t.Errorf("%d tools are listed, want one per contract", len(got))
	}
	for _, c := range contracts {
		var want map[string]any
		if err := json.Unmarshal(c.Definition, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got[c.Name]); diff != "" {
			t.Errorf("%s (-contract +listed):\n%s", c.Name, diff)
		}
	}
}

func TestSearch(t *testing.T) {
	s := connect(t, tools.Options{})
	got, _ := reply(t, s, "search_internet", `{"query":"token bucket","num_results":3}`)
	results := got["results"].([]any)
	if got["provider"] != "local documents, offline" || len(results) == 0 || len(results) > 3 {
		t.Fatalf("got %v", got)
	}
	if first := results[0].(map[string]any); first["url"] != "doc:rate-limits" {
		t.Errorf("first result %v", first)
	}
	got, _ = reply(t, s, "search_internet", `{"query":"tool"}`)
	if n := len(got["results"].([]any)); n != 5 {
		t.Errorf("%d results by default, want 5", n)
	}
	got, _ = reply(t, s, "search_internet", `{"query":"xyzzyplugh"}`)
	if n := len(got["results"].([]any)); n != 0 {
		t.Errorf("%d results for a query without words", n)
	}
}

func TestSearchInAFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "zoo.md"), []byte("# Zoo\n\nA zebra."), 0o600); err != nil {
		t.Fatal(err)
	}
	s := connect(t, tools.Options{Docs: dir})
	got, _ := reply(t, s, "search_internet", `{"query":"zebra"}`)
	if first := got["results"].([]any)[0].(map[string]any); first["url"] != "file://"+filepath.ToSlash(dir)+"/zoo.md" {
		t.Errorf("got %v", first)
	}
}

func TestMedia(t *testing.T) {
	s := connect(t, tools.Options{})
	got, raw := reply(t, s, "generate_media", `{"prompt":"a red fox","aspect_ratio":"16:9","model":"card-1"}`)
	img, ok := raw.Content[0].(*mcp.ImageContent)
	if !ok || img.MIMEType != "image/png" {
		t.Fatalf("first content is %T", raw.Content[0])
	}
	data := img.Data
	if !bytes.HasPrefix(data, []byte("\x89PNG")) {
		decoded, err := base64.StdEncoding.DecodeString(string(data))
		if err != nil {
			t.Fatal(err)
		}
		data = decoded
	}
	sum := sha256.Sum256(data)
	if got["sha256"] != hex.EncodeToString(sum[:]) || got["bytes"] != float64(len(data)) || got["width"] != 640.0 || got["height"] != 360.0 {
		t.Errorf("picture %v of %d bytes", got, len(data))
	}
}

func TestWallet(t *testing.T) {
	dir := t.TempDir()
	s := connect(t, tools.Options{Dir: dir})
	got, _ := reply(t, s, "manage_wallet", `{"action":"balance"}`)
	if n := len(got["balances"].([]any)); n != 3 {
		t.Errorf("balances %v", got["balances"])
	}
	got, _ = reply(t, s, "manage_wallet", `{"action":"transfer","asset":"BTC","amount":0.123456789012345678,"destination":"bc1"}`)
	tx := got["transaction"].(map[string]any)
	if tx["amount"] != "0.123456789012345678" || !strings.HasPrefix(tx["id"].(string), "txn_") {
		t.Errorf("transaction %v", tx)
	}
	for range 2 {
		got, _ = reply(t, s, "manage_wallet", `{"action":"transfer","asset":"BTC","amount":1e-18,"destination":"bc1","idempotency_key":"k"}`)
	}
	want := []any{map[string]any{"asset": "BTC", "amount": "1.376543210987654321"}}
	if diff := cmp.Diff(want, got["balances"]); diff != "" {
		t.Errorf("balances (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "wallet.db")); err != nil {
		t.Error(err)
	}
}

// What the paper wallet refuses is a result that says why, and moves nothing.
func TestWalletRefusals(t *testing.T) {
	s := connect(t, tools.Options{})
	const transfer = `{"action":"transfer","asset":"USD","amount":5,"destination":"bob","idempotency_key":"k"}`
	reply(t, s, "manage_wallet", transfer)
	for args, want := range map[string]string{
		`{"action":"balance","asset":"DOGE"}`:                                      `unknown asset "DOGE": this wallet has USD, EUR, BTC`,
		`{"action":"transfer","asset":"DOGE","amount":1,"destination":"bob"}`:      `unknown asset "DOGE": this wallet has USD, EUR, BTC`,
		`{"action":"transfer","asset":"USD","amount":9995.01,"destination":"bob"}`: "insufficient funds: 9995 USD are free, 9995.01 are wanted",
		`{"action":"transfer","asset":"USD","amount":"x","destination":"bob"}`:     `bad amount: "x" is not a number`,
		`{"action":"transfer","asset":"USD","amount":1,"destination":" "}`:         "bad destination",
		strings.Replace(transfer, "5", "6", 1):                                     "idempotency key of another transfer: it moved 5 USD",
	} {
		refused, err := call(t, s, "manage_wallet", args)
		if err != nil || !refused.IsError || !strings.Contains(refused.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v; want a result with %q", args, refused, err, want)
		}
	}
	got, _ := reply(t, s, "manage_wallet", `{"action":"balance","asset":"USD"}`)
	if amount := got["balances"].([]any)[0].(map[string]any)["amount"]; amount != "9995" {
		t.Errorf("refused transfers moved money: %v", amount)
	}
}

func TestInternalFailuresAreErrorsNotResults(t *testing.T) {
	s := connect(t, tools.Options{})
	for _, c := range []struct{ tool, args, want string }{
		{"manage_wallet", `{"action":"transfer","asset":"USD","Amount":50,"destination":"bob"}`, "bad arguments"},
		{"manage_wallet", `{"action":"transfer","asset":"USD","amount":1,"amount":50,"destination":"bob"}`, "bad arguments"},
		{"manage_wallet", `{"action":"steal"}`, "unknown action"},
		{"manage_wallet", ``, "unknown action"},
		{"generate_media", `{"prompt":"x","model":"card-2"}`, "unknown model"},
		{"generate_media", `{"prompt":"x","model":"card-1","aspect_ratio":"2:1"}`, "unknown aspect ratio"},
		{"search_internet", `{"query":"x","num_results":11}`, "num_results is 11"},
		{"search_internet", `{"query":"x","num_results":"many"}`, "bad arguments"},
	} {
		args := c.args
		if args == "" {
			args = "{}"
		}
		got, err := call(t, s, c.tool, args)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %+v, %v; want an error with %q", c.tool, c.args, got, err, c.want)
		}
	}
	got, _ := reply(t, s, "manage_wallet", `{"action":"balance","asset":"USD"}`)
	if amount := got["balances"].([]any)[0].(map[string]any)["amount"]; amount != "10000" {
		t.Errorf("refused transfers moved money: %v", amount)
	}
}

func TestServeRefusesToStart(t *testing.T) {
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "wallet.db"), []byte("no database at all, certainly not"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]tools.Options{
		"no such folder":   {Dir: t.TempDir(), Docs: filepath.Join(t.TempDir(), "none")},
		"a damaged wallet": {Dir: damaged},
	} {
		var out bytes.Buffer
		if err := tools.Serve(t.Context(), opts, strings.NewReader(""), &out); err == nil || out.Len() > 0 {
			t.Errorf("%s: %v, %q on out", name, err, out.String())
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, hold := io.Pipe()
	defer hold.Close()
	done := make(chan error, 1)
	go func() { done <- tools.Serve(ctx, tools.Options{Dir: t.TempDir()}, in, io.Discard) }()
	fmt.Fprintln(hold, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
}

func BenchmarkBalanceOverStdio(b *testing.B) {
	s := connect(b, tools.Options{})
	for b.Loop() {
		if _, err := call(b, s, "manage_wallet", `{"action":"balance","asset":"USD"}`); err != nil {
			b.Fatal(err)
		}
	}
}
