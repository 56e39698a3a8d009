package peers_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// ownMail lets each person see and call what the server of his name offers.
const ownMail = `visible if input.tool.server == input.principal.subject
allow contains {"rule": "own"} if input.tool.server == input.principal.subject`

// office is a server that trusts an authorization server, behind a gate: each person has a mailbox
// there, and agents of theirs have tokens of the gate.
type office struct {
	*gate
	issuer string
	dir    string // of the gate
	boxes  map[string]*recorder.Recorder
	agents map[string]string // :: person ⇒ token
}

// openOffice starts one whose first access tokens are good for some seconds.
func openOffice(t *testing.T, seconds string, credential map[string]any) *office {
	t.Helper()
	o := &office{issuer: openAuthorizationServer(t, seconds), boxes: map[string]*recorder.Recorder{}, agents: map[string]string{"ann": tokenOf(0), "bob": tokenOf(1)}}
	var servers []server
	for _, person := range []string{"ann", "bob"} {
		o.boxes[person] = recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "mail"}}, Answers: nil})
		servers = append(servers, httpOf(person, o.boxes[person], shared()))
	}
	inner := serveReady(t, guarded(t, o.issuer, ownMail, servers...))
	o.dir = configure(t, setup{agents: 2, servers: []server{{"office", map[string]any{"url": inner.Agents + "/mcp"}, map[string]any{"credential": credential, "isolation": "session"}}}})
	o.gate = serveReady(t, o.dir)
	return o
}

// connect has a person connect in a browser of his own.
func (o *office) connect(t *testing.T, person string) *browserSession {
	t.Helper()
	return o.gate.connect(t, "office", o.agents[person], func(v *browserSession) {
		v.send("", "login", person, "password", "any")
		v.send("") // consent
	})
}

// connect has a person connect to a server in a browser of his own: he signs in at the gate with the
// token of his agent, and at the authorization server with authorize.
func (g *gate) connect(t *testing.T, server, token string, authorize func(v *browserSession)) *browserSession {
	t.Helper()
	v, page := newBrowserSession(t), "/connections/"+server
	v.open(g.Admin+page).send("/console/login", "token", token)
	v.open(g.Admin + page).send(page)
	if authorize(v); v.code != 200 || !strings.HasPrefix(v.at.String(), g.Admin) {
		t.Fatalf("%s: back at %s: %d\n%s", server, v.at, v.code, v.text)
	}
	return v
}

// lists returns the tools that a person's agent sees.
func (o *office) lists(t *testing.T, c rawClient) (names []string) {
	t.Helper()
	answer := string(c.exchange(t, []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)))
	for _, name := range []string{"office__ann__mail", "office__bob__mail"} {
		if strings.Contains(answer, `"`+name+`"`) {
			names = append(names, name)
		}
	}
	return names
}

// TestConnectionsOfPeople: two people connect through one gate to a server that trusts an
// authorization server. Each one's agent sees and reaches his own mailbox alone, at both kinds of
// revisions, after a kill, and with refreshed tokens. One connection ends, and the other stays. No
// token is in what the gate writes or shows.
func TestConnectionsOfPeople(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	o := openOffice(t, "6", map[string]any{"type": "oauth"})
	clients := func(person string) map[string]rawClient {
		session := openHTTP(t, o.Agents+"/mcp", o.agents[person])
		return map[string]rawClient{"session": session, "stateless": rawStateless{&rawHTTP{url: o.Agents + "/mcp", token: o.agents[person]}}}
	}
	var shown strings.Builder
	connected := time.Now()
	for _, person := range []string{"ann", "bob"} {
		v := o.connect(t, person)
		shown.WriteString(v.text)
		shown.WriteString(v.open(o.Admin + "/connections").text)
		o.lists(t, openHTTP(t, o.Agents+"/mcp", o.agents[person]))
		tool := person + "__mail"
		program.Await(t, "the definition of "+tool+" is accepted", func() bool {
			_, code := runCommand(t, o.dir, "tool", "accept", "office", tool)
			return code == 0
		})
	}
	own := func(round int) {
		t.Helper()
		for i, person := range []string{"ann", "bob"} {
			other := []string{"bob", "ann"}[i]
			for kind, c := range clients(person) {
				want := []string{"office__" + person + "__mail"}
				program.Await(t, person+" sees what is his", func() bool { return slices.Equal(o.lists(t, c), want) })
				args := fmt.Sprintf(`{"of":%q,"kind":%q,"round":%d}`, person, kind, round)
				if end := outcome(t, c.exchange(t, callMessage("8", want[0], args))); end != "done" {
					t.Errorf("round %d: %s calls his own: %s", round, person, end)
				}
				wantRuns(t, o.boxes[person], args, 1)
				if end := outcome(t, c.exchange(t, callMessage("9", "office__"+other+"__mail", args))); end == "done" {
					t.Errorf("round %d: %s reaches the mailbox of %s", round, person, other)
				}
				wantRuns(t, o.boxes[other], args, 0)
			}
		}
	}
	own(1)
	o.Kill(t)
	o.Wait(t)
	o.gate = serveReady(t, o.dir)
	own(2)
	program.Await(t, "the first access tokens have ended", func() bool { return time.Since(connected) > 7*time.Second })
	own(3)

	api := func(method, person, path string) string {
		got := ask(t, method, o.Admin+"/v1/connections"+path, "", "Authorization", "Bearer "+o.agents[person])
		shown.WriteString(got.body)
		return got.body
	}
	var list struct {
		Connections []struct{ ID, Server, State string }
	}
	if err := json.Unmarshal([]byte(api(http.MethodGet, "ann", "")), &list); err != nil || len(list.Connections) != 1 || list.Connections[0].State != "live" {
		t.Fatalf("ann's connections: %+v, %v", list, err)
	}
	if got := api(http.MethodDelete, "bob", "/"+list.Connections[0].ID); strings.Contains(got, `"ended"`) {
		t.Errorf("bob ends ann's connection: %s", got)
	}
	own(4)
	api(http.MethodDelete, "ann", "/"+list.Connections[0].ID)
	for kind, c := range clients("ann") {
		got := c.exchange(t, callMessage("9", "office__ann__mail", `{"late":true}`))
		shown.Write(got)
		if code := outcome(t, got); code != "CONNECTION_REQUIRED" || !strings.Contains(string(got), o.Admin+"/connections/office") {
			t.Errorf("%s: a call after the end: %s", kind, got)
		}
	}
	wantRuns(t, o.boxes["ann"], `{"late":true}`, 0)
	for kind, c := range clients("bob") {
		if end := outcome(t, c.exchange(t, callMessage("9", "office__bob__mail", `{"late":true}`))); end != "done" {
			t.Errorf("%s: bob's call after the end of ann's connection: %s", kind, end)
		}
	}
	trail, code := runCommand(t, o.dir, "audit", "tail", "-o", "json")
	if code != 0 || !strings.Contains(trail, list.Connections[0].ID) {
		t.Errorf("the trail does not say with which grants calls ran, exit %d", code)
	}
	shown.WriteString(trail + o.Log.String())
	holdsNoToken(t, o.dir, shown.String())
}

// holdsNoToken fails for a JWT in a text, or in a file of a directory. Each begins with the name of a
// member.
func holdsNoToken(t *testing.T, dir, text string) {
	t.Helper()
	begins := []byte(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":`)))[:8]
	if strings.Contains(text, string(begins)) {
		t.Errorf("a token is shown: %s", text)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, begins) {
			t.Errorf("%s has a token", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
