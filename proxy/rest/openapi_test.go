package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
)

func shipped(t *testing.T, name string) []byte {
	t.Helper()
	text, err := schemas.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDocumentIsServed: what is served is what is shipped and the version of
// the program, and nothing else.
func TestDocumentIsServed(t *testing.T) {
	d := open(t, nil)
	got := d.do("", http.MethodGet, "/v1/openapi.json", "")
	if got.text("/info/x-toolgate-version") != "1.2.3" {
		t.Errorf("version %q", got.text("/info/x-toolgate-version"))
	}
	if plain := strings.Replace(got.body, `,"x-toolgate-version":"1.2.3"`, "", 1); plain != string(shipped(t, "openapi.json")) {
		t.Error("more than the version was changed")
	}
}

// TestDocumentIsOpenAPI: a validator that nobody here wrote says so.
func TestDocumentIsOpenAPI(t *testing.T) {
	node, validator := parts.Need(t, "node"), npm.File(t, "@seriousme/openapi-schema-validator/index.js")
	const script = `import(process.argv[1]).then(async ({ Validator }) => {
		let text = ""; for await (const chunk of process.stdin) text += chunk;
		const v = new Validator(); const said = await v.validate(JSON.parse(text));
		console.log(v.version, said.valid, JSON.stringify(said.errors)); })`
	run := func(text []byte) string {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		cmd := exec.CommandContext(ctx, node, "-e", script, "file://"+validator)
		cmd.Stdin = bytes.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if said := run(shipped(t, "openapi-admin.json")); !strings.HasPrefix(said, "3.1 true") {
		t.Errorf("the document for people: %s", said)
	}
	text := open(t, nil).do("", http.MethodGet, "/v1/openapi.json", "").body
	if said := run([]byte(text)); !strings.HasPrefix(said, "3.1 true") {
		t.Errorf("the document: %s", said)
	}
	for what, bad := range map[string]string{
		"a missing reference": strings.Replace(text, `"#/components/responses/Broken"`, `"#/components/responses/Nothing"`, 1),
		"a wrong member":      strings.Replace(text, `"responses": {`, `"answers": {`, 1),
	} {
		if said := run([]byte(bad)); !strings.HasPrefix(said, "3.1 false") {
			t.Errorf("with %s it is valid too: %s", what, said)
		}
	}
}

// TestRoutesAreInTheDocument and the reverse.
func TestRoutesAreInTheDocument(t *testing.T) {
	doc := readDocument(t, shipped(t, "openapi.json"))
	documented := map[string][]string{}
	for _, name := range doc.operations() {
		method, path, _ := strings.Cut(name, " ")
		documented[path] = append(documented[path], method)
	}
	if diff := cmp.Diff(open(t, nil).handler.Routes(), documented); diff != "" {
		t.Errorf("routes (-handler +document):\n%s", diff)
	}
}

// TestComponentsAreTheSchemas: what has a schema of its own has the same one
// here, and the two that add members to one of those add nothing else.
func TestComponentsAreTheSchemas(t *testing.T) {
	all := readDocument(t, shipped(t, "openapi.json")).root["components"].(object)["schemas"].(object)
	same := func(name string, want any) {
		if diff := cmp.Diff(want, all[name]); diff != "" {
			t.Errorf("component %s (-schema +component):\n%s", name, diff)
		}
	}
	for file, name := range map[string]string{
		"job-request": "JobRequest", "success-response": "SuccessResponse", "result": "Result", "notification": "Notification",
		"problem-details": "ProblemDetails", "envelope": "Envelope", "signal": "", "kernel-error": "",
	} {
		text := strings.ReplaceAll(string(shipped(t, file+".json")), "#/$defs/", "#/components/schemas/")
		var whole object
		if err := json.Unmarshal([]byte(text), &whole); err != nil {
			t.Fatal(err)
		}
		defs, _ := whole["$defs"].(object)
		for def, want := range defs {
			same(def, want)
		}
		for _, key := range []string{"$schema", "$id", "$defs"} {
			delete(whole, key)
		}
		if name != "" {
			same(name, any(whole))
		}
	}
	for wider, added := range map[string][]string{
		"CallProblem ProblemDetails": {"code", "kernel_code", "category", "severity", "retry_eligible", "retry_after_ms", "reason", "remedy",
			"decision_id", "trace_id", "details"},
	} {
		name, base, _ := strings.Cut(wider, " ")
		less := copied(t, all[name])
		less["title"] = all[base].(object)["title"]
		if _, closed := all[base].(object)["additionalProperties"]; !closed {
			delete(less, "additionalProperties")
		}
		less["required"] = slices.DeleteFunc(less["required"].([]any), func(v any) bool { return slices.Contains(added, v.(string)) })
		for _, key := range added {
			delete(less["properties"].(object), key)
		}
		if diff := cmp.Diff(all[base], any(less)); diff != "" {
			t.Errorf("component %s without its own members (-base +component):\n%s", name, diff)
		}
	}
	var codes []any
	for _, row := range wire.Rows() {
		codes = append(codes, string(row.Code))
	}
	if diff := cmp.Diff(codes, all["CanonicalCode"].(object)["enum"]); diff != "" {
		t.Errorf("canonical codes (-table +document):\n%s", diff)
	}
}

// copied gives a deep copy.
func copied(t *testing.T, v any) object {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out object
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExamples: every example is one.
func TestExamples(t *testing.T) {
	for name, least := range map[string]int{"openapi.json": 15, "openapi-admin.json": 5} {
		if found := checkExamples(t, readDocument(t, shipped(t, name))); found < least {
			t.Errorf("%s: only %d examples were found", name, found)
		}
	}
}

// checkExamples returns the number of examples.
func checkExamples(t *testing.T, doc *document) (found int) {
	t.Helper()
	check := func(where string, content any) {
		for media, raw := range content.(object) {
			examples, _ := raw.(object)["examples"].(object)
			for name, example := range examples {
				text, err := json.Marshal(example.(object)["value"])
				if err != nil {
					t.Fatal(err)
				}
				found++
				if err := doc.fits(raw.(object)["schema"], string(text)); err != nil {
					t.Errorf("%s: example %s of %s: %v", where, name, media, err)
				}
			}
		}
	}
	for _, name := range doc.operations() {
		if body, ok := doc.operation(name)["requestBody"].(object); ok {
			check(name, body["content"])
		}
		for status, response := range doc.operation(name)["responses"].(object) {
			if content, ok := doc.resolve(response)["content"]; ok {
				check(name+" "+status, content)
			}
		}
	}
	return found
}

// probe is one request with the status that it provokes.
type probe struct {
	status             int
	who                string
	method, path, body string
	headers            []string
}

// TestDocument drives the handler through every operation and status of the
// document, and holds every answer to it.
func TestDocument(t *testing.T) {
	doc := readDocument(t, []byte(open(t, nil).do("", http.MethodGet, "/v1/openapi.json", "").body))
	d := open(t, func(_ *gate, o *rest.Options) { o.Envelope.Limits.Bytes = 4096 })
	_, path := d.put(alice, "text/plain", "0123456789")
	a, _, err := d.store().Get(t.Context(), alice, strings.TrimPrefix(path, "/v1/artifacts/"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Concat(jobProbes(), rpcProbes(), readProbes(path, a.ID)) {
		got := d.do(p.who, p.method, p.path, p.body, p.headers...)
		if got.status != p.status {
			t.Errorf("%s %s: status %d, want %d: %s", p.method, p.path, got.status, p.status, got.body)
		}
		if err := doc.check(p.method, p.path, got); err != nil {
			t.Error(err)
		}
	}
	driveStreams(t, doc)
	driveFailures(t, doc)
	if diff := cmp.Diff([]string(nil), doc.unseen()); diff != "" {
		t.Errorf("statuses of the document that nothing provoked:\n%s", diff)
	}
}

// byTable gives one probe for each row of the error table.
func byTable(path, body string) []probe {
	var probes []probe
	for _, row := range wire.Rows() {
		switch row.Code {
		case wire.SessionLost, wire.HeaderMismatch: // there are no sessions, and no headers of a protocol
		case wire.ApprovalPending: // no refusal, but a Result
		default:
			probes = append(probes, probe{row.HTTP, "alice", "POST", path, fmt.Sprintf(body, row.Kernel), nil})
		}
	}
	return probes
}

// refused gives the probes that every route refuses alike.
func refused(method, path, body, media string) []probe {
	probes := []probe{
		{401, "", method, path, body, nil},
		{401, "mallory", method, path, body, nil},
		{403, "alice", method, path, body, []string{"Host: evil.example"}},
	}
	if media != "" {
		probes = append(probes, probe{406, "alice", method, path, body, []string{"Accept: text/html"}})
	}
	if body != "" {
		probes = append(probes, probe{415, "alice", method, path, body, []string{"Content-Type: text/plain"}})
	}
	return probes
}

func jobProbes() []probe {
	big := `{"query":"` + strings.Repeat("x", 5000) + `"}`
	probes := slices.Concat(byTable("/v1/jobs", `{"tool":%q}`), refused("POST", "/v1/jobs", echoJob, "application/json"))
	for body, status := range map[string]int{
		`{"query":"a","job_type":"b","depth":1,"max_steps":2}`: 200, echoJob: 200, `{"tool":"demo__held"}`: 202, `{"tool":"demo__fails"}`: 502,
		`{"tool":"demo__echo","args":{"n":"x"}}`: 422, `{"tool":"demo__limited"}`: 429, `{`: 400, `{"a":1}`: 400, big: 413,
	} {
		probes = append(probes, probe{status, "alice", "POST", "/v1/jobs", body, nil})
	}
	return probes
}

func rpcProbes() []probe {
	const call = `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":%q}}`
	probes := slices.Concat(byTable("/v1/rpc", call), refused("POST", "/v1/rpc", fmt.Sprintf(call, "demo__echo"), "application/json"))
	for body, status := range map[string]int{
		fmt.Sprintf(call, "demo__echo"): 200, fmt.Sprintf(call, "demo__held"): 200, fmt.Sprintf(call, "demo__fails"): 200, fmt.Sprintf(call, "demo__limited"): 429,
		`{"jsonrpc":"2.0","id":"1","method":"tools/list","params":{}}`: 200, `{"jsonrpc":"2.0","method":"notifications/x"}`: 202,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`: 400, `{`: 400, `{"jsonrpc":"2.0","id":"1","method":"initialize","params":{}}`: 404,
	} {
		probes = append(probes, probe{status, "alice", "POST", "/v1/rpc", body, nil})
	}
	return probes
}

func readProbes(path, id string) []probe {
	const absent = "/v1/artifacts/sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	var probes []probe
	for _, method := range []string{"GET", "HEAD"} {
		probes = slices.Concat(probes, refused(method, "/v1/tools", "", "application/json"), refused(method, path, "", ""), []probe{
			{200, "alice", method, "/v1/tools", "", nil},
			{400, "alice", method, "/v1/tools?x=1", "", nil},
			{200, "alice", method, path, "", nil},
			{206, "alice", method, path, "", []string{"Range: bytes=1-2"}},
			{206, "alice", method, path, "", []string{"Range: bytes=1-2,4-5"}},
			{304, "alice", method, path, "", []string{`If-None-Match: "` + id + `"`}},
			{404, "bob", method, path, "", nil},
			{404, "alice", method, absent, "", nil},
			{412, "alice", method, path, "", []string{`If-Match: "x"`}},
			{416, "alice", method, path, "", []string{"Range: bytes=10-"}},
			{500, "carol", method, path, "", nil},
			{200, "", method, "/v1/openapi.json", "", nil},
			{403, "", method, "/v1/openapi.json", "", []string{"Origin: http://evil.example"}},
			{406, "", method, "/v1/openapi.json", "", []string{"Accept: text/html"}},
		})
	}
	return slices.Concat(probes, refused("GET", "/v1/signals", "", "text/event-stream"), []probe{{500, "carol", "GET", "/v1/signals", "", nil}})
}

// driveStreams opens the event stream and one too many.
func driveStreams(t *testing.T, doc *document) {
	d := open(t, nil)
	ear := d.listen("alice")
	d.listen("alice")
	if err := doc.check("GET", "/v1/signals", answer{200, http.Header{"Content-Type": {"text/event-stream"}}, ""}); err != nil {
		t.Error(err)
	}
	d.job("alice", echoJob)
	for range 2 {
		_, data, _ := strings.Cut(ear.event(), "\ndata: ")
		if err := doc.fits(object{"$ref": "#/components/schemas/Notification"}, data); err != nil {
			t.Errorf("an event: %v: %s", err, data)
		}
	}
	if err := doc.check("GET", "/v1/signals", d.do("alice", "GET", "/v1/signals", "")); err != nil {
		t.Error(err)
	}
}

// driveFailures asks a handler whose parts are broken, and one that is closed.
func driveFailures(t *testing.T, doc *document) {
	broken := open(t, func(g *gate, o *rest.Options) {
		g.silent = true
		o.ToolIO = func(string) (*registry.ToolIO, error) { return nil, errors.New("planted") }
	})
	for _, p := range []probe{
		{500, "alice", "GET", "/v1/tools", "", nil}, {500, "alice", "HEAD", "/v1/tools", "", nil}, {500, "alice", "POST", "/v1/jobs", echoJob, nil},
		{500, "alice", "POST", "/v1/rpc", `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{}}`, nil},
	} {
		if err := doc.check(p.method, p.path, broken.do(p.who, p.method, p.path, p.body)); err != nil {
			t.Error(err)
		}
	}
	closed := open(t, nil)
	closed.handler.Close()
	for path, methods := range closed.handler.Routes() {
		path = strings.Replace(path, "{id}", "sha256:0", 1)
		for _, method := range methods {
			got := closed.do("alice", method, path, "")
			if err := doc.check(method, path, got); err != nil || got.status != 503 {
				t.Errorf("closed: status %d: %v", got.status, err)
			}
		}
	}
}

// TestTheDocumentCanRefuse: a judge that passes everything would judge nothing.
func TestTheDocumentCanRefuse(t *testing.T) {
	doc := readDocument(t, shipped(t, "openapi.json"))
	head := http.Header{"Content-Type": {"application/json"}}
	good := answer{200, head, `{"tools":[]}`}
	if err := doc.check("GET", "/v1/tools", good); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"another path":   doc.check("GET", "/v1/nothing", good),
		"another method": doc.check("POST", "/v1/tools", good),
		"another status": doc.check("GET", "/v1/tools", answer{418, head, good.body}),
		"another type":   doc.check("GET", "/v1/tools", answer{200, http.Header{"Content-Type": {"text/plain"}}, good.body}),
		"another body":   doc.check("GET", "/v1/tools", answer{200, head, `{"tools":[{}]}`}),
		"more members":   doc.check("GET", "/v1/tools", answer{200, head, `{"tools":[],"x":1}`}),
		"no challenge":   doc.check("GET", "/v1/tools", answer{401, http.Header{"Content-Type": {"application/problem+json"}}, `{"type":"urn:toolgate:problem:x","title":"a","status":401,"detail":"b","code":"UNAUTHENTICATED"}`}),
		"a body":         doc.check("POST", "/v1/rpc", answer{202, head, `{}`}),
	} {
		if err == nil {
			t.Errorf("%s passes", what)
		}
	}
	if n := len(doc.unseen()); n < 70 {
		t.Errorf("only %d statuses are unseen before anything was asked", n)
	}
	if _, err := jsonrpc.Value(shipped(t, "openapi.json"), jsonrpc.Limits{}); err != nil {
		t.Errorf("the document has two readings: %v", err)
	}
}
