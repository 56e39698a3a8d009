package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/publisher"
	"github.com/toolgate/toolgate/registry/config"
)

// rule is a policy with one rule for every call.
func rule(name string) map[string]string {
	return map[string]string{
		"p.rego": "package toolgate\nimport rego.v2\ndecision := {\"effect\": \"allow\", \"rule\": \"" + name + "\"}\n", "data.json": `{"roles": {}}`,
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// read loads the mcp.json of a directory.
func read(dir string) func() (*config.Config, error) {
	return func() (*config.Config, error) {
		return config.Load(config.Options{Path: filepath.Join(dir, "mcp.json"), Getenv: os.LookupEnv})
	}
}

// opened opens an App in a directory, for as long as the test.
func opened(t *testing.T, dir string) (*App, *config.Config) {
	t.Helper()
	cfg, err := read(dir)()
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.Context(), cfg, Options{Role: "observer", Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, cfg
}

// A policy that compiles and fails on samples does not serve: Open fails, and leaves
// nothing open.
func TestPolicyThatFailsItsTrial(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"policy": {"path": "policy"}}}`)
	for name, text := range map[string]string{
		"p.rego": "package toolgate\nimport rego.v2\ndecision := {\"effect\": \"allow\", \"rule\": concat(\"\", [input.arguments.query])}\n", "data.json": `{"roles": {}}`,
	} {
		write(t, filepath.Join(dir, "policy", name), text)
	}
	cfg, err := read(dir)()
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.Context(), cfg, Options{Role: "observer", Version: "test"})
	if refused := (*ConfigError)(nil); a != nil || !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "trying policy: role ") {
		t.Errorf("got %v, want a trial that failed", err)
	}
}

// What changes after the configuration was read and before anything is watched is
// taken over too.
func TestChangedBeforeTheWatch(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"policy": {"path": "policy"}}}`)
	write(t, filepath.Join(dir, "policy", "p.rego"), rule("one")["p.rego"])
	a, cfg := opened(t, dir)
	before := a.Revision()
	write(t, filepath.Join(dir, "policy", "p.rego"), rule("two")["p.rego"])
	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := a.reloads.watch(ctx, Reload{Begun: cfg, Next: read(dir)}); err != nil {
			t.Error(err)
		}
	})
	program.Await(t, "the changed policy", func() bool { return a.Revision() != before })
	stop()
	watch.Wait()
}

// A policy that was fetched for a configuration that is gone does not serve.
func TestTooLateToTake(t *testing.T) {
	p := publisher.New(t)
	p.Publish(publisher.Pack(t, rule("one")))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"policy": {"path": "`+p.URL+`"}}}`)
	a, cfg := opened(t, dir)
	before, old := a.Revision(), a.policy.source
	p.Publish(publisher.Pack(t, rule("two")))
	same := func() (*config.Config, error) { return cfg, nil }
	a.reloads.reloadOnce(t.Context(), Reload{Begun: cfg, Next: same}, true)
	if a.Revision() == before || a.policy.source == old {
		t.Fatal("the reload fetched nothing")
	}
	served := a.Revision()
	p.Publish(publisher.Pack(t, rule("three")))
	c, err := old.remote.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.policy.take(t.Context(), old, c); err == nil || a.Revision() != served {
		t.Errorf("taken too late: %v", err)
	}
	if err := a.policy.take(t.Context(), a.policy.source, c); err != nil || a.Revision() == served {
		t.Errorf("not taken in time: %v", err)
	}
}

// A configuration or a policy that cannot serve is told from other errors.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"policy": {"path": "policy"}}}`)
	write(t, filepath.Join(dir, "policy", "p.rego"), "package toolgate\ndecision := \n")
	cfg, err := read(dir)()
	if err != nil {
		t.Fatal(err)
	}
	var bad *ConfigError
	if a, err := Open(t.Context(), cfg, Options{}); a != nil || !errors.As(err, &bad) || !strings.Contains(err.Error(), "p.rego") {
		t.Errorf("Open = %v, %v, want a ConfigError about p.rego", a, err)
	}
}
