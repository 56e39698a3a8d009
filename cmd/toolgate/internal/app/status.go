package app

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// status returns the content of /readyz, within a second. Policy and listeners are up when it
// is called.
func (a *App) status() console.Status {
	ctx, stop := context.WithTimeout(context.Background(), readyWithin)
	defer stop()
	ready, degraded, faults := a.health.assess(ctx)
	s := console.Status{Ready: ready, Degraded: degraded, Revision: a.Revision(), Shadow: a.shadow.line(), Sights: a.Sights()}
	for _, part := range []string{partServing, partTrail, partStore, partOwnKeys, partSigning, partDisk, partLimits, partStops} {
		if fault := faults[part]; fault != "" {
			s.Warnings = append(s.Warnings, fault)
		}
	}
	switch space := a.state.trail.Space(); {
	case space.Err != nil:
		s.Warnings = append(s.Warnings, fmt.Sprintf("toolgate.audit.reserve_mib has no effect: the free space of the disk cannot be read: %v", space.Err))
	case space.Scarce() && !space.Low():
		s.Warnings = append(s.Warnings, space.String())
	}
	s.Warnings = append(s.Warnings, a.shared.Warnings()...)
	for _, anchor := range a.state.trail.Anchors() {
		if anchor.Fault != "" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("toolgate.audit.anchors: the last checkpoint is not anchored: %s: %s", anchor.Name, anchor.Fault))
		}
	}
	for _, u := range a.upstreams.Status() {
		s.Upstreams = append(s.Upstreams, console.Upstream(u))
	}
	s.Warnings = append(s.Warnings, a.state.doubts.warnings()...)
	failed, waiting := a.reloads.last()
	a.policy.mu.Lock()
	stale, copied := a.policy.fault, a.policy.copy
	a.policy.mu.Unlock()
	if stale != "" {
		s.Warnings = append(s.Warnings, fmt.Sprintf("the policy that serves may not be what its server has: %s (the one that serves was fetched %s)", stale, copied.Fetched.Format(time.RFC3339)))
	}
	if failed != "" {
		s.Warnings = append(s.Warnings, "the last reload failed and changed nothing: "+failed)
	}
	for _, name := range waiting {
		s.Warnings = append(s.Warnings, name+" has changed: the next start takes it over")
	}
	for _, is := range a.auth.Issuers() {
		if is.Fault != "" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("the keys of issuer %s cannot be had: %s", is.Issuer, is.Fault))
		}
	}
	s.Warnings = append(s.Warnings, a.state.peers.Warnings(time.Now())...)
	s.Warnings = append(s.Warnings, undeliveredNotices(ctx, a.state.notices)...)
	s.Warnings = append(s.Warnings, unsentDecisions(ctx, a.state.decisions, a.Config().Policy.Log.MaxLag)...)
	s.Warnings = append(s.Warnings, a.shadow.warnings()...)
	for _, f := range a.Findings() {
		if f.Level == string(rego.LevelWarning) {
			s.Warnings = append(s.Warnings, f.Where+": "+f.Message)
		}
	}
	return s
}

// A Finding is something that an operator or the author of a policy should look at.
type Finding = console.Finding

// warning returns a warning of a kind. Kinds are in docs/reference.md.
func warning(code, where, message, hint string) Finding {
	return Finding{Level: string(rego.LevelWarning), Code: code, Where: where, Message: message, Hint: hint}
}

