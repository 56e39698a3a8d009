package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// A toolgate that Go ends leaves its stacks in a file, which the next one names once, and
// doctor until it is deleted. One that ends well leaves none.
func TestCrash(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-argument"
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, drainFiles(`{"drain": "1s"}`))
	again := func() *process {
		p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
		ready(t, admin)
		return p
	}
	files := func(pattern string) []string {
		found, err := filepath.Glob(filepath.Join(dir, ".toolgate", "crash", pattern))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	p := again()
	call := start(t, dir, "tool", "call", "up__hang", "--args", `{"n":"`+secret+`"}`, "--addr", "http://"+agents)
	await(t, filepath.Join(dir, "record"), secret)
	p.signal(syscall.SIGABRT)
	p.ends(2)
	call.ends(command.ExitUnreachable)

	p = again()
	p.says(`\[ERROR\] toolgate: toolgate has crashed: its stacks are kept: file=.*/crash/crash-`)
	kept := files("crash-*")
	if len(kept) != 1 {
		t.Fatalf("kept %v", kept)
	}
	text, err := os.ReadFile(kept[0])
	info, failed := os.Stat(kept[0])
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if s := string(text); !strings.Contains(s, "SIGABRT") || !strings.Contains(s, "goroutine ") || !strings.Contains(s, "toolgate/cmd/toolgate") || strings.Contains(s, secret) {
		t.Errorf("the stacks: %s", s)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if code, out := toolgate(t, dir, "doctor"); !strings.Contains(out, "toolgate has crashed: its stacks are in "+kept[0]) {
		t.Errorf("exit %d: %s", code, out)
	}
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	if left := files("running-*"); len(left) > 0 {
		t.Errorf("a clean end leaves %v", left)
	}
	p = again()
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	if strings.Contains(p.out.String(), "crashed") {
		t.Errorf("the crash is reported twice:\n%s", p.out.String())
	}
}
