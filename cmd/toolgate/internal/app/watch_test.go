package app

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
)

// TestExchangedLink holds that a policy behind a symbolic link that is exchanged is
// taken over, as Kubernetes exchanges the files of a volume.
func TestExchangedLink(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"policy": {"path": "policy"}}}`)
	for _, version := range []string{"one", "two"} {
		write(t, filepath.Join(dir, version, "p.rego"), rule(version)["p.rego"])
	}
	point := func(to string) {
		t.Helper()
		link := filepath.Join(dir, "policy")
		if err := os.Symlink(to, link+".next"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".next", link); err != nil {
			t.Fatal(err)
		}
	}
	point("one")
	a, cfg := opened(t, dir)
	before := a.Revision()
	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := a.reloads.watch(ctx, Reload{Begun: cfg, Next: read(dir)}); err != nil {
			t.Error(err)
		}
	})
	point("two")
	program.Await(t, "the exchanged policy", func() bool { return a.Revision() != before })
	stop()
	watch.Wait()
}

// TestStartSettings holds that every setting that only a start reads is found, and that a changed one is named.
func TestStartSettings(t *testing.T) {
	begun := &config.Config{AllowedHosts: []string{}, TLS: &config.TLS{Cert: "a"}}
	next := &config.Config{TLS: &config.TLS{Cert: "b"}, Limits: config.Limits{MaxDepth: 9}, Audit: config.Audit{Anchors: []config.Anchor{{}}}}
	if got, want := needRestart(begun, next), []string{"toolgate.tls", "toolgate.limits.max_depth", "toolgate.audit.anchors"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := needRestart(next, next); got != nil {
		t.Errorf("the same configuration differs in %q", got)
	}
}
