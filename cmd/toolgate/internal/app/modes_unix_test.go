//go:build unix

package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// plainUser gives what root owns to another user: root's files have a rule of their own.
func plainUser(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
}

// What every user of the machine can change refuses the start, the check and the reload;
// what others can change or read is warned of. The configuration may be read where it
// holds no secret.
func TestFileModes(t *testing.T) {
	const (
		secret = `"identity": {"tokens": [{"subject": "a", "roles": ["r"], "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}]}`
		silent = `"errors": "gateway"`
	)
	for _, tc := range []struct {
		settings, path string
		mode           fs.FileMode
		want           string // "" = nothing
	}{
		{secret, "real.json", 0o600, ""},
		{secret, "real.json", 0o644, "can be read by others"},
		{secret, "real.json", 0o640, "can be read by others"},
		{secret, "real.json", 0o660, "can be changed by its group"},
		{secret, "real.json", 0o606, "every user of this machine"},
		{silent, "real.json", 0o644, ""},
		{silent, "real.json", 0o664, "can be changed by its group"},
		{silent, "real.json", 0o666, "every user of this machine"},
		{silent, "state", 0o700, ""},
		{silent, "state", 0o755, "the state directory"},
		{silent, "state", 0o711, "the state directory"},
		{silent, "state", 0o777, "every user of this machine"},
		{silent, "state", 0o1777, "every user of this machine"},
		{silent, "keys", 0o700, ""},
		{silent, "keys", 0o750, "the key directory"},
		{silent, "keys", 0o773, "every user of this machine"},
		{silent, "keys/tickets-1.key", 0o644, "the key "},
		{silent, "keys/tickets-1.key", 0o666, "every user of this machine"},
		{silent, "tls.key", 0o600, ""},
		{silent, "tls.key", 0o644, "the key "},
		{silent, "tls.key", 0o602, "every user of this machine"},
	} {
		t.Run(strings.Trim(tc.path+" "+tc.mode.String()+" "+tc.want, " "), func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "real.json"), `{"mcpServers": {}, "toolgate": {"state": "state", "keys": "keys", "tls": {"cert": "tls.crt", "key": "tls.key"}, `+tc.settings+`}}`)
			write(t, filepath.Join(dir, "keys", "tickets-1.key"), strings.Repeat("k", 32))
			write(t, filepath.Join(dir, "tls.key"), "")
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), os.Symlink("real.json", filepath.Join(dir, "mcp.json"))); err != nil {
				t.Fatal(err)
			}
			plainUser(t, filepath.Join(dir, tc.path))
			mode := tc.mode.Perm()
			if tc.mode&0o1000 != 0 {
				mode |= fs.ModeSticky
			}
			if err := os.Chmod(filepath.Join(dir, tc.path), mode); err != nil {
				t.Fatal(err)
			}
			cfg, err := read(dir)()
			if err != nil {
				t.Fatal(err)
			}
			found, refused := fileModes(cfg)
			got := ""
			for _, f := range found {
				got += f.Message
			}
			if refused != nil {
				got = refused.Error()
			}
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) || len(found) > 1 {
				t.Errorf("%q, want %q", got, tc.want)
			}
			var bad *ConfigError
			a, err := Open(t.Context(), cfg, Options{Role: "observer"})
			if a != nil {
				defer a.Close()
			}
			if strings.HasPrefix(tc.want, "every") != errors.As(err, &bad) || bad != nil && !strings.Contains(err.Error(), "hint: chmod go-rwx ") {
				t.Errorf("Open = %v", err)
			}
		})
	}
}

// A configuration that everybody can change is not reloaded.
func TestOpenToAllIsNotReloaded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mcp.json")
	write(t, path, `{"mcpServers": {}}`)
	a, cfg := opened(t, dir)
	write(t, path, `{"mcpServers": {}, "toolgate": {"retry_after": "7s"}}`)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	a.reloads.reloadOnce(t.Context(), Reload{Begun: cfg, Next: read(dir)}, true)
	if a.Config().RetryAfter == 7e9 || !strings.Contains(a.reloads.failed, "every user of this machine") {
		t.Errorf("reloaded: %q", a.reloads.failed)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	a.reloads.reloadOnce(t.Context(), Reload{Begun: cfg, Next: read(dir)}, true)
	if a.Config().RetryAfter != 7e9 {
		t.Errorf("not reloaded: %q", a.reloads.failed)
	}
}

// The group may read what belongs to root, and change nothing.
func TestFilesOfRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a file of root's")
	}
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, "")
	for mode, want := range map[fs.FileMode]fs.FileMode{0o640: 0, 0o660: 0o020, 0o644: 0o004} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := shared(path); got != want {
			t.Errorf("mode %o: %o, want %o", mode, got, want)
		}
	}
}
