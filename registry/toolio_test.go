package registry_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Seed 004, Tool I/O Schema.
func TestLoadToolIO(t *testing.T) {
	const in, out = `{"type":"object","properties":{"q":{"type":"string"}}}`, `{"type":"object","required":["n"]}`
	tests := []struct {
		name, definition string
		want             *registry.ToolIO // nil = refused
	}{
		{"both schemas", `{"name":"t","inputSchema":` + in + `,"outputSchema":` + out + `}`,
			&registry.ToolIO{Tool: "web__t", Input: json.RawMessage(in), Output: json.RawMessage(out)}},
		{"an output that is not described is any object", `{"name":"t","inputSchema":` + in + `}`,
			&registry.ToolIO{Tool: "web__t", Input: json.RawMessage(in), Output: json.RawMessage(`{"type":"object"}`)}},
		{"no input", `{"name":"t"}`, nil},
		{"an input that is no schema", `{"name":"t","inputSchema":true}`, nil},
		{"an input for a list", `{"name":"t","inputSchema":{"type":"array"}}`, nil},
		{"an input that does not compile", `{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"moon"}}}}`, nil},
		{"an output that does not compile", `{"name":"t","inputSchema":` + in + `,"outputSchema":{"type":"moon"}}`,
			&registry.ToolIO{Tool: "web__t", Input: json.RawMessage(in), Output: json.RawMessage(`{"type":"object"}`)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			definition := json.RawMessage(tt.definition)
			tool := &registry.Tool{Definition: definition, Fingerprint: upstream.Fingerprint(definition)}
			got, err := registry.NewSchemaRegistry().LoadToolIO("web__t", tool)
			if (err == nil) != (tt.want != nil) {
				t.Fatalf("got %v, %v", got, err)
			}
			if diff := cmp.Diff(asJSON(t, tt.want), asJSON(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A definition is read once: what comes under a known fingerprint is not read.
func TestToolIOIsCachedByFingerprint(t *testing.T) {
	schemas := registry.NewSchemaRegistry()
	definition := json.RawMessage(`{"name":"t","inputSchema":{"type":"object"}}`)
	print := upstream.Fingerprint(definition)
	if _, err := schemas.LoadToolIO("a", &registry.Tool{Definition: definition, Fingerprint: print}); err != nil {
		t.Fatal(err)
	}
	got, err := schemas.LoadToolIO("b", &registry.Tool{Definition: json.RawMessage(`{}`), Fingerprint: print})
	if err != nil || got.Tool != "b" {
		t.Errorf("under a known fingerprint: %v, %v", got, err)
	}
	if _, err := schemas.LoadToolIO("b", &registry.Tool{Definition: json.RawMessage(`{}`), Fingerprint: "sha256:other"}); err == nil {
		t.Error("another fingerprint gave the cached schema")
	}
}

func TestLoadToolIOOfNothing(t *testing.T) {
	r := registry.New(registry.Options{})
	defer r.Close(t.Context())
	if _, err := r.LoadToolIO("web__t"); !errors.Is(err, registry.ErrUnknownTool) {
		t.Errorf("got %v", err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
