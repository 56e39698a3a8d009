package ndjson_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/toolgate/toolgate/internal/testkit/conversation"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/proxy/ndjson"
)

var update = flag.Bool("update", false, "write what the door answers into testdata")

// ids are what differs from run to run.
var ids = regexp.MustCompile(`\b(dec|trc|sig)_[0-9A-Za-z]+`)

// volatile is what else does.
var volatile = regexp.MustCompile(`"(duration_ms|created_at|timestamp)":[^,}]+`)

// TestConversations holds the door and a real gate to the wire, byte for byte.
// Each file of testdata is one conversation: a section "client" is one line
// sent, "toolgate" the line answered. Ids and times are starred out.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			b := newBench()
			replay(t, file, dial(t, b.door(t, nil)))
		})
	}
}

// replay asks what file asks and compares the answers with those of file.
func replay(t *testing.T, file string, c *conversation.Line) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := &txtar.Archive{Comment: archive.Comment}
	for _, section := range archive.Files {
		if section.Name == "toolgate" {
			continue
		}
		answer := volatile.ReplaceAllString(ids.ReplaceAllString(c.Ask(strings.TrimSuffix(string(section.Data), "\n")), "${1}_*"), `"$1":"*"`)
		got.Files = append(got.Files, section, txtar.File{Name: "toolgate", Data: []byte(answer + "\n")})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); diff != "" {
		t.Errorf("%s (-file +door):\n%s", file, diff)
	}
}

// dial starts to serve and ends it with the test.
func dial(t testing.TB, d *ndjson.Door) *conversation.Line {
	t.Helper()
	return conversation.Dial(t, d.Serve)
}

// node runs a script of the second implementation, and skips without node.
func node(t *testing.T, args ...string) (out []byte) {
	t.Helper()
	cmd := exec.Command(parts.Need(t, "node"), args...)
	cmd.Env = append(os.Environ(), doorVar+"=1", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("node: %v\n%s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// seen is what the Node client has seen of a server.
type seen struct {
	ByID      map[string]response
	Anonymous []response
	Exit      int
}

type response struct {
	OK     bool
	Data   json.RawMessage
	Error  string
	Issues json.RawMessage
}

// A client that shares no code with us gets from the door what it gets from
// the server of the same hand, wherever the protocol fixes the words.
func TestNodeClient(t *testing.T) {
	const dir = "../../testdata/ndjson/"
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var door, peer seen
	for to, args := range map[*seen][]string{
		&door: {dir + "client.mjs", "demo__", self},
		&peer: {dir + "client.mjs", "", "node", dir + "server.mjs"},
	} {
		if err := json.Unmarshal(node(t, args...), to); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"no-action", "no-payload", "unknown", "bad-type"} {
		got, want := door.ByID[id], peer.ByID[id]
		want.Error = strings.ReplaceAll(want.Error, "'no_such", "'demo__no_such")
		if got.OK || got.Error == "" || got.Error != want.Error {
			t.Errorf("%s: got %q, want %q", id, got.Error, want.Error)
		}
		if want.Issues != nil && string(got.Issues) != string(want.Issues) {
			t.Errorf("%s: issues %s, want %s", id, got.Issues, want.Issues)
		}
	}
	for i, got := range []response{door.Anonymous[0], door.ByID["malformed"], door.ByID["too-large"]} { // the peer leaves out their ids
		if want := peer.Anonymous[i]; got.OK || got.Error != want.Error {
			t.Errorf("without id, number %d: %q, want %q", i, got.Error, want.Error)
		}
	}
	for _, id := range []string{"list", "reply", "echo"} {
		if !door.ByID[id].OK || len(door.ByID[id].Data) == 0 {
			t.Errorf("%s: %+v", id, door.ByID[id])
		}
	}
	if len(door.Anonymous) != 3 || !door.Anonymous[1].OK || !door.Anonymous[2].OK || door.Exit != 0 {
		t.Errorf("without id: %+v; exit %d", door.Anonymous, door.Exit)
	}
}
