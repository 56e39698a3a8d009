package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/redis"
)

// scriptsRun answers how many scripts of toolgate a server has run: each asks for the time
// once, and this one does not.
const scriptsRun = `return {tonumber(string.match(redis.call('INFO', 'commandstats'), 'cmdstat_time:calls=(%d+)') or 0)}`

// A call whose verdict is constant asks neither server, within a lease of its rate limit: by
// the servers' own counters. A call that is held asks the database, and one of a slow limit
// the other server.
func TestHotPathAsksNoServer(t *testing.T) {
	t.Parallel()
	valkey := redis.Start(t, "")
	database := postgres.Database(t)
	r := &serving{dir: t.TempDir(), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
	write(t, r.dir, map[string]string{
		"policy/p.rego": `package toolgate

import rego.v2

decision := {"effect": "hold", "rule": "people", "reason": "ask", "approval": {"roles": ["approver"]}} if input.tool.name == "held"

else := {"effect": "allow", "rule": "all"} if input.tool.name
`,
		"up.json": `{"Tools": [{"Name": "say"}, {"Name": "held"}, {"Name": "slow"}]}`,
		"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}}, "toolgate": {
			"listen": %q, "admin": %q, "store": %q, "shared": %q, "policy": {"path": "policy", "timeout": "10s"}, "approvals": {"hold": "0s"},
			"limits": {"default": "100000/1s", "rules": [{"tool": "up__slow", "rate": "1000/1h"}]}}}`, r.agents, r.admin, database, valkey.URL),
	})
	r.start(t)
	call := func(tool string) {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"up__%s","arguments":{}}}`, tool)
		if _, text, err := (drained{path: "/v1/rpc", body: body}).send(t.Context(), "http://"+r.agents); err != nil || !strings.Contains(text, `"result"`) {
			t.Fatalf("%s: %s, %v", tool, text, err)
		}
	}
	asked := func(do func()) (statements, scripts bool) {
		before, ran := postgres.LastStatements(t, database), valkey.Run(scriptsRun)[0]
		do()
		return postgres.LastStatements(t, database) != before, valkey.Run(scriptsRun)[0] != ran
	}
	call("say") // takes the lease, and judges the pair
	// Both servers hear of the replica by itself every few seconds, so some rounds see that. A
	// busy machine makes fewer calls in between.
	calls := 25
	program.Await(t, "calls in a row ask nobody", func() bool {
		statements, scripts := asked(func() {
			for range calls {
				call("say")
			}
		})
		calls = max(5, calls-1)
		return !statements && !scripts
	})
	if statements, _ := asked(func() { call("held") }); !statements {
		t.Error("a call that is held is not seen to ask the database")
	}
	if _, scripts := asked(func() { call("slow") }); !scripts {
		t.Error("a call of a slow limit is not seen to ask the server of limits")
	}
}
