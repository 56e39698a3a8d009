package app

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
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
