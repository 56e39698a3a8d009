package house_test

import (
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/toolgate/toolgate/"
	app    = "cmd/toolgate/internal/app"
)

// mayImport is the import table: each package with the packages of this module that
// it may import. A trailing /... means every package below. All packages may import
// internal/..., which imports none of the others. cmd imports all, and Go itself forbids
// the others to import what is below cmd/toolgate/internal. A package without a row fails
// the test, so that a new package is a decision.
var mayImport = map[string][]string{
	"signal":                {},
	"audit":                 {"signal", "audit/chain"},
	"audit/chain":           {},
	"audit/notary":          {"audit", "audit/chain"},
	"audit/index":           {"audit"},
	"registry/config":       {"docs/schemas", "registry/lock"}, // the published schema is the one that files are checked against
	"registry/lock":         {},
	"registry/contract":     {},
	"registry/credential":   {"registry/config"},
	"registry/upstream":     {"signal", "registry/config", "registry/credential"},
	"registry":              {"signal", "registry/..."},
	"policy":                {"signal"},
	"policy/bundle":         {},
	"policy/fact":           {},
	"policy/rego":           {"policy", "policy/bundle", "policy/fact", "policy/rego/builtin", "registry/contract", "docs/schemas"}, // policies are compiled against the published schema of input; facts of contracts
	"policy/rego/builtin":   {},
	"policy/workbench":      {"policy", "policy/bundle", "policy/fact", "policy/rego"},
	"policy/fetch":          {}, // it does not read the files that it fetches
	"policy/identity":       {"policy", "signal"},
	"policy/limit":          {"policy", "signal"},
	"policy/approval":       {"policy", "signal"},
	"policy/stop":           {"policy", "signal"},
	"policy/judgement":      {"policy", "audit"}, // judgements in records of the trail
	"policy/rejudge/replay": {"policy", "policy/judgement", "audit"},
	"policy/rejudge/verify": {"policy", "policy/judgement", "audit"}, // a difference is a record
	"policy/rejudge/shadow": {"policy", "policy/judgement", "audit"}, // live replay
	"proxy":                 {"signal", "audit", "policy", "policy/...", "proxy/artifact", "proxy/hold", "proxy/session", "proxy/wire", "registry"},
	"proxy/artifact":        {"policy"},
	"proxy/bridge":          {"signal", "proxy/wire"},
	"proxy/bus":             {"signal", "policy"},
	"proxy/eventlog":        {},
	"proxy/hold":            {"signal", "policy", "policy/approval"},
	"proxy/session":         {"registry"},
	"proxy/wire":            {"signal", "audit", "docs/schemas"},
	"proxy/mcp":             {"proxy", "proxy/...", "signal", "policy", "policy/identity", "registry"},
	"proxy/ndjson":          {"proxy", "proxy/...", "signal", "policy", "policy/identity", "registry"},
	"proxy/rest":            {"proxy", "proxy/...", "signal", "policy", "policy/identity", "registry", "docs/schemas"},
	"docs/schemas":          {},
	"console/page":          {"policy", "policy/approval", "policy/identity", "policy/stop"},
	"console/people":        {"policy", "policy/stop", "audit", "console/page"},
	"console/tickets":       {"policy", "policy/approval", "audit", "console/page", "console/people"},
	"console":               {"console/...", "policy", "policy/approval", "policy/stop", "policy/workbench", "policy/rejudge/replay", "policy/rejudge/shadow", "audit", "audit/index", "audit/notary", "docs/schemas"}, // their types: what it asks for it declares itself
	"tools":                 {"signal", "registry/contract", "tools/..."},
	"tools/search":          {"signal", "registry/contract"},
	"tools/service":         {},
	"tools/websearch":       {"tools/search", "tools/service"},              // its results
	"tools/webmedia":        {"tools/media", "tools/page", "tools/service"}, // its pictures, and the addresses that may be read
	"tools/page":            {},
	"tools/media":           {"signal", "registry/contract"},
	"tools/wallet":          {"signal", "registry/contract"},
	"tools/chain":           {"signal", "tools/wallet"},
}

