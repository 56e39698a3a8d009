package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/policy/identity"
)

// ends stops all replicas and verifies their trails.
func (f *cluster) ends(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		r.signal(syscall.SIGTERM)
	}
	for n, r := range f.replicas {
		r.process.ends(command.ExitOK)
		if code, out := toolgate(t, f.dir, "audit", "verify", "--config", r.config, "--state", fmt.Sprintf("state%d", n), "--trail-only"); code != command.ExitOK {
			t.Errorf("the trail of replica %d: exit code %d\n%s", n, code, out)
		}
	}
}

// The README's story runs at three replicas: nginx sends each request to the next one.
func TestStoryAtReplicas(t *testing.T) {
	t.Parallel()
	story, err := os.ReadFile(filepath.Join(repository(t), "testdata", "story.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	_, story, starts := bytes.Cut(story, []byte("ready $ADMIN\n"))
	story, _, stops := bytes.Cut(story, []byte("# Every call is in the trail"))
	if !starts || !stops {
		t.Fatal("the story does not start and stop toolgate as it did")
	}
	dir := t.TempDir()
	var shipped struct{ Toolgate json.RawMessage }
	text, err := os.ReadFile(filepath.Join(repository(t), "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	decode(t, text, &shipped)
	// The wallet keeps its money in memory, so that there is one for all replicas.
	tools := &serving{dir: dir, config: "tools.json", agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
	write(t, dir, map[string]string{
		"open/p.rego": allowAll,
		tools.config: fmt.Sprintf(`{"mcpServers": {"standard": {"command": "toolgate", "args": ["tools"]}}, "toolgate": {
			"listen": %q, "admin": %q, "state": "tools", "policy": {"path": "open", "timeout": "10s"}, "limits": {"default": "off"}, "servers": {"standard": {"isolation": "shared"}}}}`, tools.agents, tools.admin),
		"story.txtar": string(story),
	})
	tools.start(t)
	f := startFleet(t, dir, site{
		servers:  fmt.Sprintf(`"standard": {"type": "http", "url": "http://%s/mcp/standard"}`, tools.agents),
		settings: strings.TrimSuffix(strings.TrimPrefix(string(shipped.Toolgate), "{"), "}"),
	})
	p := params(t, "")
	p.Dir, p.Files = "", []string{filepath.Join(dir, "story.txtar")}
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		err := setup(e)
		e.Setenv("AGENTS", f.agents)
		e.Setenv("ADMIN", f.admin)
		return err
	}
	t.Run("story", func(t *testing.T) { testscript.Run(t, p) })
	f.ends(t)
}

// crowd is the clients of a fleet, who make calls until they are stopped.
type crowd struct {
	*cluster
	agent *replica // nginx
	next  atomic.Int64

	mu    sync.Mutex     // protects the fields below
	made  map[string]int // answered calls, by the kind of client
	told  map[string]int // of the others, by what the client was told
	wrong []string       // answers that nobody should get
	ended map[int]string // how calls ended that people approve
}

// kinds are those of clients.
var kinds = []string{"approved", "limited", "session", "asked", "stateless"}

// refusals are what a client may be told while parts of the fleet are killed.
var refusals = regexp.MustCompile(`SESSION_LOST|STORE_UNAVAILABLE|whether the request took effect is unknown|502 Bad Gateway|try again|shutting down|inputRequests|nothing waits for requestState`)

// note counts an answer that matches, or what the client was told instead; "" is nothing.
func (c *crowd) note(kind, want, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case answer == "":
		c.told["nothing"]++
	case regexp.MustCompile(want).MatchString(answer):
		c.made[kind]++
	case refusals.MatchString(answer):
		c.told[refusals.FindString(answer)]++
	default:
		c.wrong = append(c.wrong, kind+": "+answer)
	}
}

// reach waits until clients of each kind have made two more calls each.
func (c *crowd) reach(t *testing.T, what string) {
	t.Helper()
	c.mu.Lock()
	before := maps.Clone(c.made)
	c.mu.Unlock()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: answered %v before", what, before)
		}
	})
	program.Await(t, what, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, kind := range kinds {
			if c.made[kind] < before[kind]+2 {
				return false
			}
		}
		return true
	})
}

