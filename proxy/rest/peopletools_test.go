package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/workbench"
)

// shelf has tools that are named after what happens to them.
type shelf struct{ broken bool }

func (s *shelf) List(context.Context) ([]console.Tool, error) {
	if s.broken {
		return nil, errors.New("planted")
	}
	refused := &console.Refusal{By: "ann", Reason: "too much", At: time.Unix(1e9, 0).UTC()}
	t := console.Tool{
		Server: "web", Name: "search", For: "clients with sampling", Exposed: "web__search", Title: "Search", State: console.ToolWithheld, Reason: "it changed", Risk: "low",
		Digest: "sha256:2", Pin: &console.Pin{Digest: "sha256:1", Since: time.Unix(1e9, 0).UTC(), By: "oda", Refused: refused},
	}
	return []console.Tool{t, {Server: "web", Name: "read", Exposed: "web__read", State: console.ToolServed, Digest: "sha256:3"}}, nil
}

func (s *shelf) Show(ctx context.Context, q console.ToolQuery) (console.ToolDetail, error) {
	if q.Name == "absent" {
		return console.ToolDetail{}, console.ErrNoTool
	}
	all, err := s.List(ctx)
	if err != nil || q.Name == "broken" {
		return console.ToolDetail{}, errors.New("planted")
	}
	may := console.Access{Cell: workbench.Cell{Role: "reader", Tool: "web__search", May: workbench.Sometimes, Clauses: []workbench.Clause{{Effect: policy.Allow, When: []string{"input.arguments.n < 3"}}}}, Listed: true}
	asked := console.Access{Cell: workbench.Cell{Subject: "eve", Tool: "web__search", May: workbench.Never}, Reason: "denied", Hint: "toolgate policy explain"}
	definition := json.RawMessage(`{"name":"search"}`)
	return console.ToolDetail{
		Tool: all[0], Definition: definition, InputSchema: json.RawMessage(`{}`), OutputSchema: json.RawMessage(`{}`), Annotations: json.RawMessage(`{}`),
		Accepted: definition, Difference: "-a\n+b\n", Others: all[1:], Access: []console.Access{may}, Unasked: 1, Principal: &asked,
	}, nil
}

func (s *shelf) Judge(_ context.Context, v console.Verdict) error {
	switch v.Name {
	case "absent":
		return console.ErrNoTool
	case "broken":
		return errors.New("planted")
	case "changed":
		return console.ErrOtherDefinition
	}
	return v.Record([]string{v.Digest}, nil)
}

func toolProbes() []probe {
	const all, one = "/v1/tools", "/v1/tools/web/search"
	probes := []probe{
		{200, "oda", "GET", all + "?server=web&state=withheld&text=s&limit=1", "", nil}, {400, "oda", "GET", all + "?x=1", "", nil}, {401, "", "GET", all, "", nil}, {403, "eve", "GET", all, "", nil},
		{200, "oda", "GET", one + "?principal=eve", "", nil}, {400, "oda", "GET", one + "?x=1", "", nil}, {401, "", "GET", one, "", nil}, {403, "eve", "GET", one, "", nil},
		{404, "oda", "GET", "/v1/tools/web/absent", "", nil}, {500, "oda", "GET", "/v1/tools/web/broken", "", nil},
	}
	for action, good := range map[string]string{"accept": `{"digest":"sha256:2"}`, "refuse": `{"digest":"sha256:2","reason":"too much"}`} {
		post := func(status int, who, tool, body string, headers ...string) {
			probes = append(probes, probe{status, who, "POST", "/v1/tools/" + tool + "/" + action, body, headers})
		}
		post(200, "oda", "web/search", good)
		post(400, "oda", "web/search", `{}`)
		post(401, "", "web/search", good)
		post(403, "ann", "web/search", good)
		post(404, "oda", "web/absent", good)
		post(409, "oda", "web/changed", good)
		post(413, "oda", "web/search", `{"digest":"`+strings.Repeat("x", 70_000)+`"}`)
		post(415, "oda", "web/search", good, "Content-Type: text/plain")
		post(500, "oda", "web/broken", good)
		post(503, "oda", "unrecorded/search", good)
	}
	return append(probes, probe{422, "oda", "POST", one + "/refuse", `{"digest":"sha256:2"}`, nil})
}

// lobby has sessions that are named after what happens to them.
type lobby struct{ broken bool }

func (l *lobby) List(context.Context) (all []console.ClientSession, err error) {
	if l.broken {
		return nil, errors.New("planted")
	}
	at := time.Unix(1e9, 0).UTC()
	for _, id := range []string{"ses_1", "ses_broken", "ses_unrecorded"} {
		all = append(all, console.ClientSession{
			ID: id, Principal: "eve", Tenant: "acme", Server: "web", Transport: "http", Revision: "2025-11-25", Client: "cli/1", Since: at, Used: at, Calls: 1,
			Connections: []console.SessionConnection{{Server: "web", Revision: "2025-11-25", PID: 7, Used: at, Calls: 1}},
		})
	}
	return all, nil
}