// Warnings lists findings that follow from configuration, policy, and what host can
// confine; host may be nil.
func Warnings(cfg *config.Config, engine *rego.Engine, host *sandbox.Host) []Finding {
	found := []Finding{}
	for _, w := range cfg.Warnings {
		found = append(found, warning("configuration", w.Place(), w.Message, w.Hint))
	}
	for _, w := range engine.Warnings() {
		found = append(found, warning("policy", "policy", w, ""))
	}
	if cfg.Deterministic {
		found = append(found, warning("deterministic", "toolgate.deterministic", "ids and times come from a counter and repeat from run to run", "for golden runs only: nowhere else should anybody rely on such a trail"))
	}
	if len(cfg.Approvals.Notify) > 0 && cfg.Console.URL == "" {
		found = append(found, warning("console-url", "toolgate.approvals.notify", "links in notices lead to "+ConsoleURL(cfg)+", where only this machine may get to",
			"set toolgate.console.url to where people reach the pages"))
	}
	if host, _, _ := net.SplitHostPort(cfg.Listen); len(cfg.Identity.JWT) > 0 && cfg.PublicURL == "" && !guard.Loopback(host) {
		found = append(found, warning("public-url", "toolgate.identity.jwt", "tokens of issuers are issued for "+URL(cfg.Listen, cfg.TLS)+", where other machines may not get to",
			"set toolgate.public_url to the address by which agents reach the listener"))
	}
	modes, _ := fileModes(cfg) // what is refused does not serve
	found = append(found, modes...)
	var known []string
	for _, t := range cfg.Identity.Tokens {
		if d := t.Demo(); d != "" {
			known = append(known, d)
		}
	}
	if len(known) > 0 {
		found = append(found, warning("demo-token", "toolgate.identity.tokens", "a demo token is known to everybody: "+strings.Join(known, ", "),
			"make your own with toolgate token create, and take these out"))
	}
	return slices.Concat(found, unknownPersons(cfg, engine), UnknownRoles(cfg, engine), confinement(cfg, host), plainListeners(cfg), storeFindings(cfg), unpinnedPackages(cfg))
}

// unknownPersons warns of credentials whose person is not known, where a policy can hold calls:
// somebody who has two of them may approve a call of their own.
func unknownPersons(cfg *config.Config, engine *rego.Engine) []Finding {
	if !engine.Holds() {
		return nil
	}
	var unknown []string
	for _, t := range cfg.Identity.Tokens {
		if t.Person == "" && len(t.Roles) > 0 && !slices.Contains(unknown, t.Subject) {
			unknown = append(unknown, t.Subject)
		}
	}
	for _, j := range cfg.Identity.JWT {
		if j.PersonClaim == "" {
			unknown = append(unknown, j.Issuer)
		}
	}
	if o := cfg.Console.OIDC; o != nil && o.PersonClaim == "" {
		unknown = append(unknown, o.Issuer)
	}
	if len(unknown) == 0 {
		return nil
	}
	what, hint := "whoever has two of these may approve a call of their own", ", and approvals.require_person to true"
	if cfg.Approvals.RequirePerson {
		what, hint = "nobody decides with these, and on no call of theirs (approvals.require_person)", ""
	}
	return []Finding{warning("unknown-person", "toolgate.identity", fmt.Sprintf("calls may be held for approval, and it is not known which person stands behind %s: %s", strings.Join(unknown, ", "), what),
		"set person in tokens and person_claim in issuers"+hint)}
}

// unpinnedPackages warns of servers that are whatever release a registry has that day.
func unpinnedPackages(cfg *config.Config) (found []Finding) {
	for _, s := range cfg.Servers {
		if name := unpinnedPackage(filepath.Base(s.Command), s.Args); name != "" {
			found = append(found, warning("unpinned-package", "mcpServers."+s.Name+".args", "the newest release of "+name+" runs, whatever it is", "write the version that you have read: "+name+"@VERSION"))
		}
	}
	return found
}

// packageRunners are the programs that fetch a package and run it: their options whose value is
// the package, and others that have a value.
var packageRunners = map[string]struct{ names, values []string }{
	"npx": {[]string{"-p", "--package"}, []string{"-c", "--call", "-w", "--workspace"}},
	"uvx": {[]string{"--from"}, []string{"-p", "--python", "--with", "--index", "--default-index", "--index-url", "--extra-index-url"}},
}

// unpinnedPackage returns the package that a command runs in its newest release, "" for none.
func unpinnedPackage(command string, args []string) string {
	runner, known := packageRunners[command]
	if !known {
		return ""
	}
	for i := 0; i < len(args); i++ {
		option, value, given := strings.Cut(args[i], "=")
		names := slices.Contains(runner.names, option)
		if (names || slices.Contains(runner.values, option)) && !given && i+1 < len(args) {
			i++
			value = args[i]
		}
		switch {
		case names:
			return withoutVersion(value)
		case !strings.HasPrefix(option, "-"):
			return withoutVersion(args[i])
		}
	}
	return ""
}

