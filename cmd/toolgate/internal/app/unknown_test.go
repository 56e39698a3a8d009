package app_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

func defaultWith(t *testing.T, data string) *rego.Engine {
	t.Helper()
	e, err := rego.Load(t.Context(), rego.Options{Data: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func places(found []app.Finding) (out []string) {
	for _, f := range found {
		out = append(out, strings.TrimSpace(f.Code+" "+f.Where+" "+f.Hint))
	}
	return out
}

// TestUnknownTools is the table of tools that data names and nobody offers.
func TestUnknownTools(t *testing.T) {
	const wallet = "manage_wallet"
	servers := []config.Server{{Name: "own"}, {Name: "files", Prefix: "files__"}}
	offered := []policy.Tool{{Server: "own", Exposed: wallet}, {Server: "files", Exposed: "files__read"}}
	locked := &lock.File{Servers: map[string]lock.Server{"own": {Tools: map[string]string{wallet: "sha256:0"}}, "files": {Tools: map[string]string{"write": "sha256:0"}}}}
	for _, c := range []struct {
		name, data string
		offered    []policy.Tool
		lock       *lock.File
		want       []string
	}{
		{"a misspelt threshold", `{"thresholds": {"managewallet": {"amount": 1}}}`, offered, nil, []string{"unknown-tool data.thresholds.managewallet did you mean manage_wallet?"}},
		{"a misspelt tool", `{"tools": {"manage_walet": {"hold": true}}}`, offered, nil, []string{"unknown-tool data.tools.manage_walet did you mean manage_wallet?"}},
		{"by the lock alone", `{"tools": {"manage_walet": {"hold": true}}}`, nil, locked, []string{"unknown-tool data.tools.manage_walet did you mean manage_wallet?"}},
		{"nobody was asked, and no lock", `{"tools": {"manage_walet": {"hold": true}}}`, nil, nil, nil},
		{"nothing near", `{"tools": {"nowhere": {"hold": true}}}`, offered, nil, []string{"unknown-tool data.tools.nowhere toolgate tool list shows the names"}},
		{"in the lock only", `{"tools": {"files__write": {"hold": true}}}`, offered, locked, nil},
		{"of a server that has not answered", `{"tools": {"files__delete": {"hold": true}}}`, []policy.Tool{offered[0]}, nil, nil},
		{"of a server that has", `{"tools": {"files__delete": {"hold": true}}}`, offered, nil, []string{"unknown-tool data.tools.files__delete toolgate tool list shows the names"}},
		{"offered", `{"tools": {"manage_wallet": {"hold": true}}, "roles": {"r": {"tools": {"files__read": true}}}}`, offered, nil, nil},
		{"the tools of the default policy", `{}`, offered, nil, nil},
	} {
		got := app.UnknownTools(&config.Config{Servers: servers, Lock: c.lock}, defaultWith(t, c.data), c.offered)
		if diff := cmp.Diff(c.want, places(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestUnknownRoles is the table of roles that cannot do what they are for.
func TestUnknownRoles(t *testing.T) {
	approvedBy := func(role string) string { return `{"tools": {"t": {"approval": {"roles": ["` + role + `"]}}}}` }
	token := func(roles ...string) *config.Config {
		return &config.Config{Identity: config.Identity{Configured: true, Tokens: []config.Token{{Subject: "a", Roles: roles}}}}
	}
	issuer := &config.Config{Identity: config.Identity{Configured: true, JWT: []config.JWT{{Issuer: "https://issuer.example.com"}}}}
	for _, c := range []struct {
		name, data string
		cfg        *config.Config
		want       []string
	}{
		{"nobody has the role", approvedBy("aprover"), token(), []string{"unknown-role data.tools.t.approval did you mean approver?"}},
		{"nobody has the role, and none is near", approvedBy("board"), token(), []string{"unknown-role data.tools.t.approval"}},
		{"a token has it", approvedBy("board"), token("board"), nil},
		{"policy data has it", approvedBy("treasurer"), token(), nil},
		{"an issuer may give it", approvedBy("board"), issuer, nil},
		{"an issuer, and a role that is near", approvedBy("aprover"), issuer, []string{"unknown-role data.tools.t.approval did you mean approver?"}},
		{"no configuration", approvedBy("board"), nil, nil},
		{"the principal local", approvedBy("board"), &config.Config{}, nil},
		{"a token's role", `{}`, token("observer", "reseacher"), []string{"unknown-role toolgate.identity.tokens[0].roles did you mean researcher?"}},
		{"roles of the trail and of servers", `{}`, token("auditor", "operator", "approver"), nil},
	} {
		if diff := cmp.Diff(c.want, places(app.UnknownRoles(c.cfg, defaultWith(t, c.data)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