func (l *lobby) End(_ context.Context, id string) (bool, error) {
	if id == "ses_broken" {
		return false, errors.New("planted")
	}
	return true, nil
}

func sessionProbes() []probe {
	const all, one = "/v1/sessions", "/v1/sessions/ses_1"
	return []probe{
		{200, "oda", "GET", all + "?principal=eve&server=web&limit=1", "", nil}, {400, "oda", "GET", all + "?x=1", "", nil}, {401, "", "GET", all, "", nil}, {403, "eve", "GET", all, "", nil},
		{200, "oda", "DELETE", one, "", nil}, {401, "", "DELETE", one, "", nil}, {403, "eve", "DELETE", one, "", nil}, {404, "oda", "DELETE", all + "/ses_9", "", nil},
		{500, "oda", "DELETE", all + "/ses_broken", "", nil}, {503, "oda", "DELETE", all + "/ses_unrecorded", "", nil},
	}
}

// scales returns limits, and an error while it is broken.
type scales struct{ broken bool }

func (s *scales) limits(context.Context) ([]console.Limit, bool, error) {
	if s.broken {
		return nil, false, errors.New("planted")
	}
	return []console.Limit{
		{Kind: console.LimitRate, Rule: "tool=pay", Principal: "eve", Tenant: "acme", Tool: "pay", Limit: "4/1h", Size: 4, Used: 2, Known: console.KnownReplicas},
		{Kind: console.LimitMeter, Rule: "day", Principal: "eve", Tool: "pay", Used: 3, Sum: "900.5", Per: json.RawMessage(`["USD"]`), Window: "24h", Known: console.KnownAll},
	}, false, nil
}

func limitProbes() []probe {
	const all = "/v1/limits"
	return []probe{
		{200, "oda", "GET", all + "?principal=eve&tool=pay", "", nil}, {200, "oda", "GET", all + "?kind=rate&limit=1", "", nil},
		{400, "oda", "GET", all + "?x=1", "", nil}, {401, "", "GET", all, "", nil}, {403, "eve", "GET", all, "", nil},
	}
}

// purse has the tokens of eve and of una, whose revocation fails.
type purse struct{ broken bool }

func (p *purse) List(context.Context) ([]console.Token, error) {
	if p.broken {
		return nil, errors.New("planted")
	}
	return []console.Token{
		{ID: "0123456789ab", Subject: "eve", Person: "Eve", Tenant: "acme", Roles: []string{"reader"}, Expires: time.Unix(1e9, 0).UTC(), State: "expired"},
		{ID: "ba9876543210", Subject: "una", Roles: []string{}, State: "valid"},
	}, nil
}

func (p *purse) Make(t console.Token) (console.MadeToken, error) {
	if t.Subject == "" {
		return console.MadeToken{}, errors.New("planted")
	}
	return console.MadeToken{ID: "0123456789ab", Token: "tg_new", Entry: []byte(`{"subject":"agent-7"}`)}, nil
}

func (p *purse) Revoke(_ context.Context, id, _ string) error {
	if id == "ba9876543210" {
		return errors.New("planted")
	}
	return nil
}

func tokenProbes() []probe {
	const all, one = "/v1/tokens", "/v1/tokens/0123456789ab"
	return []probe{
		{200, "oda", "GET", all + "?limit=1", "", nil}, {200, "oda", "GET", all + "?subject=una", "", nil},
		{400, "oda", "GET", all + "?x=1", "", nil}, {401, "", "GET", all, "", nil}, {403, "eve", "GET", all, "", nil},
		{201, "oda", "POST", all, `{"subject":"agent-7","person":"Ann","tenant":"acme","roles":["reader"],"for":"720h"}`, nil}, {400, "oda", "POST", all, `{}`, nil},
		{401, "", "POST", all, `{}`, nil}, {403, "eve", "POST", all, `{}`, nil}, {503, "una", "POST", all, `{"subject":"agent-7","roles":["reader"]}`, nil},
		{413, "oda", "POST", all, `{"subject":"` + strings.Repeat("x", 70_000) + `"}`, nil}, {415, "oda", "POST", all, "{}", []string{"Content-Type: text/plain"}},
		{200, "oda", "DELETE", one + "?reason=lost", "", nil}, {400, "oda", "DELETE", one + "?x=1", "", nil}, {401, "", "DELETE", one, "", nil}, {403, "eve", "DELETE", one, "", nil},
		{404, "oda", "DELETE", all + "/000000000000", "", nil}, {500, "oda", "DELETE", all + "/ba9876543210", "", nil}, {503, "una", "DELETE", one, "", nil},
	}
}
