package loginitem_test

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/loginitem"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// odd has in each part what the syntax of a system could mistake.
var odd = loginitem.Item{
	Name: "work", Command: []string{"/opt/a b/toolgate", "serve", "--config", `/home/ann/100% "$HOME" \x <&>.json`}, Dir: "/home/ann/a b", Path: "/usr/bin:/opt/$x/50%",
}

// TestText holds that the file of each system keeps odd words.
func TestText(t *testing.T) {
	for goos, want := range map[string][]string{
		"linux": {
			`ExecStart="/opt/a b/toolgate" "serve" "--config" "/home/ann/100%% \"$$HOME\" \\x <&>.json"` + "\n",
			"WorkingDirectory=/home/ann/a b\n", `Environment="PATH=/usr/bin:/opt/$x/50%%"` + "\n",
		},
		"darwin":  {"<string>/home/ann/100% &#34;$HOME&#34; \\x &lt;&amp;&gt;.json</string>", "<string>/usr/bin:/opt/$x/50%</string>", "<string>dev.toolgate.work</string>"},
		"windows": {"<Command>/opt/a b/toolgate</Command>", `&#34;/home/ann/100% \&#34;$HOME\&#34; \x &lt;&amp;&gt;.json&#34;</Arguments>`, "<WorkingDirectory>/home/ann/a b<"},
	} {
		m, err := loginitem.New(goos, "/home/ann", "")
		if err != nil {
			t.Fatal(err)
		}
		text, err := m.Text(odd)
		for _, part := range want {
			if err != nil || !strings.Contains(text, part) {
				t.Errorf("%s: %v, no %q in\n%s", goos, err, part, text)
			}
		}
		if goos != "linux" {
			wellFormed(t, text)
		}
		line := odd
		line.Dir = "/home/ann\nExecStart=/bin/sh"
		if _, err := m.Text(line); err == nil {
			t.Errorf("%s: a line break was accepted", goos)
		}
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

// TestEnvFile holds which systems read a file of variables.
func TestEnvFile(t *testing.T) {
	for goos, want := range map[string]string{"linux": "EnvironmentFile=/home/ann/50%%.env\n", "darwin": "<string>/home/ann/50%.env</string>", "windows": ""} {
		m, err := loginitem.New(goos, "/home/ann", "")
		if err != nil {
			t.Fatal(err)
		}
		i := odd
		i.EnvFile = "/home/ann/50%.env"
		text, err := m.Text(i)
		if (err == nil) != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%s: %v, %s", goos, err, text)
		}
	}
}

// TestPlaces holds where the file of an item is.
func TestPlaces(t *testing.T) {
	for _, tt := range []struct{ goos, configHome, want string }{
		{"linux", "", "/home/ann/.config/systemd/user/work.service"},
		{"linux", "/cfg", "/cfg/systemd/user/work.service"},
		{"darwin", "/cfg", "/home/ann/Library/LaunchAgents/dev.toolgate.work.plist"},
		{"windows", "", "/home/ann/AppData/Local/toolgate/work.xml"},
	} {
		m, err := loginitem.New(tt.goos, "/home/ann", tt.configHome)
		if err != nil {
			t.Fatal(err)
		}
		if file, err := m.File("work"); err != nil || filepath.ToSlash(file) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.goos, file, err, tt.want)
		}
	}
	if _, err := loginitem.New("plan9", "/home/ann", ""); err == nil {
		t.Error("plan9 has no manager")
	}
	m, err := loginitem.New("linux", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if file, err := m.File("work"); err == nil {
		t.Errorf("without a home directory the file is %s", file)
	}
}

// TestForeignFile holds that a file of somebody else is neither overwritten nor removed, and that a
// system that refuses leaves nothing behind.
func TestForeignFile(t *testing.T) {
	home := t.TempDir()
	m, err := loginitem.New("linux", home, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // no systemctl: the system refuses everything
	file, err := m.File("work")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Install(t.Context(), odd); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("without systemctl: %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of an item that is not installed: %v", err)
	}
	if err := m.Uninstall(t.Context(), "work"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("uninstalling nothing: %v", err)
	}
	mine := []byte("[Service]\nExecStart=/bin/true\n")
	if err := os.WriteFile(file, mine, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(t.Context(), odd); !errors.Is(err, loginitem.ErrForeign) {
		t.Errorf("installing over a file of somebody else: %v", err)
	}
	if err := m.Uninstall(t.Context(), "work"); !errors.Is(err, loginitem.ErrForeign) {
		t.Errorf("uninstalling a file of somebody else: %v", err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(mine) {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// TestUnitVerifies holds that systemd accepts the unit, without a remark.
func TestUnitVerifies(t *testing.T) {
	analyze := parts.Need(t, "systemd-analyze")
	m, err := loginitem.New("linux", t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	i := odd
	i.Command = append([]string{"/bin/sleep"}, odd.Command[1:]...)
	text, err := m.Text(i)
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "work.service")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := exec.Command(analyze, "verify", "--man=no", "--user", unit)
	verify.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
	if out, err := verify.CombinedOutput(); err != nil || strings.Contains(string(out), "work.service") {
		t.Errorf("%v\n%s\n%s", err, out, text)
	}
}