// approved makes calls that people approve, each again until it has ended.
func (c *crowd) approved(ctx context.Context) {
	n := int(c.next.Add(1))
	for ctx.Err() == nil {
		how, answer := c.agent.say(ctx, n)
		if how == "pending" || how == "STORE_UNAVAILABLE" || how == "nothing" || how == "done" && !strings.Contains(answer, `"result"`) {
			continue // in the last case a replica that ends has refused the request
		}
		c.mu.Lock()
		c.ended[n] = how
		c.mu.Unlock()
		c.note("approved", `"result"|it is not made again`, answer)
		return
	}
}

// limited makes a call that has a rate limit, and reports whether that refused it.
func (c *crowd) limited(ctx context.Context) (over bool) {
	status, answer := send(ctx, "http://"+c.agents+"/v1/rpc", "limited", c.call("up__say"))
	if status == 0 {
		answer = ""
	}
	if strings.Contains(answer, `"result"`) {
		c.note("within", "", answer)
	}
	c.note("limited", `"result"|RATE_LIMITED`, answer)
	return strings.Contains(answer, "RATE_LIMITED")
}

// call returns the next call of a tool.
func (c *crowd) call(tool string) string {
	n := c.next.Add(1)
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":%q,"arguments":{"text":"call-%d.","n":%d}}}`, n, tool, n, n)
}

// visitor is a client with a session, which it opens again when told that it is lost.
type visitor struct {
	*crowd
	id string
}

// post sends a message of the session, and returns the answer.
func (s *visitor) post(ctx context.Context, body string) string {
	text, err := wholeBody(s.request(ctx, http.MethodPost, "other", body, inSession(s.id)))
	if strings.Contains(text, "SESSION_LOST") {
		s.id = ""
	}
	if err != nil {
		return ""
	}
	return text
}

// open opens the session if there is none.
func (s *visitor) open(ctx context.Context) bool {
	if s.id != "" {
		return true
	}
	res, err := s.request(ctx, http.MethodPost, "other", initialize, inSession(""))
	if err != nil {
		return false
	}
	res.Body.Close()
	s.id = res.Header.Get("Mcp-Session-Id")
	return s.id != "" && s.post(ctx, initialized) == ""
}

// session makes a call.
func (s *visitor) session(ctx context.Context) {
	if s.open(ctx) {
		s.note("session", `"result"`, s.post(ctx, s.call("up__say")))
	}
}

// answers answers a question. It returns false when nobody has received the answer.
func (s *visitor) answers(ctx context.Context, question string) bool {
	res, err := s.request(ctx, http.MethodPost, "other", `{"jsonrpc":"2.0","id":`+question+`,"result":{"action":"accept","content":{}}}`, inSession(s.id))
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode < http.StatusInternalServerError
}

// asked makes a call whose server asks the client before it answers.
func (s *visitor) asked(ctx context.Context) {
	if !s.open(ctx) {
		return
	}
	res, err := s.request(ctx, http.MethodPost, "other", s.call("asks__ask"), inSession(s.id))
	if err != nil {
		s.id = ""
		s.note("asked", "", "")
		return
	}
	defer res.Body.Close()
	answer, stream := "", bufio.NewScanner(res.Body)
	for stream.Scan() {
		question := asks.FindStringSubmatch(stream.Text())
		if question == nil {
			answer += stream.Text()
			continue
		}
		for ctx.Err() == nil && !s.answers(ctx, question[1]) { // the replica that was asked may have been killed
		}
	}
	if stream.Err() != nil {
		answer = ""
	}
	if !strings.Contains(answer, `"result"`) { // the server may wait for its answer
		s.id = ""
	}
	s.note("asked", `"result"`, answer)
}

var asks = regexp.MustCompile(`"id":("\w+"),"method":"elicitation/create"`)

