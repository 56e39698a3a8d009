package cli

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/bundle"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/publisher"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/rego"
)

// rule is a policy whose one rule decides on every call.
func rule(effect, name string) map[string]string {
	return map[string]string{"p.rego": `package toolgate

import rego.v2

decision := {"effect": "` + effect + `", "rule": "` + name + `", "reason": data.reason} if input.tool.name

visible := true
`, "data.json": `{"reason": "because"}`}
}

// revisionOf is the revision that files have.
func revisionOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	e, err := rego.Load(t.Context(), rego.Options{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	return e.Revision()
}

// shown waits until a page of the people's listener matches.
func shown(t *testing.T, admin, page, pattern string) {
	t.Helper()
	await200(t, admin, page, pattern, true)
}

// gone waits until such a page matches no more.
func gone(t *testing.T, admin, page, pattern string) {
	t.Helper()
	await200(t, admin, page, pattern, false)
}

func await200(t *testing.T, admin, page, pattern string, match bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	want, body := regexp.MustCompile("(?m)"+pattern), ""
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if status, text, err := visit("http://"+admin+page, ""); err == nil && status == http.StatusOK {
			if body = text; want.MatchString(body) == match {
				return
			}
		}
	}
	t.Fatalf("waited in vain for %s to show %q: %v:\n%s", page, pattern, match, body)
}

// from is a directory with an mcp.json whose policy is at a URL.
func from(t *testing.T, url, further string) string {
	t.Helper()
	dir := t.TempDir()
	section, err := json.Marshal(url)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{
		"up.json": `{"Tools": [{"Name": "say"}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": ` + string(section) + further + `, "timeout": "10s"}, "limits": {"default": "off"}, "servers": {"up": {"isolation": "shared"}}}}`,
	})
	return dir
}

// TestPolicyFromServer follows one policy server through its life: changes that
// are taken at once, one that cannot serve, one that is away, and a start
// without it.
func TestPolicyFromServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	p := publisher.New(t)
	one, two := rule("allow", "one"), rule("deny", "two")
	p.Publish(publisher.Pack(t, one))
	dir := from(t, p.URL, `, "poll": {"min": "1s", "max": "1s", "long": "20s"}, "data": {"beside": true}`)
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	gate := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	call := func(want int) {
		t.Helper()
		if code, out := toolgate(t, dir, "tool", "call", "up__say", "--addr", "http://"+agents); code != want {
			t.Errorf("exit %d, want %d: %s", code, want, out)
		}
	}
	call(command.ExitOK)
	if kept, err := filepath.Glob(filepath.Join(dir, ".toolgate", "policy", "[0-9a-f]*.tar.gz")); err != nil || len(kept) != 1 {
		t.Errorf("the start kept %v: %v", kept, err)
	}
	overlaid := func(files map[string]string) string {
		engine, err := rego.Load(t.Context(), rego.Options{Path: unfold(t, files), Data: json.RawMessage(`{"beside": true}`)})
		if err != nil {
			t.Fatal(err)
		}
		return engine.Revision()
	}
	shown(t, admin, "/metrics", `^toolgate_policy_info\{revision="`+overlaid(one)+`"\} 1`)

	p.Publish(publisher.Pack(t, two))
	shown(t, admin, "/readyz?verbose", overlaid(two))
	shown(t, admin, "/metrics", `^toolgate_policy_info\{revision="`+overlaid(two)+`"\} 1`)
	call(command.ExitDenied)
	gate.says("a new policy serves")
	if _, body, err := visit("http://"+admin+"/metrics", ""); err != nil || strings.Count(body, "\ntoolgate_policy_info{") != 1 {
		t.Errorf("not one revision serves: %v", err)
	}

	for name, files := range map[string]map[string]string{
		"a typo":  {"p.rego": strings.Replace(one["p.rego"], "decision :=", "decision =", 1) + "}"},
		"a clash": {"p.rego": one["p.rego"], "data.json": `{"reason": "because", "beside": false}`},
		"a delta": {"patch.json": `{"data": []}`},
	} {
		p.Publish(publisher.Pack(t, files))
		shown(t, admin, "/readyz?verbose", `may not be what its server has: the policy from http`)
		if name == "a clash" {
			shown(t, admin, "/readyz?verbose", `data.beside is set twice: in data.json:1 and in mcp.json:\d+:\d+`)
		}
		call(command.ExitDenied)
		shown(t, admin, "/readyz?verbose", overlaid(two))
		p.Publish(publisher.Pack(t, two))
		gone(t, admin, "/readyz?verbose", "may not be what its server has")
	}
	shown(t, admin, "/metrics", `^toolgate_policy_loads_total\{outcome="refused"\} 3`)
	p.Fail(http.StatusServiceUnavailable)
	shown(t, admin, "/readyz?verbose", `may not be what its server has: fetching the policy from .*: it answered 503`)
	shown(t, admin, "/metrics", `^toolgate_policy_loads_total\{outcome="away"\} [1-9]`)
	gate.signal(syscall.SIGHUP) // the configuration is taken over, the policy stays
	gate.says("reloaded: ")
	shown(t, admin, "/readyz?verbose", overlaid(two))
	shown(t, admin, "/readyz?verbose", `may not be what its server has: .*503`)
	call(command.ExitDenied)
	gate.signal(syscall.SIGTERM)
	gate.ends(command.ExitOK)
	awayAtStart(t, p, dir, overlaid(two))
}

