package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestReadNeighbours(t *testing.T) {
	const good = `[{"name": "one", "command": ["one"], "url": "http://127.0.0.1:{port}/mcp"}]`
	for text, want := range map[string]string{
		good: "",
		"{":  "unexpected end",
		`[{"command": ["one"], "url": "http://127.0.0.1/"}]`: `neighbour "" needs a name`,
		`[{"name": "one", "url": "http://127.0.0.1/"}]`:      `neighbour "one" needs`,
		`[{"name": "one", "command": ["one"]}]`:              `neighbour "one" needs`,
		strings.Replace(good, "one", "governed", 1):          `neighbour "governed" needs a name of its own`,
		good[:len(good)-1] + "," + good[1:]:                  `neighbour "one" needs a name of its own`,
	} {
		file := filepath.Join(t.TempDir(), "peers.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := parse([]string{"-beside", file}, io.Discard)
		if want == "" && (err != nil || len(o.beside) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := parse([]string{"-beside", filepath.Join("testdata", "beside", "peers.json")}, io.Discard); err != nil {
		t.Error(err)
	}
}

// A program that is started like a neighbour is measured in the rounds of toolgate: its
// CPU time is that of all its processes.
func TestBeside(t *testing.T) {
	parts.Long(t, "starts programs")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := options{rounds: 1, duration: 30 * time.Millisecond, scratch: t.TempDir(), toolgate: program.Toolgate(t), beside: []neighbour{{
		Name: "plain", Command: []string{"sh", "-c", `"$@" & trap "kill $!" TERM; wait`, "", self, "proxy", "-to", "{upstream}", "-listen", "127.0.0.1:{port}"},
		URL: "http://127.0.0.1:{port}/mcp",
	}}}
	b, err := newBench(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	for _, w := range beside(o.beside) {
		m := measured{w, b.interleave(w, io.Discard)}
		for _, l := range w.lanes {
			if f := m.Rounds[0][l.name]; f.Calls == 0 || f.Errors > 0 || f.CPU == 0 {
				t.Errorf("%s, %s: %+v", w.name, l.name, f)
			}
		}
	}
	started, err := children(b.sites[durable.site].peers["plain"].pid())
	if err != nil || len(started) != 1 {
		t.Fatalf("processes %v, %v", started, err)
	}
	if err := b.sites[durable.site].peers["plain"].ended(); err != nil {
		t.Error(err)
	}
}

// A neighbour may answer with an event stream, at a path and with headers of its own;
// toolgate may not.
func TestForeignAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/a/mcp" || r.Header.Get("X-Key") != "k" {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
	}))
	defer server.Close()
	e := endpoint{address: server.Listener.Addr().String(), path: "/a/mcp", extra: "X-Key: k\r\n", revision: stateless}
	for _, foreign := range []bool{true, false} {
		e.foreign = foreign
		s, err := dial(e)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			before := s.conn
			if _, err := s.call("ping", "", ""); (err == nil) != foreign {
				t.Errorf("foreign %v: %v", foreign, err)
			}
			if foreign && s.id == 2 && s.conn == before {
				t.Error("an idle connection is used again")
			}
			s.used = s.used.Add(-2 * idleTime)
		}
		s.close()
	}
}
