package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// builder is buildah with a storage of its own.
type builder []string

func (b builder) run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(b[0], append(b[1:len(b):len(b)], args...)...).Output()
	if err != nil {
		t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// imageConfig is what an image says about the program to start (OCI image-spec,
// config.md).
type imageConfig struct {
	User, WorkingDir string
	Entrypoint, Cmd  []string
	Volumes          map[string]struct{}
}

// buildImage makes the image, and returns its root file system and what it says.
func buildImage(t *testing.T) (root string, c imageConfig) {
	t.Helper()
	parts.Need(t, "setpriv")
	if os.Getuid() != 0 {
		t.Skip("an image is built by root")
	}
	dir := t.TempDir()
	buildah := builder{parts.Need(t, "buildah"), "--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	cmd := exec.Command("make", "-s", "-f", ".ci/Makefile", "image", "CONTEXT="+filepath.Join(dir, "context"), "BUILDER="+strings.Join(buildah, " "))
	cmd.Dir = corpus.Checkout(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make -f .ci/Makefile image: %v\n%s", err, out)
	}
	var image struct{ OCIv1 struct{ Config imageConfig } }
	if err := json.Unmarshal([]byte(buildah.run(t, "inspect", "--type", "image", "toolgate")), &image); err != nil {
		t.Fatal(err)
	}
	container := buildah.run(t, "from", "toolgate")
	return buildah.run(t, "mount", container), image.OCIv1.Config
}

// The image has toolgate and nothing else that runs, and serves from a root file system
// that cannot be written.
func TestImage(t *testing.T) {
	t.Parallel()
	parts.Long(t, "deploys toolgate")
	root, image := buildImage(t)
	t.Run("it has one program and no root", func(t *testing.T) {
		out, err := exec.Command("find", root, "-type", "f", "-perm", "/111", "-printf", "/%P\n").Output()
		if err != nil || string(out) != "/usr/bin/toolgate\n" {
			t.Errorf("programs: %q, %v", out, err)
		}
		if image.User != "65532:65532" || len(image.Volumes) != 3 {
			t.Errorf("it runs as %q with the volumes %v", image.User, image.Volumes)
		}
	})
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "config/mcp.json"), fmt.Appendf(nil, config, agents, admin, "auto"), 0o644)
	contain := containers(t, root, image)
	contain(dir)
	serves(t, agents, admin)
	if _, err := os.Stat(filepath.Join(dir, "toolgate/state.db")); err != nil {
		t.Errorf("the state is not in its volume: %v", err)
	}
	t.Run("it survives faults", func(t *testing.T) { sufferInContainer(t, contain) })
}

// containers returns a function that starts a container of an image with its volumes and
// mcp.json in a directory.
func containers(t *testing.T, root string, image imageConfig) func(dir string) *program.Process {
	t.Helper()
	script, err := filepath.Abs("testdata/contain.sh")
	if err != nil {
		t.Fatal(err)
	}
	user, _, _ := strings.Cut(image.User, ":")
	namespaces := []string{"--mount", "--pid", "--fork", "--kill-child"}
	requireNamespaces(t, namespaces)
	return func(dir string) *program.Process {
		args := slices.Concat(namespaces, []string{"sh", script, root, dir, user}, image.Entrypoint, image.Cmd)
		p := program.Launch(t, exec.Command("unshare", args...))
		t.Cleanup(func() { _ = exec.Command("kill", "-TERM", firstInside(p)).Run() }) // unshare ignores TERM
		return p
	}
}
