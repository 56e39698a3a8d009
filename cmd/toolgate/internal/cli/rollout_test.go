package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// rollout is the clients of a fleet behind one balancer.
type rollout struct {
	*cluster
	made, lost atomic.Int64 // requests that got their answer, and others

	mu  sync.Mutex     // protects the field below
	got map[string]int // what the others got
}

// startBalancer starts a balancer with a documented configuration, whose addresses are exchanged
// for those of f, and returns what its clients use.
func (f *cluster) startBalancer(t *testing.T, documented, around string, command func(config string) *exec.Cmd) *rollout {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(t), "docs", "deploy", documented))
	if err != nil {
		t.Fatal(err)
	}
	var real []string
	for n, r := range f.replicas {
		_, port, _ := strings.Cut(r.admin, ":")
		real = append(real, fmt.Sprintf("10.0.0.1%d:8787 port 8788", n+1), r.agents+" port "+port, fmt.Sprintf("10.0.0.1%d:8787", n+1), r.agents)
	}
	file := filepath.Base(documented)
	_, address := program.LaunchAt(t, func(address string) *exec.Cmd {
		all := strings.NewReplacer(append(real, "listen 8080;", "listen "+address+";", "bind :8080", "bind "+address)...).Replace(string(text))
		write(t, f.dir, map[string]string{file: fmt.Sprintf(around, all)})
		return command(filepath.Join(f.dir, file))
	})
	through := *f
	through.url = "http://" + address + "/mcp"
	return &rollout{cluster: &through, got: map[string]int{}}
}

// startNginx starts nginx with docs/deploy/nginx/toolgate.conf.
func (f *cluster) startNginx(t *testing.T) *rollout {
	t.Helper()
	return f.startBalancer(t, "nginx/toolgate.conf", `daemon off; master_process off; pid rollout.pid; error_log stderr; events {}
		http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
		%s }`, func(config string) *exec.Cmd {
		return exec.Command("nginx", "-p", f.dir, "-c", config, "-e", "stderr")
	})
}

// startHAProxy starts HAProxy with docs/deploy/haproxy/haproxy.cfg.
func (f *cluster) startHAProxy(t *testing.T) *rollout {
	t.Helper()
	parts.Need(t, "haproxy")
	return f.startBalancer(t, "haproxy/haproxy.cfg", "%s", func(config string) *exec.Cmd {
		return exec.Command("haproxy", "-db", "-f", config)
	})
}

// note counts an answer.
func (r *rollout) note(answer string, err error) {
	if err == nil && strings.Contains(answer, `"result"`) {
		r.made.Add(1)
		return
	}
	r.lost.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[fmt.Sprint(answer, err)]++
}

// ended returns how many requests have ended.
func (r *rollout) ended() int64 { return r.made.Load() + r.lost.Load() }

// reach waits until n requests have ended, however long that takes, while some do.
func (r *rollout) reach(t *testing.T, name string, n int64) {
	t.Helper()
	for r.ended() < n {
		next := min(n, r.ended()+100)
		program.Await(t, "requests through "+name+" end", func() bool { return r.ended() >= next })
	}
}

// begin has clients make calls until ctx ends: with sessions, without one, and of the doors that do not
// speak MCP.
func (r *rollout) begin(t *testing.T, ctx context.Context, clients *sync.WaitGroup) {
	t.Helper()
	for range 2 {
		session := r.open(t, "")
		rpc := drained{path: "/v1/rpc", body: `{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"up__say","arguments":{}}}`}
		for _, call := range []func(n int) (string, error){
			func(n int) (string, error) {
				return wholeBody(r.request(context.WithoutCancel(ctx), http.MethodPost, "agent", sessionCall(n, "say"), inSession(session)))
			},
			func(n int) (string, error) { return r.attempt(context.WithoutCancel(ctx), "agent", "up__say", n, "") },
			func(int) (string, error) {
				_, answer := send(context.WithoutCancel(ctx), strings.TrimSuffix(r.url, "/mcp")+rpc.path, "agent", rpc.body)
				return answer, nil
			},
		} {
			clients.Go(func() {
				for n := 1; ctx.Err() == nil; n++ {
					r.note(call(n))
				}
			})
		}
	}
}

// Restarts of three replicas, one after the other, lose no request behind the balancers whose
// configuration docs/deploy has: 10,000 through each. The long form restarts each replica twice.
func TestRolloutLosesNoCall(t *testing.T) {
	t.Parallel()
	of := askingSite()
	of.settings += `, "shutdown": {"delay": "5s"}`
	of.files["up.json"] = `{"Tools": [{"Name": "say"}]}`
	f := startFleet(t, t.TempDir(), of)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	through := map[string]*rollout{"nginx": f.startNginx(t), "haproxy": f.startHAProxy(t)}
	for _, r := range through {
		r.begin(t, ctx, &clients)
	}
	const requests = 10_000
	restarts := len(f.replicas)
	if os.Getenv("TOOLGATE_SOAK") != "" {
		restarts *= 2
	}
	for n := range restarts {
		r := f.replicas[n%len(f.replicas)]
		for name, of := range through {
			of.reach(t, name, of.ended()+100)
		}
		r.signal(syscall.SIGTERM)
		r.process.ends(command.ExitOK)
		r.start(t)
	}
	for name, of := range through {
		of.reach(t, name, requests)
	}
	stop()
	clients.Wait()
	for name, of := range through {
		t.Logf("%s: %d answered, %d lost", name, of.made.Load(), of.lost.Load())
		for answer, n := range of.got {
			t.Errorf("%d requests through %s: %s", n, name, answer)
		}
	}
	f.ends(t)
}
