package peers_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

var (
	pingMessage   = []byte(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	listMessage   = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	listResources = []byte(`{"jsonrpc":"2.0","id":2,"method":"resources/list"}`)
)

// TestFirstListOverStdio: the first list that a client of toolgate stdio asks for is whole.
// At the first start of all it waits for the server. Later it comes before the server has
// answered anything, as does the answer to initialize, and a call waits for the server.
func TestFirstListOverStdio(t *testing.T) {
	t.Parallel()
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

// TestFirstListOfRealServer: the same with a server that nobody here wrote.
func TestFirstListOfRealServer(t *testing.T) {
	t.Parallel()
	dir := configure(t, setup{servers: []server{{"real", map[string]any{"command": requirePart(t, "node"), "args": []string{npmServer(t, "server-everything"), "stdio"}}, nil}}})
	var before [2][]byte
	for _, start := range []string{"first", "second"} {
		t.Run(start, func(t *testing.T) {
			d := openStdio(t, dir)
			tools, resources := d.exchange(t, listMessage), d.exchange(t, listResources)
			if got := listedNames(t, tools); len(got) != 13 {
				t.Errorf("%d tools: %v", len(got), got)
			}
			if !bytes.Contains(resources, []byte(`"uri":"demo://`)) {
				t.Errorf("resources: %s", resources)
			}
			if result := mustCall(t, d, "real__echo", `{"message":"early"}`); !strings.Contains(string(result), "early") {
				t.Errorf("called: %s", result)
			}
			if before[0] == nil {
				before = [2][]byte{tools, resources}
			} else if diff := cmp.Diff(before, [2][]byte{tools, resources}); diff != "" {
				t.Errorf("(-first +second):\n%s", diff)
			}
		})
	}
}
