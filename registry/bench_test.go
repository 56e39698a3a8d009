package registry_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
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

// A call with a token that mcp.json has as a header, and with the grant of the caller.
func BenchmarkCredential(b *testing.B) {
	at := newBank(b)
	static := config.Server{
		Name: "bank", Type: config.TypeHTTP, URL: at.url + "/mcp", Prefix: "bank__", Isolation: "session", MaxSessions: 8, Timeout: patience, Pin: config.PinOff,
		OutputSchema: "warn", CaseVariants: "refuse",
	}
	granted := static
	granted.Credential = &config.Credential{Type: config.CredentialOAuth, ClientID: "toolgate"}
	dir, err := keys.Open(filepath.Join(b.TempDir(), "keys"))
	if err != nil {
		b.Fatal(err)
	}
	db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	serverOf := func(string) (config.Server, bool) { return granted, true }
	grants := credential.OpenGrants(credential.GrantOptions{
		DB: db, Keys: dir, Now: at.clock, Server: serverOf, Callback: func() string { return "http://127.0.0.1:1/connections/callback" }, Document: func() string { return "" },
	})
	defer grants.Close()
	at.connect(b, grants, granted, "ann", serverOf)
	at.connect(b, grants, granted, "header", serverOf)
	for bearer, t := range at.access {
		if t.person == "header" {
			static.Headers = map[string]string{"Authorization": "Bearer " + bearer}
		}
	}
	for name, server := range map[string]config.Server{"header": static, "grant": granted} {
		b.Run(name, func(b *testing.B) {
			r := registry.New(registry.Options{Credentials: credential.NewBroker(grants, credential.BrokerOptions{Now: at.clock}), Now: at.clock})
			defer r.Close(b.Context())
			if err := r.Apply(b.Context(), &config.Config{Servers: []config.Server{server}}); err != nil {
				b.Fatal(err)
			}
			r.Settle(b.Context())
			from := registry.Downstream{Session: "s", Subject: "ann"}
			tool, ok := r.View(b.Context(), "bank", from).Lookup("who")
			if !ok {
				b.Fatal("the server offers nothing")
			}
			for b.Loop() {
				if _, err := r.Forward(b.Context(), tool, registry.Outgoing{Arguments: json.RawMessage(`{}`), From: from}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
