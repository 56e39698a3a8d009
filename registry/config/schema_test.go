package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailscale/hujson"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/config"
)

// published compiles a part of the schema as an editor does, which knows none of
// our formats.
func published(t *testing.T, pointer string) *schema.Own {
	t.Helper()
	text, err := schemas.Files.ReadFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	own, err := schema.CompileOwn(text, pointer, nil)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// An editor finds no fault in what Load accepts, variables and all.
func TestPublishedSchemaAcceptsGoodFiles(t *testing.T) {
	parts := map[string]*schema.Own{
		"mcp.json": published(t, ""), "overlay.json": published(t, "/$defs/settings"), "clients.json": published(t, "/$defs/profiles"),
	}
	hold := func(name, path string, text []byte) {
		t.Helper()
		plain, err := hujson.Standardize(slices.Clone(text))
		if err != nil {
			t.Fatal(err)
		}
		if violations, err := parts[name].Check(plain); err != nil || len(violations) > 0 {
			t.Errorf("%s %s: %v, %v", path, name, violations, err)
		}
	}
	for _, path := range archives(t, "good") {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if parts[f.Name] != nil {
				hold(f.Name, path, f.Data)
			}
		}
	}
	for name, path := range map[string]string{"mcp.json": "../../mcp.json", "clients.json": "clients.json"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		hold(name, path, text)
	}
}

// document is the schema as it is written.
func document(t *testing.T) map[string]any {
	t.Helper()
	text, err := schemas.Files.ReadFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc["$defs"].(map[string]any)
}

// resolve follows a reference to a definition.
func resolve(defs map[string]any, at any) map[string]any {
	s, _ := at.(map[string]any)
	if to, ok := s["$ref"].(string); ok {
		return resolve(defs, defs[strings.TrimPrefix(to, "#/$defs/")])
	}
	return s
}

// keys gives the keys that a schema or a struct reads, with a dot for each level
// and a star for each element.
func schemaKeys(defs map[string]any, at any, path string, out map[string]bool) {
	s := resolve(defs, at)
	properties, _ := s["properties"].(map[string]any)
	for name, p := range properties {
		out[path+name] = true
		schemaKeys(defs, p, path+name+".", out)
	}
	patterns, _ := s["patternProperties"].(map[string]any)
	for _, p := range patterns {
		schemaKeys(defs, p, path+"*.", out)
	}
	schemaKeysOf(defs, s["items"], path, out)
}

func schemaKeysOf(defs map[string]any, at any, path string, out map[string]bool) {
	if at != nil {
		schemaKeys(defs, at, path+"*.", out)
	}
}

func structKeys(typ reflect.Type, path string, out map[string]bool) {
	switch typ.Kind() {
	case reflect.Pointer:
		structKeys(typ.Elem(), path, out)
		return
	case reflect.Slice, reflect.Map:
		structKeys(typ.Elem(), path+"*.", out)
		return
	case reflect.Struct:
	default:
		return
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		switch tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case f.Anonymous:
			structKeys(f.Type, path, out)
		case tag != "":
			out[path+tag] = true
			structKeys(f.Type, path+tag+".", out)
		}
	}
}

// What is decoded is described, and what is described is decoded: by a struct,
// or by code that is named here.
func TestSchemaAndStructsAgree(t *testing.T) {
	defs := document(t)
	for _, c := range []struct {
		name    string
		schemas []string
		typ     reflect.Type
		code    []string // keys that code reads
	}{
		{"settings", []string{"settings"}, reflect.TypeFor[config.Config](), []string{
			"$schema", "servers", "approvals.clients", // other files, other structs
			"limits.default.rate", "limits.default.burst", "limits.refused.rate", "limits.refused.burst", "limits.rules.*.burst", // Rate.UnmarshalJSON
			"policy.token", "policy.shadow.token", "policy.keys.*.path", "policy.shadow.keys.*.path", // headers and keys
		}},
		{"server", []string{"server", "serverSettings"}, reflect.TypeFor[config.Server](), []string{"envFile"}},
		{"profile", []string{"profile"}, reflect.TypeFor[config.Client](), []string{"basis", "source"}}, // for people
	} {
		described, decoded := map[string]bool{}, map[string]bool{}
		for _, s := range c.schemas {
			schemaKeys(defs, defs[s], "", described)
		}
		structKeys(c.typ, "", decoded)
		for _, key := range c.code {
			if decoded[key] || !described[key] {
				t.Errorf("%s: %s is not a key that only code reads", c.name, key)
			}
			decoded[key] = true
		}
		for key := range described {
			if !decoded[key] {
				t.Errorf("%s: %s is in the schema and in no struct", c.name, key)
			}
		}
		for key := range decoded {
			if !described[key] {
				t.Errorf("%s: %s is in a struct and not in the schema", c.name, key)
			}
		}
	}
}

// The defaults that an editor shows are those that hold.
func TestSchemaDefaultsHold(t *testing.T) {
	defs := document(t)
	const all = `{ "mcpServers": { "a": { "command": "x" } }, "toolgate": {
		"policy": { "path": "https://x.example/b.tar.gz", "poll": {}, "log": { "file": "f" }, "keys": { "k": { "algorithm": "HS256", "key": "0123456789012345678901234567890" } } },
		"shared": "redis://localhost",
		"telemetry": { "endpoint": "https://x.example", "traces": {}, "metrics": {} },
		"console": { "oidc": { "issuer": "https://x.example", "client_id": "x" } },
		"identity": { "jwt": [{ "issuer": "x", "audience": ["x"], "jwks": "https://x.example" }] },
		"approvals": { "notify": [{ "webhook": "https://x.example", "secret": "0123456789012345678901234567890" }] } } }`
	cfg := load(t, only(all))
	seen := 0
	var walk func(at any, v reflect.Value, path string)
	walk = func(at any, v reflect.Value, path string) {
		s, _ := at.(map[string]any)
		if want, ok := s["default"]; ok && !strings.HasSuffix(path, ".algorithm") { // written above
			seen++
			if !holds(v, want) {
				t.Errorf("%s: %v, want %v", path, v, want)
			}
		}
		s = resolve(defs, at)
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		switch properties, _ := s["properties"].(map[string]any); {
		case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[config.Rate]():
			for i := range v.NumField() {
				f := v.Type().Field(i)
				if f.Anonymous {
					walk(at, v.Field(i), path)
				} else if p, ok := properties[f.Tag.Get("json")]; ok {
					walk(p, v.Field(i), path+"."+f.Tag.Get("json"))
				}
			}
		case v.Kind() == reflect.Slice && v.Len() == 1:
			walk(s["items"], v.Index(0), path+"[0]")
		}
	}
	walk(defs["settings"], reflect.ValueOf(*cfg), "settings")
	walk(defs["server"], reflect.ValueOf(cfg.Servers[0]), "server")
	walk(defs["serverSettings"], reflect.ValueOf(cfg.Servers[0]), "serverSettings")
	if seen < 25 {
		t.Errorf("%d defaults are compared", seen)
	}
}

// holds compares a value with a default as the schema writes it.
func holds(v reflect.Value, want any) bool {
	text := fmt.Sprint(want)
	switch x := v.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(text)
		return err == nil && d == x
	case *config.Rate:
		r, err := config.ParseRate(text)
		return err == nil && r == *x
	case config.Amount:
		var a config.Amount
		quoted, err := json.Marshal(want)
		return err == nil && a.UnmarshalJSON(quoted) == nil && a == x
	case string:
		return x == text || filepath.IsAbs(x) && filepath.Base(x) == text
	}
	return fmt.Sprint(v.Interface()) == text
}
