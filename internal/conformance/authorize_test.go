package conformance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// connectVar is the environment variable of TestConnectingClient.
const connectVar = "TOOLGATE_CONFORMANCE_CONNECT"

// connecting is the suite of authorization, whose client is toolgate itself; further are scenarios that
// the suite does not list.
var (
	connecting = suite{name: "toolgate as the client", script: next}
	further    = []string{
		"resource-mismatch", "offline-access-scope", "offline-access-not-supported", "iss-supported", "iss-not-advertised", "iss-supported-missing",
		"iss-wrong-issuer", "iss-unexpected", "iss-normalized", "metadata-issuer-mismatch", "2025-03-26-oauth-metadata-backcompat",
	}
)

// TestAuthorizationScenarios: toolgate, as the client of the suite's servers, passes every check of
// authorization, except for those in the baseline.
func TestAuthorizationScenarios(t *testing.T) {
	pinned.File(t, "node_modules")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	scenarios := [][]string{{"--suite", "auth"}}
	for _, name := range further {
		scenarios = append(scenarios, []string{"--scenario", "auth/" + name})
	}
	env := []string{connectVar + "=1", program.BinaryVar + "=" + program.Toolgate(t)}
	y := newTally()
	passed := 0 // kinds of checks: how often one is made depends on how often toolgate asks
	for range *runs {
		all := results{}
		for _, which := range scenarios {
			args := append([]string{"client"}, which...)
			maps.Copy(all, runSuite(t, env, connecting, append(args, "--timeout", "120000", "--command", self+" -test.run=^TestConnectingClient$ -test.timeout=5m")...))
		}
		passed = 0
		for _, checks := range all {
			for _, o := range checks {
				passed += min(o.passed, 1)
			}
		}
		y.add(lostBetween(results{}, all)) // what fails is lost
	}
	known := readBaseline(t)
	if *update {
		known[connecting.name] = known[connecting.name].renewed(passed, y)
		writeBaseline(t, known)
		return
	}
	if want := known[connecting.name].Direct; passed != want {
		t.Errorf("%d checks pass, want %d", passed, want)
	}
	for _, fault := range y.faults(known[connecting.name]) {
		t.Error(fault)
	}
}

// TestConnectingClient runs in place of a client when the suite starts this binary. It starts toolgate
// with the suite's server, whose URL is its argument, connects there as a person does in a browser,
// and calls the server's tools. A call that needs more rights is made again after another connection.
func TestConnectingClient(t *testing.T) {
	if os.Getenv(connectVar) == "" {
		t.Skip("the suite runs this test")
	}
	var given struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	if text := os.Getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			t.Fatal(err)
		}
	}
	credential := map[string]any{"type": "oauth"}
	if given.ID != "" {
		credential["client_id"] = given.ID
	}
	if given.Secret != "" {
		credential["client_secret"] = given.Secret
	}
	settings, err := json.Marshal(map[string]any{"everything": map[string]any{"credential": credential, "pin": false}})
	if err != nil {
		t.Fatal(err)
	}
	server := os.Args[len(os.Args)-1]
	g := startGate(t, fmt.Sprintf(`{"type": "http", "url": %q}`, server), `"servers": `+string(settings)+`,`)
	person := newPerson()
	for range 3 {
		if err := person.connect(g.Admin + "/connections/everything"); err != nil {
			t.Fatal(err)
		}
		if again := callAll(t, g.Agents+"/mcp/everything"); !again {
			return
		}
	}
}

// callAll calls every tool once, and reports whether another connection is needed: a call says so, or
// no tools are listed.
func callAll(t *testing.T, address string) (again bool) {
	t.Helper()
	var list struct {
		Result struct{ Tools []struct{ Name string } }
	}
	text := post(t, address, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{%s}}`, "tools/list", "")
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, tool := range list.Result.Tools {
		text := post(t, address, fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":%q,"arguments":{},%%s}}`, tool.Name), "tools/call", tool.Name)
		again = again || bytes.Contains(text, []byte("CONNECTION_REQUIRED"))
	}
	return again || len(list.Result.Tools) == 0
}

// post makes a request of revision 2026-07-28.
func post(t *testing.T, address, message, method, name string) []byte {
	t.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(fmt.Sprintf(message, meta)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}}
	if name != "" {
		req.Header.Set("Mcp-Name", name)
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
	return text
}

// person is somebody with a browser, who agrees to everything.
type person struct{ http.Client }

// keptCookies returns each cookie to the host that set it, as browsers do on loopback also with Secure
// cookies.
type keptCookies map[string]map[string]string // :: host, name ⇒ value

func (k keptCookies) SetCookies(u *url.URL, list []*http.Cookie) {
	if k[u.Host] == nil {
		k[u.Host] = make(map[string]string)
	}
	for _, c := range list {
		k[u.Host][c.Name] = c.Value
	}
}

func (k keptCookies) Cookies(u *url.URL) (list []*http.Cookie) {
	for name, value := range k[u.Host] {
		list = append(list, &http.Cookie{Name: name, Value: value})
	}
	return list
}

func newPerson() *person {
	return &person{http.Client{Jar: keptCookies{}, Timeout: time.Minute}}
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`)

// connect submits the form of a page of connections, and follows where that leads.
func (p *person) connect(address string) error {
	read := func(res *http.Response, err error) (string, error) {
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	page, err := read(p.Get(address))
	if err != nil {
		return err
	}
	form := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(page, -1) {
		form.Set(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
	}
	if len(form) == 0 {
		return errors.New("the page has no form: " + page)
	}
	_, err = read(p.PostForm(address, form))
	return err
}
