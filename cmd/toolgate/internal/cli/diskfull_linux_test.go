package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// smallDisk makes a directory on a file system of a size such as 1m. It takes root.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	parts.Long(t, "mounts a small file system")
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		parts.Missing(t, "mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file until the disk has no more room than is left.
func fill(t *testing.T, path string, left int64) {
	t.Helper()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		t.Fatal(err)
	}
	free := int64(disk.Bavail) * disk.Bsize
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), int(max(free-left, 0))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A full disk refuses calls: none is made without its record, and as soon as
// there is room again they are made as before. A call whose decision was the
// last thing to fit is made, and its result withheld.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk, dir, agents, admin := smallDisk(t, "1m"), t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	state := filepath.Join(disk, "state")
	write(t, dir, map[string]string{
		"policy/p.rego": allowAll, "up.json": `{"Tools": [{"Name": "say"}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}},
			"toolgate": {"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "off", "refused": "off"}, "servers": {"up": {"isolation": "shared"}}}}`,
	})
	p := start(t, dir, "serve", "--state", state, "--listen", agents, "--admin", admin)
	ready(t, admin)
	say := upSayer(t, "http://"+agents)
	if got := say(1000); got != "" {
		t.Fatalf("a call while there is room: %s", got)
	}

	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast, 64<<10)
	made, refused := 1, 0
	for refused < 20 && made < 500 {
		switch got := say(1000); got {
		case "":
			made++
		case "AUDIT_UNAVAILABLE":
			refused++
		default:
			t.Fatalf("a call on a full disk: %s", got)
		}
	}
	if refused == 0 {
		t.Fatal("the disk never filled")
	}
	withheld := received(t, dir) - made
	if withheld < 0 || withheld > refused/2 {
		t.Errorf("%d calls were answered, %d refused, %d received", made, refused, made+withheld)
	}

	fill(t, ballast+"-last", 0)
	logged := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Count(p.out.String(), "[ERROR]") + strings.Count(p.out.String(), "[WARN]")
	}
	before := logged()
	for range 300 {
		if got := say(1000); got != "AUDIT_UNAVAILABLE" {
			t.Errorf("a call without any room: %s", got)
		}
		refused++
	}
	if lines := logged(); lines == 0 || lines-before > 40 { // four kinds of ten lines
		t.Errorf("%d lines in the log for 300 calls on a full disk, after %d", lines-before, before)
	}
	if err := errors.Join(os.Remove(ballast), os.Remove(ballast+"-last")); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got := say(1000); got != "" {
			t.Errorf("a call when there is room again: %s", got)
		}
		made++
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	sent, recorded := received(t, dir), decisions(t, filepath.Join(state, "audit"))
	if sent != made+withheld || sent != recorded {
		t.Errorf("%d calls were answered, %d withheld, %d received, %d recorded", made, withheld, sent, recorded)
	}
	if code, out := toolgate(t, dir, "audit", "verify", "--state", state); code != command.ExitOK {
		t.Errorf("exit %d: %s", code, out)
	}
	t.Logf("%d calls made, %d refused, %d withheld", made, refused, withheld)
}