// stateless makes a call whose server asks a client without a session.
func (c *crowd) stateless(ctx context.Context) {
	answer, err := c.askStateless(ctx, "other", "asks__ask", int(c.next.Add(1)))
	if err != nil {
		answer = ""
	}
	c.note("stateless", `"result":.*"structuredContent"`, answer)
}

// crowdSite is what the crowd calls: a server that counts, and one that asks.
func crowdSite(counting string) site {
	var tokens []string
	for _, who := range []string{"agent", "boss", "limited", "other"} {
		tokens = append(tokens, fmt.Sprintf(`{"subject": %q, "roles": [%[1]q], "sha256": %q}`, who, identity.HashToken(who)))
	}
	return site{
		servers: fmt.Sprintf(`"up": {"type": "http", "url": %q}, "asks": {"command": "recorder", "args": ["asks.json", "askedREPLICA"]}`, counting),
		settings: fmt.Sprintf(`"policy": {"path": "policy", "timeout": "10s"}, "approvals": {"hold": "0s", "max_live": 1000}, "identity": {"tokens": [%s]},
			"limits": {"default": "off", "refused": "off", "rules": [{"role": "limited", "rate": "%d/1000h"}]}`, strings.Join(tokens, ", "), crowdLimit),
		files: map[string]string{
			"asks.json": asking + "}",
			"policy/p.rego": `package toolgate

import rego.v2

allow contains {"rule": "all", "reason": "this is a test"}

hold contains {"rule": "each", "reason": "each call", "approval": {"roles": ["boss"], "quorum": 1}} if "agent" in input.principal.roles
`,
		},
	}
}

// crowdLimit is how many calls limited clients may make.
const crowdLimit = 1000

// Three replicas with PostgreSQL and Valkey are killed one after the other under load, and so
// is each server. No call runs twice or without its record, the limit holds, and each
// client gets an answer or the reason why there is none.
func TestFleetUnderFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	up, address := startCountingUpstream(t, dir)
	f := startFleet(t, dir, crowdSite(address))
	c := &crowd{cluster: f, agent: &replica{agents: f.agents, admin: f.admin}, made: map[string]int{}, told: map[string]int{}, ended: map[int]string{}}
	t.Cleanup(func() {
		t.Logf("answered %v, told %v", c.made, c.told)
		for _, answer := range c.wrong[:min(len(c.wrong), 10)] {
			t.Error(answer)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for _, act := range []func(context.Context){
		c.approved, c.approved, func(ctx context.Context) { c.limited(ctx) }, (&visitor{crowd: c}).session, (&visitor{crowd: c}).asked, c.stateless,
		func(ctx context.Context) { c.agent.approveAll(ctx) },
	} {
		clients.Go(func() {
			for ctx.Err() == nil {
				act(ctx)
			}
		})
	}
	c.reach(t, "every kind of client is answered")
	for n, r := range f.replicas {
		r.signal(syscall.SIGKILL)
		<-r.done
		c.reach(t, fmt.Sprintf("every kind of client is answered while replica %d is away", n))
		r.start(t)
	}
	f.shared.Kill()
	c.reach(t, "every kind of client is answered without the server of limits")
	f.shared.Restart()
	f.database.Kill()
	if err := f.database.Restart(); err != nil {
		t.Fatal(err)
	}
	c.reach(t, "every kind of client is answered after a restart of the database")
	f.replicas[0].signal(syscall.SIGTERM)
	f.replicas[0].process.ends(command.ExitOK)
	c.reach(t, "every kind of client is answered after a replica has ended")
	f.replicas[0].start(t)
	stop()
	clients.Wait()
	for over := 0; over < len(f.replicas); {
		if over++; !c.limited(t.Context()) {
			over = 0
		}
	}
	if n := c.made["within"]; n > crowdLimit+len(f.replicas) { // a slow bucket's lease is one token
		t.Errorf("%d calls were within a limit of %d", n, crowdLimit)
	}
	for n := range int(c.next.Load()) {
		if ran := up.ran(n); ran > 1 || c.ended[n] == "done" && ran != 1 {
			t.Errorf("call %d ended as %q and ran %d times", n, c.ended[n], ran)
		}
	}
	f.ends(t)
}
