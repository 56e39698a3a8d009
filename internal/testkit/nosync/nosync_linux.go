// Package nosync runs a test in a process where no file can be made durable: fsync
// fails. So a test can see that code asks for durability, and does not say that it
// has it.
//
//	fail, ok := nosync.Process(t)
//	if !ok {
//		return // the test ran in a process of its own
//	}
//	d := open(t) // everything works until
//	fail()
package nosync

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

const variable = "TOOLGATE_TEST_NOSYNC"

// Process runs the test t, which must be no subtest, in a new process. There ok is
// true, and fail makes every fsync and fdatasync from then on fail with EIO. In the
// first process ok is false, and t has failed if it failed in the new one.
func Process(t *testing.T) (fail func(), ok bool) {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return func() { install(t) }, true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("without fsync: %v\n%s", err, out)
	case strings.Contains(string(out), unsupported):
		parts.Missing(t, unsupported)
	}
	return nil, false
}

const unsupported = "this machine has no seccomp filters"

// install filters the system calls of all threads (seccomp(2)).
func install(t *testing.T) {
	t.Helper()
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS} // the number of the call
	is := func(nr uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: skip, K: nr}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load, is(unix.SYS_FSYNC, 2), is(unix.SYS_FDATASYNC, 1), answer(unix.SECCOMP_RET_ALLOW),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		fmt.Print(unsupported)
		t.SkipNow()
	}
}
