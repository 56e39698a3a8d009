package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/internal/testkit/redis"
)

// confined puts a process into a control group (v1) of its own, with a share of one core.
func confined(t *testing.T, pid int, share float64) {
	t.Helper()
	group := fmt.Sprintf("/sys/fs/cgroup/cpu/toolgate-measure-%d", pid)
	if err := os.Mkdir(group, 0o700); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		err := os.WriteFile(filepath.Join(filepath.Dir(group), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
		if err = errors.Join(err, os.Remove(group)); err != nil {
			t.Error(err)
		}
	})
	for name, value := range map[string]int{"cpu.cfs_period_us": 20_000, "cpu.cfs_quota_us": int(20_000 * share), "cgroup.procs": pid} {
		if err := os.WriteFile(filepath.Join(group, name), []byte(strconv.Itoa(value)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// load is how calls are made: a number of clients for each replica, which is enough to keep
// it busy, each with a connection, for a time.
type load struct {
	clients int
	took    time.Duration
}

// on makes calls at replicas, and returns how many were answered in a second.
func (l load) on(t *testing.T, replicas []*serving) float64 {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), l.took)
	defer stop()
	call := drained{path: "/v1/rpc", body: `{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"up__say","arguments":{}}}`}
	var answered atomic.Int64
	var clients sync.WaitGroup
	for n := range l.clients * len(replicas) {
		r := replicas[n%len(replicas)]
		clients.Go(func() {
			for ctx.Err() == nil {
				_, text, err := call.send(ctx, "http://"+r.agents)
				switch {
				case strings.Contains(text, `"result"`):
					answered.Add(1)
				case ctx.Err() == nil:
					t.Errorf("%v, %s", err, text)
					return
				}
			}
		})
	}
	clients.Wait()
	return float64(answered.Load()) / l.took.Seconds()
}

// What three replicas with equal shares of a core do together, in times of what one does.
// It wants a quiet machine, so it runs only with TOOLGATE_MEASURE set, and prints the
// figures of docs/evidence/performance.md. TOOLGATE_SHARE is the share of each, 0.1 without it.
func TestThroughputOfReplicas(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("prints the figures of docs/evidence/performance.md (TOOLGATE_MEASURE=1)")
	}
	share, err := strconv.ParseFloat(cmp.Or(os.Getenv("TOOLGATE_SHARE"), "0.1"), 64)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 64
	valkey, database := redis.Start(t, ""), postgres.Database(t)
	up := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "say"}}})
	keys := filepath.Join(t.TempDir(), "keys")
	var replicas []*serving
	for range 3 {
		r := &serving{dir: t.TempDir(), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
		write(t, r.dir, map[string]string{
			"policy/p.rego": allowAll,
			"mcp.json": fmt.Sprintf(`{"mcpServers": {"up": {"type": "http", "url": %q}}, "toolgate": {"listen": %q, "admin": %q, "store": %q, "shared": %q, "keys": %q,
				"policy": {"path": "policy", "timeout": "10s"}, "limits": {"default": "1000000/1s"}}}`, up.URL, r.agents, r.admin, database, valkey.URL, keys),
		})
		r.start(t)
		confined(t, r.cmd.Process.Pid, share)
		replicas = append(replicas, r)
	}
	calls := load{clients: 8, took: 4 * time.Second}
	calls.on(t, replicas) // warm
	var times []float64
	for range 5 {
		one, three := calls.on(t, replicas[:1]), calls.on(t, replicas)
		times = append(times, three/one)
		t.Logf("one replica with %g of a core: %.0f calls/s; three: %.0f calls/s, %.2f times as many", share, one, three, three/one)
	}
	slices.Sort(times)
	if times[2] < 2.5 {
		t.Errorf("three replicas do %.2f times as much as one, in the median of %.2f", times[2], times)
	}
}
