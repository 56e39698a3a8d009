package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/redis"
	"github.com/toolgate/toolgate/policy/identity"
)

// cluster is three replicas behind an nginx that gives each request to the next one.
type cluster struct {
	dir           string
	agents, admin string // addresses of nginx
	url           string
	replicas      []*serving
	peers         []string // the replicas' listeners
	database      *postgres.Server
	shared        *redis.Server
}

// site is what the replicas of a fleet serve: members of mcpServers and of toolgate, in which
// REPLICA is the number of one, and other files.
type site struct {
	servers, settings string
	files             map[string]string
}

// asking is a tool that asks its client before it answers.
const asking = `{"Tools": [{"Name": "say"}, {"Name": "ask", "Does": "talk", "Lines": [
	"{\"jsonrpc\":\"2.0\",\"id\":\"qSEQ\",\"method\":\"elicitation/create\",\"params\":{\"message\":\"sure?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{}}}}", "await \"qSEQ\""]}]`

// changing is how the list of its server changes.
const changing = `, "Changed": [{"Name": "say"}, {"Name": "more"}], "ChangeAfter": 20, "Notify": true}`

// working is a server without sessions whose tool becomes a task, at each replica under one ID.
const working = `{"Stateless": {"Capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "Tools": [
	{"Name": "dig", "Answers": [{"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": 3600000}]},
	{"Name": "tasks/get", "Answers": [{"resultType": "complete", "taskId": "t1", "status": "working"}]}]}}`

// askingSite is that of two principals who may call everything.
func askingSite() site {
	return site{
		servers: `"up": {"command": "recorder", "args": ["up.json", "calledREPLICA"]}, "works": {"command": "recorder", "args": ["works.json", "worksREPLICA"]}`,
		settings: fmt.Sprintf(`"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off", "refused": "off"},
			"identity": {"tokens": [{"subject": "agent", "roles": ["agent"], "sha256": %q}, {"subject": "other", "roles": ["agent"], "sha256": %q}]}`,
			identity.HashToken("agent"), identity.HashToken("other")),
		files: map[string]string{
			"up.json":       asking + changing,
			"works.json":    working,
			"policy/p.rego": "package toolgate\n\nimport rego.v2\n\nvisible := true\n\ndecision := {\"effect\": \"allow\", \"rule\": \"all\"}\n",
		},
	}
}

