package peers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

var (
	pingMessage = []byte(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	listMessage = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
)

// otherLists returns the answers to all list requests but tools/list.
func otherLists(t testing.TB, d rawClient) []byte {
	t.Helper()
	var out [][]byte
	for i, method := range []string{"prompts/list", "resources/list", "resources/templates/list"} {
		out = append(out, d.exchange(t, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q}`, i, method)))
	}
	return bytes.Join(out, []byte("\n"))
}

// awaitKept waits until the state in dir has the lists of its server.
func awaitKept(t testing.TB, dir string) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(dir, "state", "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	program.Await(t, "the lists are kept", func() bool {
		rows, err := store.Select(t.Context(), db.Read, func(n *int) []any { return []any{n} }, `SELECT 1 FROM listings WHERE lists IS NOT NULL`)
		return err == nil && len(rows) == 1
	})
}

// TestFirstListsWithoutServer: the first lists of resources and prompts are the same while
// the server starts again as from the server itself: what the policy hides is not listed,
// hidden characters are spelled out, and prompts have their exposed names.
func TestFirstListsWithoutServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	gate := recorder.NewGate(t)
	gate.Open()
	rec := recorder.Stdio(t, recorder.Config{Gate: gate.Address, Tools: []recorder.Tool{{Name: "a"}}, Capabilities: json.RawMessage(`{"tools":{},"prompts":{},"resources":{}}`), Answers: map[string]json.RawMessage{
		"prompts/list":             json.RawMessage(`{"prompts":[{"name":"say","description":"a\u200bb"},{"name":"secret"}]}`),
		"prompts/get":              json.RawMessage(`{"messages":[]}`),
		"resources/list":           json.RawMessage(`{"resources":[{"uri":"note://1","name":"1"},{"uri":"secret://1","name":"2"}]}`),
		"resources/templates/list": json.RawMessage(`{"resourceTemplates":[{"uriTemplate":"note://{n}","name":"n"}]}`),
	}})
	dir := configure(t, setup{servers: []server{stdioOf("slow", rec, map[string]any{"hidden_text": "escape"})}, policy: `
default decision := {"effect": "allow", "rule": "peers"}
decision := {"effect": "deny", "rule": "secret", "reason": "secret"} if input.prompt.name == "secret"
decision := {"effect": "deny", "rule": "secret", "reason": "secret"} if startswith(input.resource.uri, "secret:")`})
	first := openStdio(t, dir)
	before := otherLists(t, first)
	awaitKept(t, dir)
	for _, want := range []string{`"slow__say"`, `a<U+200B>b`, `"note://1"`, `"note://{n}"`} {
		if !bytes.Contains(before, []byte(want)) {
			t.Errorf("%s is not in %s", want, before)
		}
	}
	if bytes.Contains(before, []byte("secret")) {
		t.Errorf("the policy does not hide: %s", before)
	}
	gate.Shut()
	heard := len(rec.Messages())
	d := openStdio(t, dir)
	if diff := cmp.Diff(string(before), string(otherLists(t, d))); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	d.send(t, []byte(`{"jsonrpc":"2.0","id":"get","method":"prompts/get","params":{"name":"slow__say"}}`))
	if d.exchange(t, pingMessage); len(rec.Messages()) != heard {
		t.Errorf("the server received %s", rec.Messages()[heard:])
	}
	gate.Open()
	if result, failure := splitAnswer(d.next(t)); !bytes.Contains(result, []byte(`"messages"`)) {
		t.Errorf("got the prompt: %s%s", result, failure)
	}
}

// TestFirstListOverStdio: the first list that a client of toolgate stdio asks for is whole.
// At the first start of all it waits for the server. Later it comes before the server has
// answered anything, as does the answer to initialize, and a call waits for the server.
func TestFirstListOverStdio(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	gate := recorder.NewGate(t)
	rec := recorder.Stdio(t, recorder.Config{Gate: gate.Address, Tools: []recorder.Tool{{Name: "b"}, {Name: "a"}}})
	dir := configure(t, setup{servers: []server{stdioOf("slow", rec, nil)}})
	list := func(t *testing.T, d *rawStdio) {
		if got := strings.Join(listedNames(t, d.exchange(t, listMessage)), " "); got != "slow__b slow__a" {
			t.Errorf("listed %q", got)
		}
	}
	t.Run("the first start", func(t *testing.T) {
		d := startStdio(t, dir)
		d.send(t, []byte(initializeMessage))
		program.Await(t, "the server starts", func() bool { return gate.Held() > 0 })
		gate.Open()
		d.next(t)
		list(t, d)
	})
	t.Run("the second start", func(t *testing.T) {
		gate.Shut()
		heard := len(rec.Messages())
		d := openStdio(t, dir)
		list(t, d)
		d.send(t, callMessage("7", "slow__a", `{"n":1}`))
		if d.exchange(t, pingMessage); len(rec.Messages()) != heard {
			t.Errorf("the server received %s", rec.Messages()[heard:])
		}
		gate.Open()
		if result, failure := splitAnswer(d.next(t)); !bytes.Contains(result, []byte(`{"n":1}`)) {
			t.Errorf("called: %s%s", result, failure)
		}
		if len(d.notes) != 0 {
			t.Errorf("notified of %s", d.notes)
		}
	})
}

// listedNames returns the names in the answer to tools/list.
func listedNames(t testing.TB, answer []byte) (names []string) {
	t.Helper()
	var page struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal(answer, &page); err != nil {
		t.Fatal(err)
	}
	for _, tool := range page.Result.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// TestFirstListOfRealServer: the same with a server that nobody here wrote. At its second
// start it waits for a line in a pipe, and the lists are there before it has begun.
func TestFirstListOfRealServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, everything := requirePart(t, "node"), npmServer(t, "server-everything")
	pipe := filepath.Join(t.TempDir(), "pipe")
	script := `if [ -p "$0" ]; then read line < "$0"; fi; exec "$@"`
	dir := configure(t, setup{servers: []server{{"real", map[string]any{"command": "/bin/sh", "args": []string{"-c", script, pipe, node, everything, "stdio"}}, map[string]any{"start_wait": "60s"}}}})
	lists := func(t *testing.T, d *rawStdio) string {
		tools, others := d.exchange(t, listMessage), otherLists(t, d)
		if got := listedNames(t, tools); len(got) != 13 {
			t.Errorf("%d tools: %v", len(got), got)
		}
		for _, want := range []string{`"name":"real__simple-prompt"`, `"uri":"demo://`, `"uriTemplate":"demo://`} {
			if !bytes.Contains(others, []byte(want)) {
				t.Errorf("%s is not in %s", want, others)
			}
		}
		return string(tools) + "\n" + string(others)
	}
	d := openStdio(t, dir)
	first := lists(t, d)
	awaitKept(t, dir)
	if err := exec.Command("mkfifo", "-m", "600", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	d = openStdio(t, dir)
	if diff := cmp.Diff(first, lists(t, d)); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	in, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err = os.Remove(pipe); err == nil { // later processes do not wait
		_, err = in.WriteString("\n")
	}
	if err = errors.Join(err, in.Close()); err != nil {
		t.Fatal(err)
	}
	if result := mustCall(t, d, "real__echo", `{"message":"early"}`); !strings.Contains(string(result), "early") {
		t.Errorf("called: %s", result)
	}
	if answer := d.exchange(t, []byte(`{"jsonrpc":"2.0","id":9,"method":"prompts/get","params":{"name":"real__simple-prompt"}}`)); !bytes.Contains(answer, []byte("simple prompt")) {
		t.Errorf("got the prompt: %s", answer)
	}
}
