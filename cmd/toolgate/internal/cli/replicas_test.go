package cli

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/redis"
)

// serving is one of several replicas.
type serving struct {
	*process
	dir, agents, admin string
	config             string // "" = mcp.json
}

func (r *serving) start(t *testing.T) {
	t.Helper()
	r.process = start(t, r.dir, "serve", "--config", cmp.Or(r.config, "mcp.json"))
	ready(t, r.admin)
}

// calls makes n calls and returns how many were answered; all others must be refused by a
// rate limit.
func (r *serving) calls(t *testing.T, n int) (answered int) {
	t.Helper()
	for range n {
		_, text, err := drained{path: "/v1/rpc", body: `{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"up__say","arguments":{}}}`}.send(t.Context(), "http://"+r.agents)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.Contains(text, `"result"`):
			answered++
		case !strings.Contains(text, "RATE_LIMITED") || !strings.Contains(text, "retry_after_ms"):
			t.Fatalf("refused for another reason: %s", text)
		}
	}
	return answered
}

// shows waits until a page of the admin listener has a text.
func (r *serving) shows(t *testing.T, page, text string) {
	t.Helper()
	program.Await(t, fmt.Sprintf("%s says %q", page, text), func() bool {
		_, body, _ := visit("http://"+r.admin+page, "")
		return strings.Contains(body, text)
	})
}

// alone returns how many calls r has limited by itself.
func (r *serving) alone(t *testing.T) (calls int) {
	t.Helper()
	_, body, _ := visit("http://"+r.admin+"/metrics", "")
	_, after, _ := strings.Cut(body, "\ntoolgate_shared_local_total ")
	if _, err := fmt.Sscan(after, &calls); err != nil {
		t.Fatalf("toolgate_shared_local_total: %v", err)
	}
	return calls
}

// Replicas on one server admit together what one would, through restarts of all of them,
// and while the server is away each has its share. A busy machine can be late with an answer: the token
// that it brings is lost then, and the replica limits this call alone.
func TestReplicasShareLimits(t *testing.T) {
	t.Parallel()
	const password = "s3cret-of-the-server"
	server := redis.Start(t, password)
	files := map[string]string{
		"policy/p.rego": "package toolgate\n\nimport rego.v2\n\ndecision := {\"effect\": \"allow\", \"rule\": \"all\"}\n",
		"up.json":       `{"Tools": [{"Name": "say"}]}`,
		"password":      password,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"listen": "AGENTS", "admin": "ADMIN", "policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "10/100h"}, "shared": "redis://:${file:password}@` + server.Addr + `/3"}}`,
	}
	var replicas []*serving
	for range 2 {
		r := &serving{dir: t.TempDir(), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
		write(t, r.dir, files)
		write(t, r.dir, map[string]string{"mcp.json": strings.NewReplacer("AGENTS", r.agents, "ADMIN", r.admin).Replace(files["mcp.json"])})
		r.start(t)
		replicas = append(replicas, r)
	}
	one, two := replicas[0], replicas[1]
	for _, r := range replicas {
		r.shows(t, "/metrics", "toolgate_shared_replicas 2\n")
	}
	if n := one.calls(t, 3) + two.calls(t, 3); n != 6 {
		t.Fatalf("%d of 6 calls were answered", n)
	}
	late := one.alone(t)
	one.signal(syscall.SIGTERM)
	one.ends(command.ExitOK)
	two.shows(t, "/metrics", "toolgate_shared_replicas 1\n")
	one.start(t)
	if n := one.calls(t, 2); n != 2 {
		t.Errorf("%d of 2 calls were answered after a restart", n)
	}
	two.shows(t, "/metrics", "toolgate_shared_replicas 2\n")
	late += one.alone(t) + two.alone(t)
	server.Kill()
	for _, r := range replicas {
		r.shows(t, "/readyz?verbose", "the server of toolgate.shared is away")
		r.shows(t, "/metrics", "toolgate_shared_up 0\n")
	}
	if n := one.calls(t, 10); n > 1 || n < 1 && late == 0 {
		t.Errorf("%d calls were answered without the server, want 1 of 2 that were left", n)
	}
	code, found := toolgate(t, one.dir, "doctor")
	if code != command.ExitUnreachable || !strings.Contains(found, "toolgate.shared") {
		t.Errorf("doctor: exit code %d\n%s", code, found)
	}
	server.Restart()
	for _, r := range replicas {
		r.shows(t, "/metrics", "toolgate_shared_up 1\n")
	}
	late -= one.alone(t) + two.alone(t)
	n := two.calls(t, 10) + one.calls(t, 10)
	if late += one.alone(t) + two.alone(t); n > 1+late || n < 1 && late == 0 {
		t.Errorf("%d calls were answered at last, want 1: nine were answered before", n)
	}
	_, found2 := toolgate(t, one.dir, "doctor")
	if !strings.Contains(found2, "the server answers; 2 replicas") && !strings.Contains(found2, "the server answers after") {
		t.Errorf("doctor:\n%s", found2)
	}
	for _, r := range replicas {
		r.signal(syscall.SIGTERM)
		r.ends(command.ExitOK)
		for _, line := range []string{"is away", "is back"} {
			if n := strings.Count(r.out.String(), "the server of toolgate.shared "+line); n != 1 {
				t.Errorf("the log says %d times that the server %s, want once", n, line)
			}
		}
		if strings.Contains(r.out.String()+found+found2, password) {
			t.Error("the password is in the log, or in what doctor says")
		}
	}
}
