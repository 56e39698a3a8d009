package peers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// keycloakKit is the Keycloak that testdata/keycloak/install pins.
var keycloakKit = parts.Kit{
	Dir: "keycloak", Lock: "install", Stamp: filepath.Join("dist", "version.txt"), Target: "keycloak", Commands: [][]string{{"sh", "install"}},
}

// keycloak is a running Keycloak with the realm of testdata/keycloak/realm.json.
type keycloak struct {
	t     *testing.T
	url   string
	realm string // its issuer
	admin string // bearer token of the administrator
}

// openKeycloak starts Keycloak, with a realm whose tokens are for the gate. It calls the gate
// while Keycloak starts, and returns the gate too.
func openKeycloak(t *testing.T, open func(issuer string) *gate) (*keycloak, *gate) {
	t.Helper()
	java := parts.Need(t, "java")
	dist := filepath.Dir(keycloakKit.File(t, filepath.Join("dist", "version.txt")))
	address := program.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(java, "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dkc.home.dir="+dist, "-Djava.util.logging.manager=org.jboss.logmanager.LogManager",
		"-cp", filepath.Join(dist, "lib", "quarkus-run.jar"), "io.quarkus.bootstrap.runner.QuarkusEntryPoint",
		"start", "--optimized", "--cache=local", "--http-enabled=true", "--hostname-strict=false", "--http-host=127.0.0.1", "--http-port="+port)
	cmd.Env = append(os.Environ(), "KC_BOOTSTRAP_ADMIN_USERNAME=admin", "KC_BOOTSTRAP_ADMIN_PASSWORD=any")
	p := program.Launch(t, cmd)
	k := &keycloak{t: t, url: "http://" + address, realm: "http://" + address + "/realms/agents"}
	g := open(k.realm)
	for _, line := range []string{"With HTTPS not enabled", "Virtual threads support", "Initializing database schema", "Node name", "Initializing master realm", "Listening on"} {
		if !p.Await(t, line, func() bool { return strings.Contains(p.Out.String(), line) }) {
			t.Fatalf("keycloak ended: %v\n%s", p.Err, p.Out)
		}
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	res, err := http.PostForm(k.url+"/realms/master/protocol/openid-connect/token",
		url.Values{"grant_type": {"password"}, "client_id": {"admin-cli"}, "username": {"admin"}, "password": {"any"}})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Token == "" {
		t.Fatalf("no administrator: %d, %v", res.StatusCode, err)
	}
	k.admin = answer.Token
	realm, err := os.ReadFile(filepath.Join(filepath.Dir(dist), "realm.json"))
	if err != nil {
		t.Fatal(err)
	}
	k.manage(http.MethodPost, "", strings.ReplaceAll(string(realm), "PUBLIC", g.Agents))
	return k, g
}

// manage sends a request to Keycloak's interface for administrators.
func (k *keycloak) manage(method, path, body string) []byte {
	k.t.Helper()
	r, err := http.NewRequestWithContext(k.t.Context(), method, k.url+"/admin/realms"+path, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+k.admin)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		k.t.Fatalf("%s %s: %d %s, %v", method, path, res.StatusCode, text, err)
	}
	return text
}

// person returns the address of a person in that interface.
func (k *keycloak) person(username string) string {
	k.t.Helper()
	var found []struct{ ID string }
	if err := json.Unmarshal(k.manage(http.MethodGet, "/agents/users?exact=true&username="+username, ""), &found); err != nil || len(found) != 1 {
		k.t.Fatalf("%s: %v, %v", username, found, err)
	}
	return "/agents/users/" + found[0].ID
}

// treasurersPay lets treasurers pay, and everybody look.
const treasurersPay = `visible if input.tool
allow contains {"rule": "may-look"} if endswith(input.tool.name, "look")
allow contains {"rule": "may-pay"} if {
	input.tool.name == "pay"
	"treasurer" in input.principal.roles
}`

// ownAccounts lets everybody call the server accounts.
const ownAccounts = `
operates if input.principal.subject == "agent"
allow contains {"rule": "own-account"} if input.tool.server == "accounts"`

// holdsConnections: two people connect to a server of FastMCP that trusts Keycloak, where toolgate
// registers itself. Each reaches his own account alone, with refreshed tokens too.
func (k *keycloak) holdsConnections(t *testing.T, g *gate) {
	t.Helper()
	const seconds = `{"accessTokenLifespan": %d}`
	k.manage(http.MethodPut, "/agents", fmt.Sprintf(seconds, 5))
	tokens := []string{agentToken, approverToken} // ann is the operator, from whose connection the tool is accepted
	for i, person := range people {
		g.connect(t, "accounts", tokens[i], func(v *browserSession) {
			v.send("", "username", person, "password", "any")
			v.send("", "accept", "Yes") // consent, which clients that register themselves need
		})
	}
	for _, good := range []int{5, 600} {
		k.manage(http.MethodPut, "/agents", fmt.Sprintf(seconds, good))
		want := fmt.Sprintf("token for %d s", good)
		for i, person := range people {
			for _, revision := range []string{sessionRevision, statelessRevision} {
				asks := g.asks(t, tokens[i], "accounts", revision)
				program.Await(t, person+" has a "+want, func() bool {
					got := asks("tools/call", "mine", `"name":"mine","arguments":{}`)
					if strings.Contains(got, "data of") && !strings.Contains(got, "data of "+person+"@") {
						t.Fatalf("%s: %s for %s", revision, got, person)
					}
					return strings.Contains(got, want)
				})
			}
		}
	}
}