// withoutVersion returns the name of a package, "" for one with a version, a path, a variable or
// an address.
func withoutVersion(text string) string {
	name := strings.TrimSuffix(text, "@latest")
	if name == "" || strings.ContainsAny(name[1:], "@=<>~$:") || strings.ContainsAny(name[:1], "./$") {
		return ""
	}
	return name
}

// unmatchedLimits finds limit rules whose tool or role does not exist.
func unmatchedLimits(cfg *config.Config, roles []string, offered []*registry.Tool) (found []Finding) {
	for _, t := range cfg.Identity.Tokens {
		roles = append(roles, t.Roles...)
	}
	var tools []string
	for _, t := range offered {
		tools = append(tools, t.Exposed)
	}
	for _, s := range cfg.Servers {
		tools = append(tools, s.Methods...)
	}
	for i, rule := range cfg.Limits.Rules {
		where := fmt.Sprintf("toolgate.limits.rules[%d]", i)
		if rule.Tool != "" && !slices.Contains(tools, rule.Tool) && !proxy.Limited(rule.Tool) {
			found = append(found, warning("unknown-tool", where+".tool", fmt.Sprintf("no server offers a tool that is exposed as %q", rule.Tool), "toolgate tool list shows the names"))
		}
		if rule.Role != "" && !slices.Contains(roles, rule.Role) {
			found = append(found, warning("unknown-role", where+".role", fmt.Sprintf("no token and no policy data has the role %q", rule.Role), ""))
		}
	}
	return found
}

// undeliveredNotices warns of notices that no channel has delivered.
func undeliveredNotices(ctx context.Context, of *notice.Sender) (warnings []string) {
	const where = "toolgate.approvals.notify: "
	troubles, err := of.Troubles(ctx)
	if err != nil {
		return []string{where + "whether notices were delivered cannot be read"}
	}
	for _, t := range troubles {
		name := t.Channel
		if name == "" {
			name = "a channel that is no longer configured"
		}
		var what []string
		if t.Waiting > 0 {
			what = append(what, fmt.Sprintf("%d not delivered yet", t.Waiting))
		}
		if t.Dead > 0 {
			what = append(what, fmt.Sprintf("%d given up in the last week", t.Dead))
		}
		about := "a changed definition"
		if t.Ticket != "" {
			about = "ticket " + t.Ticket
		}
		warnings = append(warnings, fmt.Sprintf("%s%s: notices: %s; the latest, of %s: %s", where, name, strings.Join(what, ", "), about, t.Fault))
	}
	return warnings
}

// unsentDecisions warns of decisions that no sink has accepted, those that are older than maxLag.
func unsentDecisions(ctx context.Context, of *decisionlog.Shipper, maxLag time.Duration) (warnings []string) {
	const where = "toolgate.policy.log."
	troubles, err := of.Troubles(ctx)
	if err != nil {
		return []string{"toolgate.policy.log: whether decisions were told cannot be read"}
	}
	for _, t := range troubles {
		var what []string
		if t.Fault != "" {
			what = append(what, fmt.Sprintf("not told, the trail is %s ahead: %s", text.Count(int(t.Lag), "record"), t.Fault))
		}
		if age := time.Since(t.Since); t.Fault == "" && !t.Since.IsZero() && age > maxLag {
			what = append(what, fmt.Sprintf("the oldest that is not told is %s old, the trail is %s ahead", age.Round(time.Second), text.Count(int(t.Lag), "record")))
		}
		if t.Parked > 0 {
			what = append(what, fmt.Sprintf("%d refused in the last week; the latest, %s: %s", t.Parked, t.Decision, t.Refusal))
		}
		if len(what) > 0 {
			key := map[string]string{"file": "file", "http": "url"}[t.Sink]
			warnings = append(warnings, where+key+": decisions: "+strings.Join(what, "; "))
		}
	}
	return warnings
}