// onlyIn says where a library may be imported.
var onlyIn = map[string][]string{
	"github.com/open-policy-agent/opa":       {"policy/rego", "policy/rego/builtin", "policy/workbench"},
	"github.com/mark3labs/mcp-go":            {"tools"},
	"github.com/santhosh-tekuri/jsonschema":  {"internal/schema"},
	"modernc.org/sqlite":                     {"internal/store"},
	"github.com/jackc/pgx":                   {"internal/store", "internal/testkit/postgres"},
	"github.com/modelcontextprotocol/go-sdk": {"registry/credential"}, // its OAuth alone: the rest is a peer for tests
	"github.com/hashicorp/go-hclog":          nil,
	"github.com/prometheus/client_golang":    {app, "internal/telemetry"}, // internal/telemetry: the bridge takes a Gatherer
	"go.opentelemetry.io":                    {"internal/telemetry", "internal/testkit/otlp"},
	"github.com/spf13/cobra":                 {"cmd/toolgate/internal/cli", "cmd/toolgate/internal/cli/..."},
	"golang.org/x/time/rate":                 {"policy/limit", "policy/identity", "internal/guard", "internal/mcpclient"}, // internal/mcpclient: messages of servers that answer nothing; internal/guard: wrong credentials, before anybody is known whom policy/limit could count
	"github.com/go-json-experiment/json":     nil,
	"github.com/coreos/go-oidc":              {"policy/identity"},
	"github.com/go-jose/go-jose":             {"policy/identity", "registry/credential"},
	"golang.org/x/oauth2":                    {"policy/identity", "registry/credential"},
	"github.com/agnivade/levenshtein":        {"policy/rego", "proxy", "internal/text"},
	"go.yaml.in/yaml":                        {"policy/rego", "policy/workbench", "internal/tree", "cmd/toolgate/internal/clients/clientfile", "cmd/toolgate/internal/cli/report"},
	"github.com/pelletier/go-toml":           {"internal/tree", "cmd/toolgate/internal/clients/clientfile"},
	"github.com/wneessen/go-mail":            {"cmd/toolgate/internal/ship/notice"},
	"github.com/standard-webhooks":           {"cmd/toolgate/internal/ship/notice"},
	"github.com/redis/go-redis":              {"cmd/toolgate/internal/fleet/valkey", "internal/testkit/redis"},
	"github.com/emersion/go-smtp":            {}, // a mail server for tests
	"github.com/JohannesKaufmann":            {"tools/page"},
	"github.com/a-h/templ":                   {"console", "console/...", "internal/testkit/pages"},
	"text/template":                          {}, // it calls methods by name, so that the linker keeps every exported one
	"html/template":                          {},
	"github.com/valyala/quicktemplate":       {"cmd/toolgate/internal/cli", "cmd/toolgate/internal/cli/...", "internal/testkit/pages"},
}

func TestImportTable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest || strings.HasPrefix(s.pkg, "internal/") || strings.HasPrefix(s.pkg, "cmd/") {
			continue
		}
		seen[s.pkg] = true
		allowed, ok := mayImport[s.pkg]
		if !ok {
			t.Errorf("package %s has no row in the import table", s.pkg)
			continue
		}
		for _, spec := range s.ast.Imports {
			p, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if ours && !strings.HasPrefix(p, "internal/") && !matches(allowed, p) {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	}
	for pkg := range mayImport {
		if !seen[pkg] {
			t.Errorf("the import table has a row for %s, which does not exist", pkg)
		}
	}
}

// wings are the packages that the gate does not know: they see its records, tickets, catalogue and
// engine. A trailing /... means every package below.
var wings = []string{"cmd/...", "console", "console/...", "tools", "tools/...", "internal/evm", "policy/workbench", "policy/rejudge/...", "audit/notary", "audit/index"}

// TestGateImportsNoWing holds that a reader who wants to know what happens to a call need not open a
// wing.
func TestGateImportsNoWing(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest || matches(wings, s.pkg) || strings.Contains(s.pkg, "testkit") {
			continue
		}
		for _, spec := range s.ast.Imports {
			if p, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ours && matches(wings, p) {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	}
}

func TestInternalImportsNothingOfOurs(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest || !strings.HasPrefix(s.pkg, "internal/") {
			continue
		}
		for _, spec := range s.ast.Imports {
			p, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if ours && !strings.HasPrefix(p, "internal/") {
				t.Errorf("%s imports %s", s.path, p)
			}
		}
	}
}

func TestLibrariesHaveOneHome(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		for _, spec := range s.ast.Imports {
			p := strings.Trim(spec.Path.Value, `"`)
			for lib, homes := range onlyIn {
				if homes != nil && strings.HasPrefix(p, lib) && !matches(homes, s.pkg) {
					t.Errorf("%s imports %s, which belongs to %v", s.path, lib, homes)
				}
			}
		}
	}
}

func matches(list []string, p string) bool {
	return slices.ContainsFunc(list, func(a string) bool {
		base, below := strings.CutSuffix(a, "/...")
		return a == p || below && strings.HasPrefix(p, base+"/")
	})
}
