package peers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// ownMailbox lets each person see and call what the server of his name offers.
const ownMailbox = `own if startswith(input.principal.subject, concat("", [input.tool.server, "@"]))
visible if own
allow contains {"rule": "own"} if own`

// exchanging are clients of a realm: agents get tokens for the gate at desk, gate exchanges them for
// tokens of the same person for bank.
const exchanging = `[
	{"clientId": "bank"},
	{"clientId": "gate", "secret": "gate-secret", "publicClient": false, "attributes": {"standard.token.exchange.enabled": "true"}, "protocolMappers": [
		{"name": "bank", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper", "config": {"included.client.audience": "bank", "access.token.claim": "true"}}]},
	{"clientId": "desk", "publicClient": true, "directAccessGrantsEnabled": true, "protocolMappers": [
		{"name": "gate", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper", "config": {"included.client.audience": "gate", "access.token.claim": "true"}}]}]`

// openBank starts a server with a mailbox for each person, who is known there by tokens of an issuer for
// bank. It returns the server for a gate that exchanges the tokens of its callers.
func openBank(t *testing.T, issuer string) (bank server, boxes map[string]*recorder.Recorder) {
	t.Helper()
	boxes = map[string]*recorder.Recorder{}
	var behind []server
	for _, person := range []string{"ann", "bob"} {
		boxes[person] = recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
		behind = append(behind, httpOf(person, boxes[person], shared()))
	}
	g := serve(t, trusting(t, fmt.Sprintf(`"jwt": [{"issuer": %q, "audience": ["bank"], "subject_claim": "email"}]`, issuer), ownMailbox, behind...))
	credential := map[string]any{"type": "exchange", "token_url": issuer + "/protocol/openid-connect/token", "client_id": "gate", "client_secret": "gate-secret", "audience": "bank"}
	return server{"bank", map[string]any{"url": g.Agents + "/mcp"}, map[string]any{"credential": credential, "pin": false}}, boxes
}

// holdsExchange: two people's agents show tokens for the gate, which Keycloak exchanges for tokens for a
// server behind it (RFC 8693). Each reaches his own mailbox there, and a caller without a token of an
// issuer none.
func (k *keycloak) holdsExchange(t *testing.T, g *gate, boxes map[string]*recorder.Recorder) {
	t.Helper()
	var clients []json.RawMessage
	if err := json.Unmarshal([]byte(exchanging), &clients); err != nil {
		t.Fatal(err)
	}
	for _, client := range clients {
		k.manage(http.MethodPost, "/agents/clients", string(client))
	}
	for i, person := range []string{"ann", "bob"} {
		other := []string{"bob", "ann"}[i]
		c := openHTTP(t, g.Agents+"/mcp", k.password(person))
		args := fmt.Sprintf(`{"of":%q}`, person)
		if end := outcome(t, c.exchange(t, callMessage("1", "bank__"+person+"__look", args))); end != "done" {
			t.Errorf("%s calls his own: %s", person, end)
		}
		wantRuns(t, boxes[person], args, 1)
		if end := outcome(t, c.exchange(t, callMessage("2", "bank__"+other+"__look", args))); end == "done" {
			t.Errorf("%s reaches the mailbox of %s", person, other)
		}
		wantRuns(t, boxes[other], args, 0)
	}
	c := openHTTP(t, g.Agents+"/mcp", agentToken)
	if got := c.exchange(t, callMessage("1", "bank__ann__look", `{"of":"nobody"}`)); outcome(t, got) == "done" {
		t.Errorf("a caller without a token that could be exchanged: %s", got)
	}
	wantRuns(t, boxes["ann"], `{"of":"nobody"}`, 0)
}

// password returns the access token that a person's agent has.
func (k *keycloak) password(person string) string {
	k.t.Helper()
	res, err := http.PostForm(k.realm+"/protocol/openid-connect/token", url.Values{"grant_type": {"password"}, "client_id": {"desk"}, "username": {person}, "password": {"any"}})
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Token == "" {
		k.t.Fatalf("no token for %s: %d, %v", person, res.StatusCode, err)
	}
	return answer.Token
}