// unfold writes files to a directory of their own.
func unfold(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	return dir
}

// awayAtStart starts every kind of program while the server is away: with the
// last good policy, and not at all without one.
func awayAtStart(t *testing.T, p *publisher.Publisher, dir, revision string) {
	t.Helper()
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	gate := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	gate.says("the last good policy serves")
	shown(t, admin, "/readyz?verbose", revision)
	shown(t, admin, "/readyz?verbose", `may not be what its server has: .*503`)
	if code, out := toolgate(t, dir, "tool", "call", "up__say", "--addr", "http://"+agents); code != command.ExitDenied {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, args := range [][]string{{"check"}, {"check", "--offline"}, {"policy", "check"}} {
		if code, out := toolgate(t, dir, args...); code != command.ExitOK || !strings.Contains(out, "the last good policy is looked at") || !strings.Contains(out, text.ShortDigest(revision)) {
			t.Errorf("%v: exit %d: %s", args, code, out)
		}
	}
	if code, out := toolgate(t, dir, "stdio"); code != command.ExitOK || !strings.Contains(out, "the last good policy serves") {
		t.Errorf("stdio: exit %d: %s", code, out)
	}
	p.Publish(publisher.Pack(t, rule("allow", "three")))
	gate.says("a new policy serves")
	gate.says("the policy is again what its server has")
	p.Fail(http.StatusServiceUnavailable)
	gate.signal(syscall.SIGTERM)
	gate.ends(command.ExitOK)
	if err := os.RemoveAll(filepath.Join(dir, ".toolgate", "policy")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "--listen", agents, "--admin", admin}, {"stdio"}, {"check"}, {"policy", "check"}} {
		if code, out := toolgate(t, dir, args...); code == command.ExitOK || !strings.Contains(out, "503") {
			t.Errorf("%v without a last good policy: exit %d: %s", args, code, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "toolgate-[0-9]*")); err != nil || len(left) > 0 {
		t.Logf("directories of other programs, or of ours: %v, %v", left, err)
	}
}

// sign signs files as opa sign does.
func sign(t *testing.T, files map[string]string, secret string) map[string]string {
	t.Helper()
	hash, err := bundle.NewSignatureHasher("SHA-256")
	if err != nil {
		t.Fatal(err)
	}
	signed, list := map[string]string{}, []bundle.FileInfo{}
	for name, content := range files {
		var value any = []byte(content)
		if strings.HasSuffix(name, ".json") {
			decode(t, []byte(content), &value)
		}
		sum, err := hash.HashFile(value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, bundle.NewFile(name, hex.EncodeToString(sum), "SHA-256"))
		signed[name] = content
	}
	token, err := bundle.GenerateSignedToken(list, bundle.NewSigningConfig(secret, "HS256", ""), "team")
	if err != nil {
		t.Fatal(err)
	}
	signed[".signatures.json"] = `{"signatures": ["` + token + `"]}`
	return signed
}

// TestSignedPolicyFromServer holds that with a key only what it signed serves,
// from the server, from the copy that is kept and from a directory.
func TestSignedPolicyFromServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	const secret = "a secret of more than 24 bytes"
	p := publisher.New(t)
	one, two := rule("allow", "one"), rule("deny", "two")
	p.Publish(publisher.Pack(t, sign(t, one, secret)))
	dir := from(t, p.URL, `, "poll": {"min": "1s", "max": "1s", "long": "20s"}, "keys": {"team": {"algorithm": "HS256", "path": "key"}}`)
	write(t, dir, map[string]string{"key": secret})
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	gate := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	shown(t, admin, "/readyz?verbose", revisionOf(t, one))
	for _, files := range []map[string]string{two, sign(t, two, "the secret of somebody else")} {
		p.Publish(publisher.Pack(t, files))
		shown(t, admin, "/readyz?verbose", `may not be what its server has: .*sign`)
		shown(t, admin, "/readyz?verbose", revisionOf(t, one))
		p.Publish(publisher.Pack(t, sign(t, one, secret)))
		gone(t, admin, "/readyz?verbose", "may not be what its server has")
	}
	p.Publish(publisher.Pack(t, sign(t, two, secret)))
	shown(t, admin, "/readyz?verbose", revisionOf(t, two))
	// With another key the copy that is kept is worth nothing any more.
	write(t, dir, map[string]string{"key": "a new secret of more than 24 bytes"})
	shown(t, admin, "/readyz?verbose", "the last reload failed and changed nothing: .*verif")
	gate.signal(syscall.SIGTERM)
	gate.ends(command.ExitOK)
	if code, out := toolgate(t, dir, "serve", "--listen", agents, "--admin", admin); code != command.ExitUsage || !strings.Contains(out, "verif") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// TestPolicyMoves holds that a reload which names another place is followed: the
// old server is asked no more, the new one is, and a directory is watched.
func TestPolicyMoves(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	first, second := publisher.New(t), publisher.New(t)
	one, two, three, four := rule("allow", "one"), rule("allow", "two"), rule("allow", "three"), rule("allow", "four")
	first.Publish(publisher.Pack(t, one))
	second.Publish(publisher.Pack(t, two))
	dir := from(t, first.URL, `, "poll": {"min": "1s", "long": "20s"}`)
	settings, err := os.ReadFile(filepath.Join(dir, "mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	waits := func(p *publisher.Publisher, want int) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(patience); p.Waiting() != want; <-tick.C {
			if time.Now().After(end) {
				t.Fatalf("%d requests wait, want %d", p.Waiting(), want)
			}
		}
	}
	waits(first, 1)
	replace(t, filepath.Join(dir, "mcp.json"), strings.Replace(string(settings), first.URL, second.URL, 1))
	shown(t, admin, "/readyz?verbose", revisionOf(t, two))
	waits(first, 0)
	waits(second, 1)
	second.Publish(publisher.Pack(t, three))
	shown(t, admin, "/readyz?verbose", revisionOf(t, three))
	write(t, dir, map[string]string{"policy/p.rego": one["p.rego"], "policy/data.json": one["data.json"]})
	replace(t, filepath.Join(dir, "mcp.json"), strings.Replace(strings.Replace(string(settings), first.URL, "policy", 1), `, "poll": {"min": "1s", "long": "20s"}`, "", 1))
	shown(t, admin, "/readyz?verbose", revisionOf(t, one))
	waits(second, 0)
	replace(t, filepath.Join(dir, "policy", "p.rego"), four["p.rego"])
	shown(t, admin, "/readyz?verbose", revisionOf(t, four))
}

// TestShadowFromServer holds that a policy which only is asked may come from a
// server too: it changes with what is there, and is enforced by nobody.
func TestShadowFromServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts several programs")
	p := publisher.New(t)
	one, two := rule("allow", "one"), rule("deny", "two")
	p.Publish(publisher.Pack(t, one))
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"up.json": `{"Tools": [{"Name": "say"}]}`, "policy/p.rego": one["p.rego"], "policy/data.json": one["data.json"],
		"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s", "shadow": {"path": %q, "poll": {"min": "1s", "max": "1s", "long": "20s"}}},
				"servers": {"up": {"isolation": "shared"}}}}`, p.URL),
	})
	agents, admin := program.FreeAddress(t), program.FreeAddress(t)
	start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	call := func(shadow string) {
		t.Helper()
		if code, out := toolgate(t, dir, "tool", "call", "up__say", "--addr", "http://"+agents); code != command.ExitOK {
			t.Errorf("exit %d: %s", code, out)
		}
		shown(t, admin, "/readyz?verbose", shadow)
	}
	shown(t, admin, "/readyz?verbose", "^shadow "+revisionOf(t, one)+": same 0, changed 0, ")
	call("^shadow " + revisionOf(t, one) + ": same 1, changed 0, ")
	p.Publish(publisher.Pack(t, two))
	shown(t, admin, "/readyz?verbose", "^shadow "+revisionOf(t, two)+": same 0, changed 0, ")
	call("^shadow " + revisionOf(t, two) + ": same 0, changed 1, ")
	p.Fail(http.StatusServiceUnavailable)
	shown(t, admin, "/readyz?verbose", "^warning: .*shadow.*503")
	call("^shadow " + revisionOf(t, two) + ": same 0, changed 2, ")
}