// TestKeycloakSignsIn: with Keycloak as the issuer, a client that is registered there and one that
// registers itself get to governed calls, groups are roles, tokens are refreshed, and neither
// an ID token nor a token whose session ended is good. Tokens of callers are exchanged there, and
// people connect to a server that trusts it.
func TestKeycloakSignsIn(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, script := requirePart(t, "node"), filepath.Join("..", "..", "testdata", "npm", "authorize.mjs")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}, {Name: "look"}}})
	var boxes map[string]*recorder.Recorder
	k, g := openKeycloak(t, func(issuer string) *gate {
		var bank server
		bank, boxes = openBank(t, issuer)
		accounts := server{"accounts", map[string]any{"url": pythonAccounts("mcp2", "keycloak")(t, issuer)}, map[string]any{"credential": map[string]any{"type": "oauth"}}}
		return serve(t, trusting(t, `"jwt": [{"issuer": "`+issuer+`", "person_claim": "email", "groups": {"/treasury": ["treasurer"]}}], "scopes": ["openid", "toolgate"]`,
			treasurersPay+ownAccounts, httpOf("rec", rec, shared()), bank, accounts))
	})

	t.Run("connections", func(t *testing.T) { k.holdsConnections(t, g) })
	t.Run("exchange", func(t *testing.T) { k.holdsExchange(t, g, boxes) })

	t.Run("go-sdk", func(t *testing.T) {
		ann := newBrowserSession(t)
		a := newGoAgent(t, "agent", func(address string, _ int) { ann.open(address).send("", "username", "ann", "password", "any") })
		session := a.connect(t, g.Agents+"/mcp")
		pay := func() error { return callGo(t, session, "rec__pay") }
		if err := pay(); err != nil {
			t.Fatal(err)
		}
		first := a.token(t)
		if err := pay(); err != nil { // every use refreshes a token that is valid for 10 s
			t.Fatal(err)
		}
		if a.token(t).AccessToken == first.AccessToken || len(a.asked) != 1 {
			t.Errorf("the token was not refreshed, or the person was asked %v", a.asked)
		}
		if out, code := runCommand(t, g.Dir, "audit", "tail", "-o", "json"); code != 0 || !strings.Contains(out, "ann@example.org") {
			t.Errorf("the trail does not name the person: %d %s", code, out)
		}
		idToken, _ := first.Extra("id_token").(string)
		if code := g.admits(t, idToken); idToken == "" || code != http.StatusUnauthorized {
			t.Errorf("an ID token %q: %d", idToken, code)
		}
		last := a.token(t)
		k.manage(http.MethodPost, k.person("ann")+"/logout", "")
		g.outlives(t, last.AccessToken)
		if err := pay(); err != nil || len(a.asked) != 2 {
			t.Errorf("after the session ended: %v, and the person was asked %v", err, a.asked)
		}
	})

	t.Run("typescript 2", func(t *testing.T) {
		redirect, back := pages(t)
		c := talk(t, exec.Command(node, script, "2", g.Agents+"/mcp/rec", redirect, ""))
		bob := newBrowserSession(t)
		bob.open(c.next(t).Open).send("", "username", "bob", "password", "any")
		bob.send("", "accept", "Yes") // consent, which clients that register themselves need
		c.tell(t, <-back)
		c.tell(t, "look")
		if got := c.next(t); got.Error != "" || strings.Contains(string(got.Result), `"isError":true`) {
			t.Fatalf("look: %+v\n%s", got, c.Log)
		}
		c.tell(t, "pay")
		if got := c.next(t); !strings.Contains(string(got.Result), "POLICY_DENIED") {
			t.Errorf("somebody outside the group pays: %+v", got)
		}
		c.tell(t, "spoil")
		c.tell(t, "look")
		got := c.next(t)
		if got.Error != "" || strings.Contains(string(got.Result), `"isError":true`) {
			t.Fatalf("look with a refreshed token: %+v\n%s", got, c.Log)
		}
		k.manage(http.MethodPut, k.person("bob"), `{"enabled": false}`) // an offline session outlives a logout
		g.revoke(t, got.Token)
		c.tell(t, "look")
		if got := c.next(t); got.Open == "" {
			t.Errorf("after the token was revoked, and the person left: %+v", got)
		}
	})
	wantRuns(t, rec, `{}`, 3+2)
}
