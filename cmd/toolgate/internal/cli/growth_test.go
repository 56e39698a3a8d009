package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// growth is what grows on the disk, in bytes.
type growth struct{ trail, state, artifacts, log int64 }

// measured returns the sizes of a state directory and of a log. Of state.db, pages in use
// count.
func measured(t *testing.T, dir, log string) (g growth) {
	t.Helper()
	size := func(path string) (sum int64) {
		err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				sum += info.Size()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"), store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Read.QueryRow("SELECT (c.page_count - f.freelist_count) * s.page_size FROM pragma_page_count c, pragma_freelist_count f, pragma_page_size s").Scan(&g.state)
	if err != nil {
		t.Fatal(err)
	}
	g.trail, g.artifacts, g.log = size(filepath.Join(dir, "audit")), size(filepath.Join(dir, "artifacts")), size(log)
	return g
}

// calling returns a function that calls tools as one principal; its answer is the result, or the error's data.
func calling(t *testing.T, base, token string) func(tool, arguments string) json.RawMessage {
	t.Helper()
	a, err := (&command.Env{Addr: base, Token: token}).Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return func(tool, arguments string) json.RawMessage {
		result, fault := a.Do(context.Background(), &mcpclient.Call{ID: a.NextID(), Method: "tools/call", Params: fmt.Appendf(nil, `{"name":%q,"arguments":%s}`, tool, arguments)})
		if fault != nil {
			return fault.RPC
		}
		return result
	}
}

// TestGrowth prints what a call of each kind leaves on the disk: the table in
// docs/evidence/capacity.md. It takes a while, so it runs only with TOOLGATE_MEASURE set.
func TestGrowth(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("prints the figures of docs/evidence/capacity.md (TOOLGATE_MEASURE=1)")
	}
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	shipped, err := os.ReadFile(filepath.Join(repository(t), "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	unlimited := strings.NewReplacer(`"60/1m"`, `"off"`, `"10/1m"`, `"100000/1m"`).Replace(string(shipped))
	write(t, dir, map[string]string{"mcp.json": unlimited, "more.json": `{"approvals": {"hold": "0s", "max_live": 1000}, "limits": {"refused": "off"}, "audit": {"durability": "os"}}`})
	log := filepath.Join(dir, "log")
	p := start(t, dir, "serve", "--overlay", "more.json", "--listen", agents, "--admin", admin)
	ready(t, admin)
	search, pay, draw := calling(t, "http://"+agents, "demo-researcher"), calling(t, "http://"+agents, "demo-treasurer"), calling(t, "http://"+agents, "demo-creator")
	var tickets []string
	n := 90
	for _, kind := range []struct {
		name, want string
		call       func(i int) string
	}{
		{"allowed: search_internet", `"content"`, func(i int) string {
			return string(search("search_internet", fmt.Sprintf(`{"query":"model context protocol %d","num_results":5}`, i)))
		}},
		{"allowed: transfer", `"content"`, func(i int) string {
			return string(pay("manage_wallet", fmt.Sprintf(`{"action":"transfer","asset":"USD","amount":0.%02d,"destination":"acme"}`, i+1)))
		}},
		{"denied", `-32600`, func(i int) string {
			return string(search("manage_wallet", fmt.Sprintf(`{"action":"balance","asset":"USD","n":%d}`, i)))
		}},
		{"picture of one artifact", `"content"`, func(i int) string {
			return string(draw("generate_media", fmt.Sprintf(`{"prompt":"a lighthouse %d","aspect_ratio":"1:1","model":"card-1"}`, i)))
		}},
		{"held, pending", `apr_`, func(i int) string {
			answer := string(pay("manage_wallet", fmt.Sprintf(`{"action":"transfer","asset":"USD","amount":101.%02d,"destination":"acme"}`, i)))
			_, rest, _ := strings.Cut(answer, "apr_")
			if len(rest) >= 26 {
				tickets = append(tickets, "apr_"+rest[:26])
			}
			return answer
		}},
		{"approved by one person", `200`, func(i int) string { return approveOver(t, admin, tickets[i]) }},
		{"run after approval", `"content"`, func(i int) string {
			return string(pay("manage_wallet", fmt.Sprintf(`{"action":"transfer","asset":"USD","amount":101.%02d,"destination":"acme"}`, i)))
		}},
	} {
		put(t, log, p)
		before := measured(t, filepath.Join(dir, ".toolgate"), log)
		for i := range n {
			if got := kind.call(i); !strings.Contains(got, kind.want) {
				t.Fatalf("%s: %.400s", kind.name, got)
			}
		}
		put(t, log, p)
		after := measured(t, filepath.Join(dir, ".toolgate"), log)
		per := func(a, b int64) int64 { return (b - a) / int64(n) }
		t.Logf("%-28s trail %6d  state.db %6d  artifacts %7d  log %4d", kind.name, per(before.trail, after.trail), per(before.state, after.state), per(before.artifacts, after.artifacts), per(before.log, after.log))
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
}

// put writes what a process has printed so far to a file.
func put(t *testing.T, path string, p *process) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := os.WriteFile(path, p.out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// approveOver approves a ticket, and returns the status of the answer.
func approveOver(t *testing.T, admin, ticket string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+admin+"/v1/approvals/"+ticket+"/approve", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer demo-approver")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.Status
}