func startFleet(t *testing.T, dir string, of site) *cluster {
	t.Helper()
	parts.Need(t, "nginx")
	f := &cluster{dir: dir, shared: redis.Start(t, ""), database: postgres.Started(t)}
	store, err := f.database.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, err := authority.New("replicas")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Write(filepath.Join(f.dir, "replica"), 30*24*time.Hour, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	write(t, f.dir, of.files)
	write(t, f.dir, map[string]string{"ca.pem": string(a.PEM())})
	var agents, admin string
	for n := range 3 {
		r := &serving{dir: f.dir, config: fmt.Sprintf("r%d.json", n), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
		peer := program.FreeAddress(t)
		write(t, f.dir, map[string]string{r.config: strings.ReplaceAll(fmt.Sprintf(`{"mcpServers": {%s}, "toolgate": {
			"listen": %q, "admin": %q, "state": "stateREPLICA", "keys": "keys", "store": %q, "shared": %q,
			"replica": {"listen": %q, "tls": {"cert": "replica.crt", "key": "replica.key", "ca": "ca.pem"}}, %s}}`,
			of.servers, r.agents, r.admin, store, f.shared.URL, peer, of.settings), "REPLICA", strconv.Itoa(n))})
		r.start(t)
		f.replicas, f.peers = append(f.replicas, r), append(f.peers, peer)
		agents, admin = agents+"server "+r.agents+" max_fails=0; ", admin+"server "+r.admin+" max_fails=0; "
	}
	f.admin = program.FreeAddress(t)
	_, f.agents = program.LaunchAt(t, func(address string) *exec.Cmd {
		write(t, f.dir, map[string]string{"nginx.conf": fmt.Sprintf(`daemon off; master_process off; pid nginx.pid; error_log stderr;
			events {}
			http {
				access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
				proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; proxy_buffering off; proxy_read_timeout 1h;
				upstream agents { %s }
				upstream admin { %s }
				server { listen %s; location / { proxy_pass http://agents; } }
				server { listen %s; location / { proxy_pass http://admin; } }
			}`, agents, admin, address, f.admin)})
		return exec.Command("nginx", "-p", f.dir, "-c", "nginx.conf", "-e", "stderr")
	})
	f.url = "http://" + f.agents + "/mcp"
	return f
}

// request sends one request through nginx. A header without a value is not sent.
func (f *cluster) request(ctx context.Context, method, token, body string, headers map[string]string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, f.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", bothForms)
	req.Header.Set("Authorization", "Bearer "+token)
	for name, value := range headers {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	return http.DefaultClient.Do(req)
}

// inSession are the headers of a session's requests.
func inSession(id string) map[string]string {
	return map[string]string{"Mcp-Session-Id": id, "Mcp-Protocol-Version": "2025-11-25"}
}

// ask sends one request of a session through nginx, with more headers.
func (f *cluster) ask(t *testing.T, method, token, session, body string, more ...string) *http.Response {
	t.Helper()
	headers := inSession(session)
	if method == http.MethodGet {
		headers["Accept"] = "text/event-stream"
	}
	for i := 0; i < len(more); i += 2 {
		headers[more[i]] = more[i+1]
	}
	res, err := f.request(t.Context(), method, token, body, headers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// says sends one request and returns the status and the whole answer.
func (f *cluster) says(t *testing.T, token, session, body string) (int, string) {
	t.Helper()
	res := f.ask(t, http.MethodPost, token, session, body)
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// open opens a session whose client can be asked.
func (f *cluster) open(t *testing.T, former string) string {
	t.Helper()
	res := f.ask(t, http.MethodPost, "agent", former, initialize)
	id := res.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("no session: %s", res.Status)
	}
	f.says(t, "agent", id, initialized)
	return id
}

func sessionCall(id int, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"up__%s","arguments":{"n":%d}}}`, id, tool, id)
}

// until reads the lines of a stream up to the first that fits, and returns what fits.
func until(t *testing.T, stream *bufio.Scanner, pattern string) []string {
	t.Helper()
	want, before := regexp.MustCompile(pattern), ""
	for stream.Scan() {
		before += stream.Text() + "\n"
		if found := want.FindStringSubmatch(stream.Text()); found != nil {
			return found
		}
	}
	t.Fatalf("the stream ended before %s: %v\n%s", pattern, stream.Err(), before)
	return nil
}

// owner returns the replica whose server received call n, which must be one.
func (f *cluster) owner(t *testing.T, call int) (owner int) {
	t.Helper()
	owner = -1
	for n := range f.replicas {
		called, err := os.ReadFile(filepath.Join(f.dir, fmt.Sprintf("called%d", n)))
		if err == nil && strings.Contains(string(called), fmt.Sprintf(`{"n":%d}`, call)) {
			if owner >= 0 {
				t.Errorf("replicas %d and %d have sent call %d", owner, n, call)
			}
			owner = n
		}
	}
	if owner < 0 {
		t.Fatalf("no replica has sent call %d", call)
	}
	return owner
}

// Three replicas behind a proxy that knows nothing of sessions serve one session: its calls,
// its GET stream, and a question whose answer arrives elsewhere; also that of a client without a
// session. Another principal cannot use the session.
// When the owner is killed or ends, another replica takes the session over: its calls go on, its stream has
// what the client lacks, and a call that was under way ends with an error. A session with subscriptions, or
// with a record that was changed, is lost.
func TestSessionAtAnyReplica(t *testing.T) {
	t.Parallel()
	f := startFleet(t, t.TempDir(), askingSite())
	session := f.open(t, "")
	listening := bufio.NewScanner(f.ask(t, http.MethodGet, "agent", session, "").Body)
	heard := until(t, listening, `^id: (.+)$`)[1]
	for n := 1; n <= 12; n++ {
		if status, text := f.says(t, "agent", session, sessionCall(n, "say")); status != http.StatusOK || !strings.Contains(text, `"result"`) {
			t.Fatalf("call %d: %d %s", n, status, text)
		}
	}
	for n := 13; n < 17; n++ {
		call := bufio.NewScanner(f.ask(t, http.MethodPost, "agent", session, sessionCall(n, "ask")).Body)
		id := until(t, call, `"id":("\w+"),"method":"elicitation/create"`)[1]
		if status, text := f.says(t, "agent", session, `{"jsonrpc":"2.0","id":`+id+`,"result":{"action":"accept","content":{}}}`); status != http.StatusAccepted {
			t.Fatalf("the answer: %d %s", status, text)
		}
		until(t, call, fmt.Sprintf(`"id":%d,.*"result"|"result".*"id":%d`, n, n))
	}
	waiting := bufio.NewScanner(f.ask(t, http.MethodPost, "agent", session, sessionCall(23, "ask")).Body)
	under := until(t, waiting, `^id: (.+)$`)[1]
	until(t, waiting, "elicitation/create")
	for n := 17; n <= 22; n++ { // the list changes meanwhile
		f.says(t, "agent", session, sessionCall(n, "say"))
	}
	until(t, listening, "list_changed")
	for range 3 {
		if status, text := f.says(t, "other", session, sessionCall(1, "say")); status != http.StatusNotFound {
			t.Errorf("another principal: %d %s", status, text)
		}
		if status, _ := f.says(t, "wrong", session, sessionCall(1, "say")); status != http.StatusUnauthorized {
			t.Errorf("a wrong token: %d", status)
		}
	}
	for n := 200; n < 206; n++ {
		if answer, err := f.askStateless(t.Context(), "agent", "up__ask", n); err != nil || !strings.Contains(answer, fmt.Sprintf(`"structuredContent":{"n":%d}`, n)) {
			t.Fatalf("without a session: %v %s", err, answer)
		}
	}
	f.refuseStrangers(t)
	tasks := f.begunTasks(t)

	owner := f.owner(t, 12)
	f.replicas[owner].signal(syscall.SIGKILL)
	<-f.replicas[owner].done
	f.lostTasks(t, tasks)
	if listening.Scan(); listening.Err() == nil {
		for listening.Scan() { // what was on its way
		}
	}
	f.takenOver(t, session, 301)
	until(t, f.resume(t, session, under), `"id":23,"error".*whether the request took effect is unknown`)
	until(t, f.resume(t, session, heard), "list_changed")
	if taken := f.owner(t, 304); taken == owner {
		t.Errorf("replica %d has the session still", owner)
	}
	tampered := f.open(t, "")
	f.says(t, "agent", tampered, sessionCall(310, "say"))
	owner = f.owner(t, 304)
	f.replicas[owner].signal(syscall.SIGTERM)
	f.replicas[owner].ends(command.ExitOK)
	f.takenOver(t, session, 321)
	f.shared.Run(`for _, key in ipairs(redis.call('KEYS', 'toolgate:{sessions}:session:*')) do redis.call('HSET', key, 'record', 'forged') end return {1}`)
	last := f.owner(t, 324)
	for n, r := range f.replicas {
		if n == last {
			r.signal(syscall.SIGKILL)
			<-r.done
			f.replicas[n].process = start(t, f.dir, "serve", "--config", fmt.Sprintf("r%d.json", n))
			ready(t, r.admin)
		}
	}
	program.Await(t, "the client gets SESSION_LOST", func() bool {
		status, text := f.says(t, "agent", session, sessionCall(100, "say"))
		return status == http.StatusNotFound && strings.Contains(text, "SESSION_LOST")
	})
	session = f.open(t, session)
	if status, text := f.says(t, "agent", session, sessionCall(1, "say")); status != http.StatusOK || !strings.Contains(text, `"result"`) {
		t.Errorf("in a new session: %d %s", status, text)
	}
}

// takenOver makes four calls of a session whose owner is gone, from number first on.
func (f *cluster) takenOver(t *testing.T, session string, first int) {
	t.Helper()
	program.Await(t, "another replica takes the session over", func() bool {
		if status, text := f.says(t, "other", session, sessionCall(100, "say")); status == http.StatusOK {
			t.Fatalf("another principal: %d %s", status, text)
		}
		status, text := f.says(t, "agent", session, sessionCall(100, "say"))
		if status == http.StatusNotFound {
			t.Fatalf("the session is lost: %s", text)
		}
		return status == http.StatusOK
	})
	for n := first; n < first+4; n++ {
		if status, text := f.says(t, "agent", session, sessionCall(n, "say")); status != http.StatusOK || !strings.Contains(text, `"result"`) {
			t.Fatalf("call %d after the owner was gone: %d %s", n, status, text)
		}
	}
}

// resume continues a stream of a session after an event.
func (f *cluster) resume(t *testing.T, session, last string) *bufio.Scanner {
	t.Helper()
	res := f.ask(t, http.MethodGet, "agent", session, "", "Last-Event-ID", last)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the stream is not continued: %s", res.Status)
	}
	return bufio.NewScanner(res.Body)
}

// task sends a request of a client without a session that takes tasks, about what is named.
func (f *cluster) task(t *testing.T, token, method, member, name string) string {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%q:%q,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},
		"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`, method, member, name)
	answer, err := wholeBody(f.request(t.Context(), http.MethodPost, token, body, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// begunTasks begins tasks of one client at all replicas, and returns their IDs. Every replica answers requests
// about them, to their principal alone.
func (f *cluster) begunTasks(t *testing.T) (ids []string) {
	t.Helper()
	for len(ids) < len(f.replicas) {
		answer := f.task(t, "agent", "tools/call", "name", "works__dig")
		id := taskIn.FindStringSubmatch(answer)
		switch {
		case id == nil && strings.Contains(answer, "the server began a task under an id that is taken"): // by an earlier one at this replica
			continue
		case id == nil:
			t.Fatalf("no task: %s", answer)
		}
		ids = append(ids, id[1])
	}
	for _, id := range ids {
		for range f.replicas {
			if answer := f.task(t, "agent", "tasks/get", "taskId", id); !strings.Contains(answer, "working") || !strings.Contains(answer, id) {
				t.Errorf("the task %s: %s", id, answer)
			}
			if answer := f.task(t, "other", "tasks/get", "taskId", id); !strings.Contains(answer, "no such task") {
				t.Errorf("another principal: %s", answer)
			}
		}
	}
	return ids
}

var taskIn = regexp.MustCompile(`"taskId": ?"([^"]+)"`)

// lostTasks wants the tasks of the one replica that is gone to be reported as lost, and the others to be there.
func (f *cluster) lostTasks(t *testing.T, ids []string) {
	t.Helper()
	lost := 0
	for _, id := range ids {
		answer := ""
		program.Await(t, "the replicas know that one of them is gone", func() bool { // a connection to it may still look alive
			answer = f.task(t, "agent", "tasks/get", "taskId", id)
			return !strings.Contains(answer, "the replica that has the session or the call did not answer")
		})
		switch {
		case strings.Contains(answer, "the replica that ran the task is gone, and the task with it; whether the task took effect is unknown"):
			lost++
		case !strings.Contains(answer, "working"):
			t.Errorf("the task %s: %s", id, answer)
		}
	}
	if lost != 1 {
		t.Errorf("%d of %d tasks are lost", lost, len(ids))
	}
}

// attempt makes one attempt of call n of a tool that asks its client, which has no session.
func (f *cluster) attempt(ctx context.Context, token, tool string, n int, more string) (string, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"n":%d},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
		"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}%s}}`, n, tool, n, more)
	return wholeBody(f.request(ctx, http.MethodPost, token, body, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}))
}

// wholeBody returns the whole body of a response.
func wholeBody(res *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

var (
	stateOf = regexp.MustCompile(`"requestState":"([^"]+)"`)
	askedOf = regexp.MustCompile(`"inputRequests":\{("[^"]+")`)
)

// askStateless makes call n of a tool that asks its client, which has no session, each attempt
// at whichever replica comes next. It returns the answer to the last attempt.
func (f *cluster) askStateless(ctx context.Context, token, tool string, n int) (string, error) {
	asked, err := f.attempt(ctx, token, tool, n, "")
	state, key := stateOf.FindStringSubmatch(asked), askedOf.FindStringSubmatch(asked)
	if err != nil || state == nil || key == nil {
		return asked, err
	}
	return f.attempt(ctx, token, tool, n, `,"inputResponses":{`+key[1]+`:{"action":"accept","content":{}}},"requestState":"`+state[1]+`"`)
}

// refuseStrangers wants the listeners for replicas to answer nobody without a certificate of
// their authority.
func (f *cluster) refuseStrangers(t *testing.T) {
	t.Helper()
	foreign, err := authority.New("foreign")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := foreign.Issue(time.Hour, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for what, shown := range map[string][]tls.Certificate{"none": nil, "of another authority": {pair}} {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: shown}}} //nolint:gosec // the server is to refuse
		for _, peer := range f.peers {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+peer+"/mcp", nil)
			if err != nil {
				t.Fatal(err)
			}
			if res, err := client.Do(req); err == nil {
				res.Body.Close()
				t.Errorf("a certificate %s: %s", what, res.Status)
			} else if !strings.Contains(err.Error(), "certificate") {
				t.Error(err)
			}
		}
	}
}
