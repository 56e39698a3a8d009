package registry_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// BenchmarkForward measures one call with 1 KiB of arguments to a recorder and
// back, the recorder's own work included.
func BenchmarkForward(b *testing.B) {
	tools := recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}
	arguments := json.RawMessage(`{"text":"` + strings.Repeat("x", 1000) + `"}`)
	for _, kind := range []string{"stdio", "http"} {
		b.Run(kind, func(b *testing.B) {
			rec := recorder.Stdio(b, tools)
			if kind == "http" {
				rec = recorder.HTTP(b, tools)
			}
			cfg := server("s", rec)
			cfg.Isolation = "shared"
			r := registry.New(registry.Options{})
			defer r.Close(context.Background())
			if err := r.Apply(context.Background(), &config.Config{Servers: []config.Server{cfg}}); err != nil {
				b.Fatal(err)
			}
			var tool *registry.Tool
			for end := time.Now().Add(patience); tool == nil && time.Now().Before(end); {
				tool, _ = r.Catalogue().Lookup("", "s__echo")
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Forward(context.Background(), tool, registry.Outgoing{Arguments: arguments}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
