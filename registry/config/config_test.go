package config_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tailscale/hujson"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/registry/config"
)

// inMemory makes options that read files from a map, by path.
func inMemory(files map[string]string) config.Options {
	return config.Options{
		Path:   "/etc/toolgate/mcp.json",
		Getenv: lookup(""),
		ReadFile: func(path string) ([]byte, error) {
			data, ok := files[path]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(data), nil
		},
	}
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

// refuse loads and gives the faults.
func refuse(t *testing.T, opts config.Options) []config.Fault {
	t.Helper()
	_, err := config.Load(opts)
	var faults *config.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("Load = %v, want faults", err)
	}
	return faults.List
}

// Beyond loopback a listener needs an identity, and TLS unless plain HTTP is accepted.
func TestCheckBind(t *testing.T) {
	nobody, somebody := config.Identity{}, config.Identity{Configured: true}
	check := func(addr string, id config.Identity, plain, want bool) {
		t.Helper()
		if err := config.CheckBind(addr, id, plain); (err == nil) != want {
			t.Errorf("CheckBind(%q, identity %v, plain %v) = %v", addr, id.Configured, plain, err)
		}
	}
	each := func(addr string, beyond, alone bool) {
		t.Helper()
		for _, plain := range []bool{false, true} {
			check(addr, nobody, plain, alone)
			check(addr, somebody, plain, beyond && (alone || !plain))
		}
	}
	for _, addr := range []string{"127.0.0.1:1", "127.8.9.1:1", "localhost:0", "LOCALHOST:1", "[::1]:65535", "[::ffff:127.0.0.1]:1"} {
		each(addr, true, true)
	}
	for _, addr := range []string{":1", "0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1%lo]:1", "localhost.example:1", "127.1:1", "[::ffff:10.0.0.1]:1"} {
		each(addr, true, false)
	}
	for _, addr := range []string{"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1", "::1:1", "a:b:c"} {
		each(addr, false, false)
	}
}

func TestFlagsOverride(t *testing.T) {
	const open = `{ "mcpServers": {}, "toolgate": { "listen": "0.0.0.0:1", "admin": "0.0.0.0:2", "state": "there" } }`
	opts := only(open)
	opts.Listen, opts.Admin, opts.State = "127.0.0.1:3", "127.0.0.1:4", "here"
	cfg := load(t, opts)
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"127.0.0.1:3", "127.0.0.1:4", filepath.Join(wd, "here")}
	if diff := cmp.Diff(want, []string{cfg.Listen, cfg.Admin, cfg.State}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What a flag says is checked like what a file says, and reported as the flag's.
func TestFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct{ listen, admin, file string }{
		"listen open":    {listen: "0.0.0.0:1", file: "--listen"},
		"admin open":     {admin: ":1", file: "--admin"},
		"admin no port":  {admin: "localhost", file: "--admin"},
		"same":           {listen: "127.0.0.1:1", admin: "127.0.0.1:1", file: "--admin"},
		"same, wildcard": {listen: "127.0.0.1:1", admin: "localhost:1", file: "--admin"},
		"default taken":  {listen: "127.0.0.1:8788", file: "/etc/toolgate/mcp.json"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := only(`{ "mcpServers": {} }`)
			opts.Listen, opts.Admin = c.listen, c.admin
			got := refuse(t, opts)
			if len(got) != 1 || got[0].File != c.file {
				t.Errorf("faults %v, want one of %s", got, c.file)
			}
		})
	}
	opts := only(`{ "mcpServers": {} }`)
	opts.Listen, opts.Admin = "127.0.0.1:0", "127.0.0.1:0"
	load(t, opts)
}