// Fault 8: below the reserve of the disk no call is made, /readyz says so, and calls are
// made again as soon as there is room.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	disk, dir, agents, admin := smallDisk(t, "20m"), t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	attackFiles(t, dir, "")
	p := start(t, dir, "serve", "--state", filepath.Join(disk, "state"), "--listen", agents, "--admin", admin)
	ready(t, admin)
	say := upSayer(t, "http://"+agents)
	if got := say(10); got != "" {
		t.Fatalf("a call while there is room: %s", got)
	}
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast, 900<<10) // 5 % are 1 MiB
	var got string
	for deadline := time.Now().Add(patience); got == "" && time.Now().Before(deadline); {
		got = say(10) // the free space is read every second
	}
	before := received(t, dir)
	if got != "AUDIT_UNAVAILABLE" || say(10) != got || received(t, dir) != before {
		t.Errorf("a call below the reserve: %q, and %d were received after %d", got, received(t, dir), before)
	}
	for range 100 {
		say(10)
	}
	p.mu.Lock()
	lines := strings.Count(p.out.String(), "writing the decision record")
	p.mu.Unlock()
	if lines != 10 {
		t.Errorf("%d lines in the log for 100 calls that were refused for one cause, want 10", lines)
	}
	var text string
	for deadline := time.Now().Add(patience); !strings.Contains(text, "new calls are refused") && time.Now().Before(deadline); {
		_, text, _ = visit("http://"+admin+"/readyz?verbose", "")
	}
	_, metrics, _ := visit("http://"+admin+"/metrics", "")
	if !strings.Contains(text, "1.0 MiB new calls are refused") || !strings.Contains(metrics, `toolgate_ready{part="disk"} 0`) || !strings.Contains(metrics, `toolgate_disk_bytes{kind="reserve"} 1.048576e+06`) {
		t.Errorf("/readyz?verbose says %s", text)
	}
	look := []string{"doctor", "--state", filepath.Join(disk, "state")}
	if code, out := toolgate(t, dir, look...); code != command.ExitUsage || !strings.Contains(out, "fault: toolgate.audit.reserve_mib: ") {
		t.Errorf("doctor below the reserve: exit %d\n%s", code, out)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if got := say(10); got != "" {
		t.Errorf("a call when there is room again: %s", got)
	}
	fill(t, ballast, 3<<19)
	if _, out := toolgate(t, dir, look...); !strings.Contains(out, "warning: toolgate.audit.reserve_mib: 1.5 MiB free") {
		t.Errorf("doctor below twice the reserve:\n%s", out)
	}
}

// received counts the calls that the upstream wrote down.
func received(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "record"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), `"method":"tools/call"`)
}

// decisions counts the decision records of a trail.
func decisions(t *testing.T, root string) (n int) {
	t.Helper()
	for line, err := range audit.Tail(t.Context(), root, audit.TailOptions{Records: 1 << 20}) {
		if err != nil {
			t.Fatal(err)
		}
		if r, err := audit.Parse(line); err != nil {
			t.Error(err)
		} else if r.Kind == audit.KindDecision {
			n++
		}
	}
	return n
}

// upSayer opens a session and gives a function that calls up__say with so many
// bytes and tells the code of a refusal.
func upSayer(t *testing.T, base string) func(size int) string {
	t.Helper()
	e := &command.Env{Addr: base}
	a, err := e.Agent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return func(size int) string {
		t.Helper()
		params := fmt.Appendf(nil, `{"name":"up__say","arguments":{"text":%q}}`, strings.Repeat("y", size))
		_, fault := a.Do(context.Background(), &mcpclient.Call{ID: a.NextID(), Method: "tools/call", Params: params})
		switch {
		case fault == nil:
			return ""
		case fault.RPC == nil:
			t.Fatal(fault)
		}
		var refused struct{ Data struct{ Code string } }
		decode(t, fault.RPC, &refused)
		return refused.Data.Code
	}
}

// A copy that the disk has no room for refuses the start, which changes nothing.
func TestAnUpgradeOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk, dir := smallDisk(t, "1m"), t.TempDir()
	write(t, dir, map[string]string{"mcp.json": "{}"})
	state := filepath.Join(disk, "state")
	earlierState(t, state, 2)
	before, err := os.ReadFile(filepath.Join(state, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast, 64<<10)
	code, out := toolgate(t, dir, "serve", "--state", state, "--listen", program.FreeAddress(t), "--admin", program.FreeAddress(t))
	if code == command.ExitOK || !strings.Contains(out, "hint: make room on the disk") || !strings.Contains(out, "before its upgrade") {
		t.Errorf("exit %d: %s", code, out)
	}
	if after, err := os.ReadFile(filepath.Join(state, "state.db")); err != nil || string(after) != string(before) {
		t.Errorf("the state was changed: %v", err)
	}
	if found, _ := filepath.Glob(filepath.Join(state, "state.db*")); len(found) != 1 {
		t.Errorf("left %v", found)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if code, out := toolgate(t, dir, "backup", "--state", state, filepath.Join(dir, "saved")); code != command.ExitOK || !strings.Contains(out, "the state was upgraded") {
		t.Errorf("with room: exit %d: %s", code, out)
	}
}
