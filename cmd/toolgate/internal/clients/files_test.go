package clients_test

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/registry/config"
)

var update = flag.Bool("update", false, "write what came out into the want section of the test files")

// archives gives the test files of a folder; an empty folder is a fault of the test.
func archives(t *testing.T, folder string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.txtar"))
	if own, failed := filepath.Glob(filepath.Join("../../../../registry/config/testdata", folder, "*.txtar")); failed == nil {
		paths = append(paths, own...) // toolgate's own form is read as it is
	}
	if err != nil || len(paths) == 0 {
		t.Fatalf("no test files in %s: %v", folder, err)
	}
	return paths
}

// lookup makes an environment of NAME=value lines.
func lookup(lines string) func(string) (string, bool) {
	vars := map[string]string{}
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		vars[name] = value
	}
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// unpack writes an archive to a folder and loads it: mcp.json, overlay.json
// where there is one, and the variables of the section env.
func unpack(t *testing.T, a *txtar.Archive) (dir string, opts config.Options) {
	t.Helper()
	dir = t.TempDir()
	opts = clients.Options(config.Options{Path: filepath.Join(dir, "mcp.json"), Getenv: lookup("")})
	for _, f := range a.Files {
		switch f.Name {
		case "want":
			continue
		case "env":
			opts.Getenv = lookup(string(f.Data))
			continue
		case "overlay.json":
			opts.Overlay = filepath.Join(dir, f.Name)
		}
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, opts
}

// compare holds got against the want section of a test file, or writes it.
func compare(t *testing.T, path string, a *txtar.Archive, got string) {
	t.Helper()
	last := &a.Files[len(a.Files)-1]
	if last.Name != "want" {
		t.Fatalf("%s: the last section is %s, not want", path, last.Name)
	}
	if *update {
		last.Data = []byte(got)
		if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(last.Data), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// What is wrong is reported at its place, whatever client wrote the file, and never with a secret.
func TestBadFiles(t *testing.T) {
	for _, path := range archives(t, "bad") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir, opts := unpack(t, a)
			cfg, err := config.Load(opts)
			var faults *config.Faults
			if !errors.As(err, &faults) || len(faults.List) == 0 {
				t.Fatalf("Load = %v, want faults", err)
			}
			if cfg != nil {
				t.Error("a Config came with the faults")
			}
			text := strings.ReplaceAll(err.Error(), ": unable to ", ": cannot ") // json/v2 says either, by its build
			compare(t, path, a, strings.ReplaceAll(text, dir+"/", "")+"\n")
			if strings.Contains(text, "s3cret") {
				t.Error("the message has the secret")
			}
		})
	}
}

func TestGoodFiles(t *testing.T) {
	for _, path := range archives(t, "good") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir, opts := unpack(t, a)
			given := opts.Getenv
			opts.Getenv = func(name string) (string, bool) {
				if name == "XDG_CONFIG_HOME" {
					return filepath.Join(dir, ".config"), true
				}
				return given(name)
			}
			cfg, err := config.Load(opts)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, path, a, strings.ReplaceAll(describe(t, cfg), dir+"/", "$DIR/"))
		})
	}
}

// describe prints a Config: its warnings as people see them, the rest as JSON.
func describe(t *testing.T, cfg *config.Config) string {
	t.Helper()
	var b strings.Builder
	for _, w := range cfg.Warnings {
		b.WriteString(w.String() + "\n")
	}
	plain := *cfg
	plain.Warnings, plain.SHA256 = nil, ""
	data, err := json.MarshalIndent(plain, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return b.String() + string(data) + "\n"
}

// inMemory makes options that read files from a map, by path.
func inMemory(files map[string]string) config.Options {
	return clients.Options(config.Options{
		Path:   "/etc/toolgate/mcp.json",
		Getenv: lookup(""),
		ReadFile: func(path string) ([]byte, error) {
			data, ok := files[path]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(data), nil
		},
	})
}

// only makes options for an mcp.json that is all there is.
func only(mcp string) config.Options {
	return inMemory(map[string]string{"/etc/toolgate/mcp.json": mcp})
}

func load(t *testing.T, opts config.Options) *config.Config {
	t.Helper()
	cfg, err := config.Load(opts)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
