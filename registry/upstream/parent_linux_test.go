package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// parentVar makes the test binary a proxy that is going to be killed; its
// value is the server to run.
const parentVar = "UPSTREAM_TEST_PARENT"

// beParent runs the server until it is killed.
func beParent() {
	var cfg config.Server
	if err := json.Unmarshal([]byte(os.Getenv(parentVar)), &cfg); err != nil {
		panic(err)
	}
	s := upstream.Start(cfg, upstream.Options{})
	for s.Status().State == upstream.StateStarting {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(s.Status().State)
	select {}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	for _, dead := range []string{"State:\tZ", "State:\tX"} {
		if strings.Contains(string(stat), dead) {
			return false
		}
	}
	return true
}

// Nothing of an upstream stays behind when the proxy is killed with SIGKILL,
// not even what ignores TERM or left its process group.
func TestProxyKilled(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  recorder.Config
	}{
		{"orderly server", recorder.Config{}},
		{"ignores TERM", recorder.Config{IgnoreTERM: true}},
		{"leaves a grandchild", recorder.Config{Grandchild: true}},
		{"ignores TERM and leaves a grandchild", recorder.Config{IgnoreTERM: true, Grandchild: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rec := recorder.Stdio(t, tc.cfg)
			data, _ := json.Marshal(stdioServer(rec))
			self, _ := os.Executable()
			parent := exec.Command(self)
			parent.Env = append(os.Environ(), parentVar+"="+string(data))
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			line := make([]byte, 16)
			n, _ := out.Read(line)
			if got := string(line[:n]); got != "ready\n" {
				t.Errorf("server is %q", got)
			}
			pids := append(rec.Starts(), rec.Grandchildren()...)
			for _, pid := range pids {
				if !alive(pid) {
					t.Errorf("process %d does not run before the kill: the test proves nothing", pid)
				}
			}
			parent.Process.Kill()
			parent.Wait()
			for _, pid := range pids {
				await(t, fmt.Sprint("end of ", pid), func() bool { return !alive(pid) })
			}
		})
	}
}

// Close leaves nothing behind either.
func TestCloseEndsProcesses(t *testing.T) {
	rec := recorder.Stdio(t, recorder.Config{Grandchild: true, IgnoreTERM: true})
	r := start(t, stdioServer(rec), upstream.Options{})
	r.ready()
	pids := append(rec.Starts(), rec.Grandchildren()...)
	if len(pids) != 2 {
		t.Fatalf("%d processes, want 2", len(pids))
	}
	r.Close(context.Background())
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}
