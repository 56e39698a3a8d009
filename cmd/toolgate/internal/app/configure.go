package app

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/limit"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry/config"
)

// ToolsDir is the environment variable that names the directory of the standard
// tools' data.
const ToolsDir = "TOOLGATE_TOOLS_DIR"

// toolsDir is the directory of the standard tools' data in the state directory.
const toolsDir = "tools"

// prepareTools gives the standard tools, where they are an upstream, a directory
// inside the state directory. It is made here, because upstreams cannot write there.
func prepareTools(cfg *config.Config) error {
	for i, s := range cfg.Servers {
		if s.Command != "toolgate" || s.Env[ToolsDir] != "" {
			continue
		}
		cfg.Servers[i].Env = map[string]string{ToolsDir: filepath.Join(cfg.State, toolsDir)}
		maps.Copy(cfg.Servers[i].Env, s.Env)
		if err := os.MkdirAll(cfg.Servers[i].Env[ToolsDir], 0o700); err != nil {
			return fmt.Errorf("making the directory of the standard tools: %w", err)
		}
	}
	return nil
}

func gateSettings(cfg *config.Config) proxy.Settings {
	methods, shapes := make(map[string][]string), make(map[string]policy.Shape)
	var escaped []string
	for _, s := range cfg.Servers {
		methods[s.Name], shapes[s.Name] = s.Methods, policy.Shape{Errors: s.Errors, Results: s.Results}
		if s.HiddenText == "escape" {
			escaped = append(escaped, s.Name)
		}
	}
	return proxy.Settings{
		Results: cfg.Results, RetryAfter: cfg.RetryAfter, Hold: cfg.Approvals.Hold, Clients: clientProfiles(cfg), Execute: cfg.Approvals.Execute,
		ConsoleURL: ConsoleURL(cfg),
		Inline:     cfg.Artifacts.InlineKiB << 10, ArtifactURL: URL(cfg.Listen, cfg.TLS), Methods: methods, EscapeHidden: escaped, Shapes: shapes,
	}
}

// clientProfiles returns the profiles of clients: those of the operator, or the built-in
// ones. Of the latter, results only replaces the default, never what an operator chose.
func clientProfiles(cfg *config.Config) []proxy.ClientProfile {
	clients, own := cfg.Approvals.Clients, cfg.Approvals.Clients != nil
	if !own {
		clients = config.KnownClients()
	}
	profiles := make([]proxy.ClientProfile, len(clients))
	for i, c := range clients {
		profiles[i] = proxy.ClientProfile(c)
		if !own && cfg.Results != "compact" {
			profiles[i].Results = ""
		}
	}
	return profiles
}

// IdentityConfig returns who cfg knows; role is that of the local principal.
func IdentityConfig(cfg *config.Config, role string) identity.Config {
	c := identity.Config{
		LocalRole: role, Configured: cfg.Identity.Configured, Local: cfg.Identity.Local,
		Public: AgentsURL(cfg), Scopes: cfg.Identity.Scopes, Audiences: make(map[string][]string),
	}
	for _, s := range cfg.Servers {
		c.Audiences[s.Name] = s.Audience
	}
	for _, t := range cfg.Identity.Tokens {
		c.Tokens = append(c.Tokens, identity.Token{Subject: t.Subject, Person: t.Person, Tenant: t.Tenant, Roles: t.Roles, SHA256: t.SHA256, Expires: t.Expires, Shape: policy.Shape{Errors: t.Errors, Results: t.Results}})
	}
	for _, m := range cfg.Identity.MTLS {
		c.Certificates = append(c.Certificates, identity.Certificate(m))
	}
	for _, j := range cfg.Identity.JWT {
		c.JWT = append(c.JWT, identity.JWT(j))
	}
	return c
}

func limitRules(cfg *config.Config) limit.Rules {
	r := limit.Rules{Default: (*limit.Rate)(cfg.Limits.Default)}
	for _, rule := range cfg.Limits.Rules {
		r.Rules = append(r.Rules, limit.Rule{
			Tool: rule.Tool, Role: rule.Role, Server: rule.Server, Principal: rule.Principal, Tenant: rule.Tenant, Rate: limit.Rate(rule.Rate),
		})
	}
	return r
}

// refusedRules are the rules of limits.refused: one bucket for each principal.
func refusedRules(cfg *config.Config) limit.Rules {
	return limit.Rules{Default: (*limit.Rate)(cfg.Limits.Refused)}
}

func noticeChannels(cfg *config.Config) (channels []notice.Channel) {
	for _, n := range cfg.Approvals.Notify {
		channels = append(channels, notice.Channel(n))
	}
	return channels
}

func decisionSinks(cfg *config.Config) decisionlog.Config {
	l := cfg.Policy.Log
	return decisionlog.Config{File: l.File, URL: l.URL, Token: l.Token, Headers: l.Headers}
}

// ConsoleURL is where browsers find the admin listener.
func ConsoleURL(cfg *config.Config) string {
	return cmp.Or(cfg.Console.URL, URL(cfg.Admin, cfg.AdminTLS))
}

// AgentsURL is where agents find their listener, without a path.
func AgentsURL(cfg *config.Config) string { return cmp.Or(cfg.PublicURL, URL(cfg.Listen, cfg.TLS)) }

// Reachable returns an address at which this machine reaches a listener: a
// listener on every interface has no address of its own.
func Reachable(listener string) string {
	host, port, err := net.SplitHostPort(listener)
	if err != nil {
		return listener
	}
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listener
}

// URL returns the address at which this machine reaches a listener, with TLS unless
// secure is nil.
func URL(listener string, secure *config.TLS) string {
	if secure == nil {
		return "http://" + Reachable(listener)
	}
	return "https://" + Reachable(listener)
}
