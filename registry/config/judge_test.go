package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tailscale/hujson"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/config"
)

// A published schema says of every value what its compiled form says, although it is
// compiled only for values that it does not accept at once.
func TestSchemaJudgesAsCompiled(t *testing.T) {
	t.Parallel()
	const each = 60 // changed forms of a document
	random := rand.New(rand.NewPCG(1, 2))
	judges := newJudges(t)
	for _, document := range documents(t) {
		judges.agree(t, document)
		for range each {
			v := valueOf(t, document)
			for range 1 + random.IntN(3) {
				v = changed(random, v, valueOf(t, []byte(strange[random.IntN(len(strange))])))
			}
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			judges.agree(t, text)
		}
	}
}

func FuzzSchemaJudgesAsCompiled(f *testing.F) {
	for _, document := range documents(f) {
		f.Add(document)
	}
	judges := newJudges(f)
	f.Fuzz(func(t *testing.T, document []byte) { judges.agree(t, document) })
}

// TestGoodFilesCompileNoSchema: the largest good file takes 23,000 allocations, 25,000 under the
// race detector; compiling the schema takes 64,000 more.
func TestGoodFilesCompileNoSchema(t *testing.T) {
	const most = 40_000
	for _, path := range archives(t, "good") {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, opts := unpack(t, a)
		if n := testing.AllocsPerRun(1, func() {
			if _, err := config.Load(opts); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}); n > most {
			t.Errorf("%s: %.0f allocations, want at most %d", path, n, most)
		}
	}
}

// judges are the published schemas, each as it is used and compiled.
type judges [][2]*schema.Own

func newJudges(t testing.TB) (all judges) {
	t.Helper()
	for _, of := range [][2]string{
		{"config.json", ""}, {"config.json", "/$defs/profiles"}, {"config.json", "/$defs/servers"}, {"config.json", "/$defs/settings"},
		{"backends.json", ""}, {"policy-data.json", ""},
	} {
		text, err := schemas.Files.ReadFile(of[0])
		if err != nil {
			t.Fatal(err)
		}
		formats := maps.Clone(config.Formats)
		formats["time-zone"] = formats["glob"]
		read, err := schema.ReadOwn(text, of[1], formats)
		if err != nil {
			t.Fatal(err)
		}
		compiled, err := schema.CompileOwn(text, of[1], formats)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, [2]*schema.Own{read, compiled})
	}
	return all
}

// agree compares what the two forms of each schema say of a document.
func (all judges) agree(t *testing.T, document []byte) {
	t.Helper()
	for i, forms := range all {
		var said [2][]string
		for j, form := range forms {
			violations, err := form.Check(document)
			if err != nil {
				said[j] = []string{err.Error()}
			}
			for _, v := range violations {
				said[j] = append(said[j], fmt.Sprintf("%+v", v))
			}
			slices.Sort(said[j])
		}
		if diff := cmp.Diff(said[1], said[0]); diff != "" {
			t.Fatalf("schema %d on %s (-compiled +used):\n%s", i, document, diff)
		}
	}
}

// documents returns the files of all good and bad cases, and those that the repository ships.
func documents(t testing.TB) (all [][]byte) {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var files [][]byte
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if filepath.Ext(f.Name) == ".json" {
				files = append(files, f.Data)
			}
		}
	}
	for _, path := range []string{"../../mcp.json", "clients.json", "../../policy/bundle/data.json"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, text)
	}
	files = append(files, []byte(`{"search": {"provider": "searxng", "base_url": "https://x.example", "timeout": "3s"}, "fetch": {"allow": ["x.example"]},
		"media": {"provider": "fal", "api_key": "k", "models": {"m": {"id": "x/y", "cost": 0.01}}, "budget": 2.5},
		"wallet": {"rpc_url": "https://x.example", "chain_id": 1, "tokens": {"T": {"address": "0x0000000000000000000000000000000000000001", "decimals": 6}}}}`))
	for _, text := range files {
		plain, err := hujson.Standardize(slices.Clone(text))
		if err != nil {
			continue // some bad cases are not JSON
		}
		all = append(all, plain)
		var whole struct{ Toolgate json.RawMessage }
		if json.Unmarshal(plain, &whole) == nil && whole.Toolgate != nil {
			all = append(all, whole.Toolgate)
		}
	}
	return all
}

// strange are values that take the place of others.
var strange = []string{`null`, `true`, `""`, `"x"`, `"off"`, `"1h"`, `"10/1m"`, `"https://x.example/"`, `"a/b*"`, `0`, `-1`, `1.0`, `1.5`, `1e3`, `65536`,
	`12345678901234567890123456789012`, `[]`, `["a", "a"]`, `["a", "b"]`, `[1, 1]`, `{}`, `{"x": 1}`, `{"rate": "1/s", "burst": 0}`}

// valueOf reads JSON, whose numbers stay as they are written.
func valueOf(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// changed returns v with one change at a place that chance finds, for which it may use other.
func changed(random *rand.Rand, v, other any) any {
	switch v := v.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		if len(names) == 0 || random.IntN(8) == 0 {
			v["added"] = other
			return v
		}
		name := names[random.IntN(len(names))]
		switch random.IntN(8) {
		case 0:
			delete(v, name)
		case 1:
			v[name+"x"] = v[name]
			delete(v, name)
		case 2:
			v[names[random.IntN(len(names))]] = v[name]
		default:
			v[name] = changed(random, v[name], other)
		}
		return v
	case []any:
		if len(v) == 0 || random.IntN(8) == 0 {
			return append(v, other)
		}
		i := random.IntN(len(v))
		switch random.IntN(8) {
		case 0:
			return append(v, v[i])
		case 1:
			return slices.Delete(v, i, i+1)
		}
		v[i] = changed(random, v[i], other)
		return v
	}
	return other
}