// Each file's relative paths are its own.
func TestRelativePaths(t *testing.T) {
	opts := inMemory(map[string]string{
		"/etc/toolgate/mcp.json":     `{ "mcpServers": { "a": { "command": "x", "cwd": "../w", "envFile": "e" } } }`,
		"/etc/toolgate/e":            "A=b",
		"/srv/overlays/overlay.json": `{ "policy": { "path": "bundle.tar.gz" } }`,
	})
	opts.Overlay = "/srv/overlays/overlay.json"
	cfg := load(t, opts)
	got := []string{cfg.Servers[0].Dir, cfg.Policy.Path, cfg.State}
	want := []string{"/etc/w", "/srv/overlays/bundle.tar.gz", "/etc/toolgate/.toolgate"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	files := []string{"/etc/toolgate/mcp.json", "/srv/overlays/overlay.json", "/etc/toolgate/e"}
	if diff := cmp.Diff(files, cfg.Files); diff != "" {
		t.Errorf("Files (-want +got):\n%s", diff)
	}
}

func TestPolicyFromTheWeb(t *testing.T) {
	cfg := load(t, only(`{ "mcpServers": {}, "toolgate": { "policy": { "path": "https://x.example/b.tar.gz" } } }`))
	if cfg.Policy.Path != "https://x.example/b.tar.gz" {
		t.Errorf("path %q", cfg.Policy.Path)
	}
	refuse(t, only(`{ "mcpServers": {}, "toolgate": { "policy": { "path": "https:///b.tar.gz" } } }`))
}

// The hash tells any change of any file, and nothing else.
func TestSHA256(t *testing.T) {
	of := func(mcp, env string) string {
		return load(t, inMemory(map[string]string{"/etc/toolgate/mcp.json": mcp, "/etc/toolgate/e": env})).SHA256
	}
	const mcp = `{ "mcpServers": { "a": { "command": "x", "envFile": "e" } } }`
	first := of(mcp, "A=b")
	if len(first) != 64 || first != of(mcp, "A=b") {
		t.Errorf("%q is not the same twice", first)
	}
	if first == of(mcp+" ", "A=b") || first == of(mcp, "A=c") {
		t.Error("a changed file has the same hash")
	}
}

func TestServerIdentity(t *testing.T) {
	base := func() config.Server {
		return config.Server{
			Name: "a", Type: config.TypeStdio, Command: "x", Args: []string{"a", "b"}, Env: map[string]string{"A": "b", "C": "d"},
			Dir: "/", Headers: map[string]string{"X": "y"}, Isolation: config.IsolationShared, MaxSessions: 5, Timeout: time.Second,
		}
	}
	same := map[string]func(*config.Server){
		"nothing":     func(*config.Server) {},
		"name":        func(s *config.Server) { s.Name = "b" },
		"prefix":      func(s *config.Server) { s.Prefix = "b" },
		"timeout":     func(s *config.Server) { s.Timeout = time.Hour },
		"max timeout": func(s *config.Server) { s.MaxTimeout = time.Hour },
		"expose":      func(s *config.Server) { s.Expose = []string{"x"} },
		"shape":       func(s *config.Server) { s.Errors, s.Results = "result", "off" },
	}
	other := map[string]func(*config.Server){
		"type":      func(s *config.Server) { s.Type = config.TypeNDJSON },
		"command":   func(s *config.Server) { s.Command = "y" },
		"args":      func(s *config.Server) { s.Args = []string{"ab"} },
		"env":       func(s *config.Server) { s.Env["A"] = "c" },
		"dir":       func(s *config.Server) { s.Dir = "/tmp" },
		"url":       func(s *config.Server) { s.URL = "http://x" },
		"headers":   func(s *config.Server) { s.Headers["X"] = "z" },
		"isolation": func(s *config.Server) { s.Isolation = config.IsolationSession },
		"sessions":  func(s *config.Server) { s.MaxSessions = 6 },
	}
	want := base().Identity()
	for name, change := range same {
		if s := base(); func() bool { change(&s); return s.Identity() != want }() {
			t.Errorf("%s: another identity", name)
		}
	}
	for name, change := range other {
		if s := base(); func() bool { change(&s); return s.Identity() == want }() {
			t.Errorf("%s: the same identity", name)
		}
	}
}

func TestDefaultPath(t *testing.T) {
	t.Chdir(t.TempDir())
	if got := refuse(t, config.Options{}); got[0].File != "mcp.json" {
		t.Errorf("faults %v, want one of mcp.json", got)
	}
}

// No value of a variable, and nothing that may be a secret where it stands, is
// in any text for people: neither in faults nor in warnings.
func TestNoSecretIsTold(t *testing.T) {
	const secret = "s3cret"
	tell := func(opts config.Options) string {
		cfg, err := config.Load(opts)
		if err != nil {
			return err.Error()
		}
		var b strings.Builder
		for _, w := range cfg.Warnings {
			b.WriteString(w.String())
		}
		return b.String()
	}
	for _, path := range append(archives(t, "bad"), archives(t, "good")...) {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, opts := unpack(t, a)
		if strings.Contains(tell(opts), secret) {
			t.Errorf("%s: the secret is told", path)
		}
	}
	for _, key := range stringKeys {
		opts := only(strings.ReplaceAll(key, "?", `"${SECRET}"`))
		opts.Getenv = lookup("SECRET=\x00 " + secret)
		if strings.Contains(tell(opts), secret) {
			t.Errorf("%s: the secret is told", key)
		}
	}
}

// stringKeys are all places where a string may stand.
var stringKeys = func() []string {
	entry := func(s string) string { return `{ "mcpServers": { "a": { ` + s + ` } } }` }
	ours := func(s string) string {
		return `{ "mcpServers": { "a": { "command": "x" } }, "toolgate": { ` + s + ` } }`
	}
	return []string{
		entry(`"command": ?`), entry(`"type": ?, "command": "x"`), entry(`"command": "x", "args": [?]`), entry(`"command": "x", "cwd": ?`),
		entry(`"command": "x", "env": { "A": ? }`), entry(`"command": "x", "envFile": ?`), entry(`"command": "x", "timeout": ?`),
		entry(`"url": ?`), entry(`"url": "http://x", "headers": { "A": ? }`), entry(`"command": "x", "disabled": ?`),
		ours(`"listen": ?`), ours(`"admin": ?`), ours(`"state": ?, "store": ?`), ours(`"tls": { "cert": ?, "key": ?, "client_ca": ? }, "allowed_hosts": [?], "allowed_origins": [?]`),
		ours(`"policy": { "path": ?, "data": { "a": [?, { "b": ? }] }, "keys": { "k": { "algorithm": ?, "key": ?, "scope": ? }, "l": { "path": ? } }, "signing": { "keyid": ?, "scope": ? }, "poll": { "min": ?, "max": ?, "long": ? }, "token": ?, "headers": { "A": ? } }`),
		ours(`"shared": ?`), ours(`"shared": { "url": ?, "when_down": ?, "ca": ? }`), ours(`"shared": "redis://localhost", "replica": { "listen": ?, "address": ?, "tls": { "cert": ?, "key": ?, "ca": ? } }`), ours(`"errors": ?`), ours(`"results": ?`),
		ours(`"artifacts": { "ttl": ? }`), ours(`"envelope": ?`), ours(`"shutdown": { "delay": ?, "drain": ? }, "pprof_role": ?`), ours(`"deterministic": ?`), ours(`"audit": { "durability": ? }`),
		ours(`"identity": { "tokens": [{ "subject": ?, "roles": [?], "sha256": ? }] }`),
		ours(`"identity": { "jwt": [{ "issuer": ?, "audience": [?], "jwks": ?, "roles_claim": ? }] }`),
		ours(`"limits": { "default": ?, "rules": [{ "tool": ?, "role": ?, "server": ?, "principal": ?, "rate": ? }] }`),
		ours(`"approvals": { "ttl": ?, "keep": ?, "hold": ?, "max_live": ?, "execute_on_approve": [?], "clients": ?, "notify": [{ "webhook": ?, "secret": ?, "format": ?, "roles": [?] }, { "email": [?], "smtp": ?, "from": ? }] }`),
		ours(`"console": { "url": ?, "session": ?, "environment": ?, "trace_url": ?, "oidc": { "issuer": ?, "client_id": ?, "client_secret": ?, "scopes": [?], "roles_claim": ? } }`),
		ours(`"servers": { "a": { "prefix": ?, "risk": ?, "isolation": ?, "timeout": ?, "expose": [?], "output_schema": ?, "case_variants": ?, "notice": ?, "methods": [?] } }`),
	}
}()

// Every place where a string may stand is expanded, so an unset variable is a
// fault there.
func TestEveryStringIsExpanded(t *testing.T) {
	for _, key := range stringKeys {
		want := strings.Count(key, "?")
		if strings.Contains(key, "max_live") || strings.Contains(key, "disabled") || strings.Contains(key, "deterministic") {
			want--
		}
		got := 0
		for _, f := range refuse(t, only(strings.ReplaceAll(key, "?", `"${NOT_SET}"`))) {
			if f.Message == "variable NOT_SET is not set" && f.Line == 1 && f.Path != "" {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d faults of the variable, want %d", key, got, want)
		}
	}
}

func TestExpansion(t *testing.T) {
	for text, want := range map[string]string{
		"plain":            "plain",
		"$A $ {A} $$":      "$A $ {A} $$",
		"${A}${env:A}":     "aa",
		"<${A:-b}>":        "<a>",
		"<${NONE:-b}>":     "<b>",
		"<${EMPTY:-b}>":    "<b>",
		"<${EMPTY}>":       "<>",
		"<${NONE:-}>":      "<>",
		"${env:NONE:-x:-}": "x:-",
		"${TWICE}":         "${A}",
		"$${A}":            "$a",
	} {
		opts := only(`{ "mcpServers": { "a": { "command": "x", "args": ["` + text + `"] } } }`)
		opts.Getenv = lookup("A=a\nEMPTY=\nTWICE=${A}")
		if got := load(t, opts).Servers[0].Args[0]; got != want {
			t.Errorf("%s = %q, want %q", text, got, want)
		}
	}
}

func TestByteOrderMark(t *testing.T) {
	load(t, only("\ufeff{ \"mcpServers\": {} }"))
	if got := refuse(t, only("\ufeff\n  x")); got[0].Line != 2 || got[0].Column != 3 {
		t.Errorf("fault %v, want it at 2:3", got)
	}
	if got := refuse(t, only("{\n \"a\xff\": 1 }")); got[0].Line != 2 || got[0].Column != 4 {
		t.Errorf("fault %v, want it at 2:4", got)
	}
}

func TestParseRate(t *testing.T) {
	got, err := config.ParseRate("60/1m")
	if want := (config.Rate{Count: 60, Per: time.Minute, Burst: 60}); err != nil || got != want {
		t.Errorf("ParseRate = %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "/", "60", "60/", "/1m", "0/1m", "060/1m", "-1/1m", "1e3/1m", "60/1", "60/-1m", "60/0s", "60/1m/1m", " 60/1m", "2147483648/1m"} {
		if got, err := config.ParseRate(bad); err == nil || got != (config.Rate{}) {
			t.Errorf("ParseRate(%q) = %v, %v, want an error alone", bad, got, err)
		}
	}
}

// Bytes are refused or accepted, never with a panic. What is accepted says the
// same when it is read again, as it stands and without its comments; what is
// refused says where.
func FuzzLoad(f *testing.F) {
	for _, folder := range []string{"good", "bad"} {
		paths, err := filepath.Glob("testdata/" + folder + "/*.txtar")
		if err != nil || len(paths) == 0 {
			f.Fatal("no seeds", err)
		}
		for _, path := range paths {
			a, err := txtar.ParseFile(path)
			if err != nil {
				f.Fatal(err)
			}
			var parts [2]string
			for _, file := range a.Files {
				if i := slices.Index([]string{"mcp.json", "overlay.json"}, file.Name); i >= 0 {
					parts[i] = string(file.Data)
				}
			}
			f.Add(parts[0], parts[1])
		}
	}
	f.Add(`{"mcpServers":{}, "toolgate": {"policy": {"data": {"a": [1.50, {"${A}": "${A}\u0000", /* b */ "": -0e1,}, null]}}}}`, `{"policy": {"data": {"b": true}}}`)
	f.Fuzz(func(t *testing.T, mcp, overlay string) {
		read := func(mcp, overlay string) (*config.Config, error) {
			opts := inMemory(map[string]string{"/etc/toolgate/mcp.json": mcp, "/etc/toolgate/o.json": overlay, "/etc/toolgate/a.env": mcp})
			if opts.Getenv = lookup("A=a"); overlay != "" {
				opts.Overlay = "/etc/toolgate/o.json"
			}
			cfg, err := config.Load(opts)
			if cfg != nil {
				if data := cfg.Policy.Data; data != nil && !json.Valid(data) {
					t.Errorf("policy.data is no JSON: %s", data)
				}
				cfg.SHA256, cfg.Warnings, cfg.Policy.Places = "", nil, nil
			}
			return cfg, err
		}
		cfg, err := read(mcp, overlay)
		if (cfg == nil) == (err == nil) {
			t.Fatalf("Load = %v, %v", cfg, err)
		}
		var faults *config.Faults
		if err != nil && (!errors.As(err, &faults) || len(faults.List) == 0 || !slices.IsSortedFunc(faults.List, sameFileInOrder)) {
			t.Fatalf("faults %v", err)
		}
		if err != nil || strings.Contains(mcp, "envFile") {
			return
		}
		if again, err := read(mcp, overlay); err != nil || cmp.Diff(cfg, again) != "" {
			t.Errorf("read again: %v\n%s", err, cmp.Diff(cfg, again))
		}
		if again, err := read(minimize(t, mcp), minimize(t, overlay)); err != nil || cmp.Diff(cfg, again) != "" {
			t.Errorf("without comments: %v\n%s", err, cmp.Diff(cfg, again))
		}
	})
}

func sameFileInOrder(a, b config.Fault) int {
	if a.File != b.File {
		return 0
	}
	return a.Line - b.Line
}

func minimize(t *testing.T, s string) string {
	s = strings.TrimPrefix(s, "\ufeff")
	if s == "" {
		return s
	}
	data, err := hujson.Minimize([]byte(s))
	if err != nil {
		t.Fatalf("accepted, but no JSON: %v", err)
	}
	return string(data)
}
