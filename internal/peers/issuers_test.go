package peers_test

import (
	"encoding/json"
	"fmt"
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

// issuer is a third-party issuer of JWTs.
type issuer struct{ url string }

// openIssuer starts an issuer whose clients get tokens with these claims.
func openIssuer(t *testing.T, clients map[string]map[string]any) issuer {
	t.Helper()
	address := program.FreeAddress(t)
	launchProvider(t, "issuer.mjs", address, "urn:toolgate", jsonText(t, clients))
	return issuer{"http://" + address}
}

// launchProvider starts a script of oidc-provider at an address, and waits until it listens.
func launchProvider(t *testing.T, script, address string, args ...string) *program.Process {
	t.Helper()
	node := requirePart(t, "node")
	requirePart(t, "oidc-provider/package.json")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	p := program.Launch(t, exec.Command(node, append([]string{filepath.Join("..", "..", "testdata", "npm", script), port}, args...)...))
	if !p.Await(t, script+" listens", func() bool { return strings.Contains(p.Out.String(), "listening") }) {
		t.Fatalf("%s ended: %v\n%s", script, p.Err, p.Log)
	}
	return p
}

// token returns a JWT of a client.
func (i issuer) token(t *testing.T, client string) string {
	t.Helper()
	res, err := http.PostForm(i.url+"/token", url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "client_secret": {"client-secret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || strings.Count(answer.Token, ".") != 2 {
		t.Fatalf("no JWT for %s: %d, %v", client, res.StatusCode, err)
	}
	return answer.Token
}

// TestTwoIssuers: one person with credentials of two issuers, and with agents, is one
// person. Without a person in their tokens they are told apart by issuer and subject.
func TestTwoIssuers(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	approves := func(person string) map[string]any {
		return map[string]any{"person": person, "roles": []string{"approver"}}
	}
	first := openIssuer(t, map[string]map[string]any{
		"ann": approves("ann@example"), "agent": {"person": "ann@example", "roles": []string{"agent"}, "act": map[string]any{"sub": "agent-0"}},
		"nobody": {"roles": []string{"approver"}},
	})
	second := openIssuer(t, map[string]map[string]any{"ann-work": approves("ann@example"), "bob": approves("bob@example")})
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: strings.Replace(holdAll, `["approver"]`, `["approver"], "quorum": 2`, 1)})
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	entry := func(i issuer) string {
		return fmt.Sprintf(`{"issuer": %q, "audience": ["urn:toolgate"], "jwks": %q, "types": ["at+jwt"], "algorithms": ["RS256"]}`, i.url, i.url+"/jwks")
	}
	write(t, path, strings.Replace(string(text), `"identity": {`, fmt.Sprintf(`"identity": {"jwt": [%s, %s], `, entry(first), entry(second)), 1))
	g := serveReady(t, dir)
	vote := func(token, ticket, code, state string) {
		t.Helper()
		v, err := approverOf(g, token).vote(t.Context(), ticket, "approve", `{}`)
		if err != nil || v.code != code || v.state != state {
			t.Errorf("the vote: %+v, %v; want %s%s", v, err, code, state)
		}
	}
	ann, annAtWork, bob := first.token(t, "ann"), second.token(t, "ann-work"), second.token(t, "bob")

	// A quorum of two is two people.
	agent := openHTTP(t, g.Agents+"/mcp", agentToken)
	ticket := holdCall(t, agent, "rec__pay", `{"n":1}`)
	vote(ann, ticket, "", "proposed")
	vote(annAtWork, ticket, "ALREADY_VOTED", "")
	if end := outcome(t, agent.exchange(t, callMessage("2", "rec__pay", `{"n":1}`))); end != "pending" {
		t.Errorf("after two votes of one person: %s", end)
	}
	vote(bob, ticket, "", "approved")
	if end := outcome(t, agent.exchange(t, callMessage("3", "rec__pay", `{"n":1}`))); end != "done" {
		t.Errorf("after the votes of two people: %s", end)
	}
	wantRuns(t, rec, `{"n":1}`, 1)

	// Nobody decides on a call of their own, through whichever issuer, nor on one of an
	// agent that acts for them.
	own := holdCall(t, openHTTP(t, g.Agents+"/mcp", ann), "rec__pay", `{"n":2}`)
	vote(ann, own, "SELF_APPROVAL", "")
	vote(annAtWork, own, "SELF_APPROVAL", "")
	acting := holdCall(t, openHTTP(t, g.Agents+"/mcp", first.token(t, "agent")), "rec__pay", `{"n":3}`)
	vote(ann, acting, "SELF_APPROVAL", "")
	vote(annAtWork, acting, "SELF_APPROVAL", "")
	vote(bob, acting, "", "proposed")
	vote(first.token(t, "nobody"), acting, "", "approved") // (issuer, subject) is all that is known
	wantRuns(t, rec, `{"n":2}`, 0)
	wantRuns(t, rec, `{"n":3}`, 0)

	// Why a credential is refused is not in the answer, and inspect says it.
	untrusted := openIssuer(t, map[string]map[string]any{"ann": approves("ann@example")}).token(t, "ann")
	vote(untrusted, own, "UNAUTHENTICATED", "")
	if out, code := runCommand(t, dir, "token", "inspect", "--token", untrusted, "-o", "json"); code != 3 || !strings.Contains(out, `"kind": "issuer"`) {
		t.Errorf("inspect: %d, %s", code, out)
	}
}

func approverOf(g *gate, token string) approver { return approver{g.Admin, token} }
