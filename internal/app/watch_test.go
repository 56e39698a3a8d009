package app

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// TestStampFiles holds that every change of what was read changes the stamps, also
// behind a symbolic link that is exchanged, as Kubernetes does with volumes.
func TestStampFiles(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"v1", "v2"} {
		write(t, filepath.Join(dir, version, "p.rego"), "package p # "+version)
	}
	write(t, filepath.Join(dir, "mcp.json"), "{}")
	link := filepath.Join(dir, "policy")
	point := func(to string) {
		t.Helper()
		next := link + ".next"
		if err := os.Symlink(to, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, link); err != nil {
			t.Fatal(err)
		}
	}
	point("v1")
	cfg := &config.Config{Files: []string{filepath.Join(dir, "mcp.json")}, Policy: config.Policy{PolicySource: config.PolicySource{Path: link}}}
	past := time.Now().Add(-time.Hour)
	before := stampFiles(cfg)
	for _, change := range []struct {
		name string
		make func()
	}{
		{"nothing", nil},
		{"another text", func() { write(t, filepath.Join(dir, "mcp.json"), "{ }") }},
		{"another time", func() {
			if err := os.Chtimes(filepath.Join(dir, "mcp.json"), past, past); err != nil {
				t.Fatal(err)
			}
		}},
		{"a new file", func() { write(t, filepath.Join(link, "deep", "q.rego"), "package q") }},
		{"another target", func() { point("v2") }},
		{"no file", func() {
			if err := os.Remove(filepath.Join(dir, "v2", "p.rego")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if change.make != nil {
			change.make()
		}
		after := stampFiles(cfg)
		if maps.Equal(before, after) == (change.make != nil) {
			t.Errorf("%s: before %v, after %v", change.name, before, after)
		}
		before = after
	}
}
