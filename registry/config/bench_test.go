package config_test

import (
	"testing"

	"github.com/toolgate/toolgate/registry/config"
)

// BenchmarkLoad reads a configuration without a fault.
func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := config.Load(config.Options{Path: "../../mcp.json", Getenv: lookup("")}); err != nil {
			b.Fatal(err)
		}
	}
}
