package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/redis"
	"github.com/toolgate/toolgate/policy/identity"
)

// fleet is three replicas behind an nginx that gives each request to the next one.
type fleet struct {
	dir, url string
	shared   *redis.Server
	replicas []*serving
	peers    []string // the replicas' listeners
}

// asking is a tool that asks its client before it answers.
const asking = `{"Tools": [{"Name": "say"}, {"Name": "ask", "Does": "talk", "Lines": [
	"{\"jsonrpc\":\"2.0\",\"id\":\"qSEQ\",\"method\":\"elicitation/create\",\"params\":{\"message\":\"sure?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{}}}}", "await \"qSEQ\""]}],
	"Changed": [{"Name": "say"}, {"Name": "more"}], "ChangeAfter": 20, "Notify": true}`

func startFleet(t *testing.T) *fleet {
	t.Helper()
	if _, err := exec.LookPath("nginx"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("nginx is not installed: see .ci/debian")
		}
		t.Skip("nginx is not installed")
	}
	shared, server := redis.Start(t, ""), postgres.Started(t)
	store, err := server.Database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{dir: t.TempDir(), shared: shared}
	a, err := authority.New("replicas")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Write(filepath.Join(f.dir, "replica"), 30*24*time.Hour, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	write(t, f.dir, map[string]string{
		"ca.pem": string(a.PEM()), "up.json": asking,
		"policy/p.rego": "package toolgate\n\nimport rego.v2\n\nvisible := true\n\ndecision := {\"effect\": \"allow\", \"rule\": \"all\"}\n",
	})
	var upstreams string
	for n := range 3 {
		r := &serving{dir: f.dir, agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
		peer := program.FreeAddress(t)
		config := fmt.Sprintf("r%d.json", n)
		write(t, f.dir, map[string]string{config: fmt.Sprintf(`{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "called%d"]}}, "toolgate": {
			"listen": %q, "admin": %q, "state": "state%d", "keys": "keys", "store": %q, "shared": %q,
			"replica": {"listen": %q, "tls": {"cert": "replica.crt", "key": "replica.key", "ca": "ca.pem"}},
			"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off", "refused": "off"},
			"identity": {"tokens": [{"subject": "agent", "roles": ["agent"], "sha256": %q}, {"subject": "other", "roles": ["agent"], "sha256": %q}]}}}`,
			n, r.agents, r.admin, n, store, shared.URL, peer, identity.HashToken("agent"), identity.HashToken("other"))})
		r.process = start(t, f.dir, "serve", "--config", config)
		ready(t, r.admin)
		f.replicas, f.peers = append(f.replicas, r), append(f.peers, peer)
		upstreams += "server " + r.agents + " max_fails=0; "
	}
	_, f.url = program.LaunchAt(t, func(address string) *exec.Cmd {
		write(t, f.dir, map[string]string{"nginx.conf": fmt.Sprintf(`daemon off; master_process off; pid nginx.pid; error_log stderr;
			events {}
			http {
				access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
				upstream replicas { %s }
				server { listen %s; location / { proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; proxy_buffering off; proxy_read_timeout 1h; } }
			}`, upstreams, address)})
		return exec.Command("nginx", "-p", f.dir, "-c", "nginx.conf", "-e", "stderr")
	})
	f.url = "http://" + f.url + "/mcp"
	return f
}

// ask sends one request of a session through nginx, with more headers.
func (f *fleet) ask(t *testing.T, method, token, session, body string, more ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": bothForms, "Authorization": "Bearer " + token, "Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25",
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if method == http.MethodGet {
		req.Header.Set("Accept", "text/event-stream")
	}
	for i := 0; i < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// says sends one request and returns the status and the whole answer.
func (f *fleet) says(t *testing.T, token, session, body string) (int, string) {
	t.Helper()
	res := f.ask(t, http.MethodPost, token, session, body)
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// open opens a session whose client can be asked.
func (f *fleet) open(t *testing.T, former string) string {
	t.Helper()
	res := f.ask(t, http.MethodPost, "agent", former,
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	id := res.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("no session: %s", res.Status)
	}
	f.says(t, "agent", id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
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
func (f *fleet) owner(t *testing.T, call int) (owner int) {
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
	f := startFleet(t)
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
	f.askStateless(t)
	f.refuseStrangers(t)

	owner := f.owner(t, 12)
	f.replicas[owner].signal(syscall.SIGKILL)
	<-f.replicas[owner].done
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
	f.replicas[owner].ends(exitOK)
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
func (f *fleet) takenOver(t *testing.T, session string, first int) {
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
func (f *fleet) resume(t *testing.T, session, last string) *bufio.Scanner {
	t.Helper()
	res := f.ask(t, http.MethodGet, "agent", session, "", "Last-Event-ID", last)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the stream is not continued: %s", res.Status)
	}
	return bufio.NewScanner(res.Body)
}

// askStateless makes calls of a client without a session that the server asks, each attempt at
// whichever replica comes next.
func (f *fleet) askStateless(t *testing.T) {
	t.Helper()
	attempt := func(n int, more string) string {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"up__ask","arguments":{"n":%d},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
			"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}%s}}`, n, n, more)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			"Content-Type": "application/json", "Accept": bothForms, "Authorization": "Bearer agent", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "up__ask",
		} {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	state, key := regexp.MustCompile(`"requestState":"([^"]+)"`), regexp.MustCompile(`"inputRequests":\{("[^"]+")`)
	for n := 200; n < 206; n++ {
		asked := attempt(n, "")
		s, k := state.FindStringSubmatch(asked), key.FindStringSubmatch(asked)
		if s == nil || k == nil {
			t.Fatalf("the client is not asked: %s", asked)
		}
		if got := attempt(n, `,"inputResponses":{`+k[1]+`:{"action":"accept","content":{}}},"requestState":"`+s[1]+`"`); !strings.Contains(got, fmt.Sprintf(`"structuredContent":{"n":%d}`, n)) {
			t.Fatalf("the answer: %s", got)
		}
	}
}

// refuseStrangers wants the listeners for replicas to answer nobody without a certificate of
// their authority.
func (f *fleet) refuseStrangers(t *testing.T) {
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
