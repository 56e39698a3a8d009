// Package release_test makes the release of the last commit as .goreleaser.yaml says,
// and looks at it. It has a module of its own, so that nothing of GoReleaser is in
// toolgate's. make -f .ci/Makefile release-check builds the programs that it needs.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
)

// checkout is a clone of the repository with the release of its last commit.
type checkout string

// release makes a release for linux/amd64 alone, which is a snapshot. The variables are
// for GoReleaser, in addition to those of the test.
func release(t *testing.T, variables ...string) checkout {
	t.Helper()
	c := checkout(filepath.Join(t.TempDir(), "toolgate"))
	run(t, ".", nil, "git", "clone", "--quiet", "../..", string(c))
	configuration := filepath.Join(t.TempDir(), "goreleaser.yaml")
	text := c.read(t, ".goreleaser.yaml")
	for all, one := range map[string]string{"goos: [linux, darwin, windows]": "goos: [linux]", "goarch: [amd64, arm64]": "goarch: [amd64]"} {
		if bytes.Count(text, []byte(all)) != 1 {
			t.Fatalf(".goreleaser.yaml does not say %s", all)
		}
		text = bytes.ReplaceAll(text, []byte(all), []byte(one))
	}
	if err := os.WriteFile(configuration, text, 0o600); err != nil {
		t.Fatal(err)
	}
	skip := "--skip=publish,sign"
	if slices.ContainsFunc(variables, func(v string) bool { return strings.HasPrefix(v, "SIGN_KEY=") }) {
		skip = "--skip=publish"
	}
	run(t, string(c), variables, "goreleaser", "release", "--config", configuration, "--snapshot", skip)
	return c
}

// run runs a command in a directory and returns its output.
func run(t *testing.T, dir string, variables []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// read returns a file.
func (c checkout) read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(string(c), name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// only returns the path in c of the only artifact of a type.
func (c checkout) only(t *testing.T, kind string) string {
	t.Helper()
	var all []struct{ Path, Type string }
	if err := json.Unmarshal(c.read(t, "dist/artifacts.json"), &all); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, a := range all {
		if a.Type == kind {
			found = append(found, a.Path)
		}
	}
	if len(found) != 1 {
		t.Fatalf("artifacts of type %s: %q, want one", kind, found)
	}
	return found[0]
}

// program returns the path of a program. Without it the test skips; with CI=true it fails.
func program(t *testing.T, name string) string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v: .ci/debian names its package", err)
	}
	return file
}

// signingKey makes a key of gpg and returns the variables that select it.
func signingKey(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	home := []string{"GNUPGHOME=" + dir}
	run(t, ".", home, program(t, "gpg"), "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "release@toolgate.example", "ed25519", "sign", "never")
	t.Cleanup(func() { run(t, ".", home, "gpgconf", "--kill", "all") })
	return append(home, "SIGN_KEY=release@toolgate.example")
}

// A release has the same bytes whoever builds it, in which directory and with which
// cache; is signed and described; and has what it needs.
func TestRelease(t *testing.T) {
	run(t, "../..", nil, "goreleaser", "check")
	signer := signingKey(t)
	c := release(t, signer...)
	t.Run("its bytes are reproducible", func(t *testing.T) {
		again := release(t, "GOCACHE="+t.TempDir(), "TZ=Pacific/Auckland")
		first, second := string(c.read(t, "dist/checksums.txt")), string(again.read(t, "dist/checksums.txt"))
		if first != second || strings.Count(first, "\n") != 3 { // archive, package, bill of materials
			t.Errorf("the checksums are\n%s\nand in the other directory\n%s", first, second)
		}
	})
	t.Run("its checksums are right and signed", func(t *testing.T) {
		dist := filepath.Join(string(c), "dist")
		run(t, dist, nil, "sha256sum", "--check", "--strict", "checksums.txt")
		run(t, dist, signer, "gpg", "--verify", "checksums.txt.asc", "checksums.txt")
	})
	t.Run("its bill of materials is that of the program", func(t *testing.T) { checkBill(t, c) })
	t.Run("its guardian is that of its architecture", func(t *testing.T) {
		binary := c.read(t, c.only(t, "Binary"))
		for arch, want := range map[string]bool{"amd64": true, "arm64": false} {
			if got := bytes.Contains(binary, c.read(t, "internal/sandbox/programs/guardian_"+arch)); got != want {
				t.Errorf("guardian of %s embedded: %v, want %v", arch, got, want)
			}
		}
	})
	t.Run("its archive", func(t *testing.T) { checkArchive(t, c) })
	t.Run("its package has nothing that lintian minds", func(t *testing.T) {
		out := run(t, string(c), nil, program(t, "lintian"), "--allow-root", "--fail-on", "error,warning", "--suppress-tags-from-file", "docs/deploy/debian/lintian", c.only(t, "Linux Package"))
		t.Log(out)
	})
	if keep := os.Getenv("TOOLGATE_RELEASE"); keep != "" {
		name := c.only(t, "Linux Package")
		if err := os.WriteFile(filepath.Join(keep, "toolgate.deb"), c.read(t, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// checkBill compares the bill of materials with what "go version -m" says.
func checkBill(t *testing.T, c checkout) {
	t.Helper()
	var bill cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(c.read(t, c.only(t, "SBOM"))), cyclonedx.BOMFileFormatJSON).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range append(*bill.Components, *bill.Metadata.Component) {
		got = append(got, m.Name+" "+m.Version)
	}
	info, err := buildinfo.ReadFile(filepath.Join(string(c), c.only(t, "Binary")))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Replace != nil {
			m = m.Replace
		}
		want = append(want, m.Path+" "+m.Version)
	}
	want = append(want, "std "+info.GoVersion)
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 20 || !slices.Equal(got, want) {
		t.Errorf("it lists\n%s\n\nand the program has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkArchive unpacks the archive: its files are root's, in one directory, and the
// program in it says which commit it is.
func checkArchive(t *testing.T, c checkout) {
	t.Helper()
	name := c.only(t, "Archive")
	unzipped, err := gzip.NewReader(bytes.NewReader(c.read(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	top := strings.TrimSuffix(path.Base(name), ".tar.gz")
	need := strings.Fields("toolgate LICENSE README.md CHANGELOG.md SECURITY.md mcp.json docs/run.md docs/deploy/README.md docs/deploy/systemd/toolgate.service " +
		"docs/deploy/debian/toolgate.1 completions/toolgate.bash completions/toolgate.zsh completions/toolgate.fish completions/toolgate.powershell")
	dir := t.TempDir()
	for files := tar.NewReader(unzipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		inside, ok := strings.CutPrefix(h.Name, top+"/")
		if !ok || h.Uname != "root" || h.Gname != "root" || h.Mode&0o022 != 0 {
			t.Errorf("%s is not in %s, or belongs to %s:%s with mode %o", h.Name, top, h.Uname, h.Gname, h.Mode)
		}
		need = slices.DeleteFunc(need, func(n string) bool { return n == inside })
		if inside == "toolgate" {
			text, err := io.ReadAll(files)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, inside), text, os.FileMode(h.Mode))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(need) > 0 {
		t.Fatalf("%s lacks %q", name, need)
	}
	commit := strings.TrimSpace(run(t, string(c), nil, "git", "describe", "--tags", "--always", "--dirty"))
	if out := run(t, dir, nil, "./toolgate", "version"); !strings.Contains(out, commit) {
		t.Errorf("it says %q, and not %s", out, commit)
	}
}
