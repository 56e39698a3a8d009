package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// faultyConfig is what a toolgate serves to which faults are done: its own tools, and
// those of another machine. The policy allows everything.
const faultyConfig = `{"mcpServers": {"standard": {"command": "/usr/bin/toolgate", "args": ["tools", "--dir", "/var/lib/toolgate-servers/tools"]}, "elsewhere": {"type": "http", "url": "http://%s/mcp"}},
	"toolgate": {"listen": %q, "admin": %q, "policy": {"path": "/etc/toolgate/policy", "timeout": "10s"}, "limits": {"default": "off"},
		"identity": {"tokens": [{"subject": "agent", "roles": ["researcher"], "sha256": "1e85597643745a860ddf8fa29ac9c6287331cb3e69435d56060df71a13709316"}]}}}`

const freePolicy = `package toolgate

allow contains {"rule": "free", "reason": "a test"} if true
`

// elsewhere is the other machine: a toolgate with the standard tools.
func elsewhere(t *testing.T, address string) *program.Process {
	t.Helper()
	dir, admin := t.TempDir(), program.FreeAddress(t)
	writeFile(t, filepath.Join(dir, "mcp.json"), fmt.Appendf(nil, `{"mcpServers": {"far": {"command": "toolgate", "args": ["tools", "--dir", "files"]}},
		"toolgate": {"listen": %q, "admin": %q, "state": "state", "keys": "keys", "servers": {"far": {"prefix": ""}}}}`, address, admin), 0o600)
	cmd := exec.Command(static(t), "serve", "--role", "researcher")
	cmd.Dir = dir
	p := program.Launch(t, cmd)
	p.Await(t, "the other machine serves", func() bool { return program.Listens(address) })
	return p
}

// traffic is a caller that calls all the time.
type traffic struct {
	mu   sync.Mutex // protects the field below
	seen map[string]int
}

// call makes calls until the test ends, one after the other.
func call(t *testing.T, agents string) *traffic {
	c := &traffic{seen: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			got := job(ctx, agents, "standard__search_internet")
			c.mu.Lock()
			c.seen[got]++
			c.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return c
}

// gets waits until calls that begin from now on get an answer.
func (c *traffic) gets(t testing.TB, answer string) {
	t.Helper()
	c.mu.Lock()
	clear(c.seen)
	c.mu.Unlock()
	program.Await(t, "calls get "+answer, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.seen[answer] > 1 // the first may have begun before
	})
}

// made is the answer to a call that was made.
const made = "200"

// job makes one call and returns its status, or else the code of its refusal.
func job(ctx context.Context, agents, tool string) string {
	ctx, stop := context.WithTimeout(ctx, program.Timeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+agents+"/v1/jobs", strings.NewReader(fmt.Sprintf(`{"tool": %q, "args": {"query": "policy"}}`, tool)))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer demo-researcher")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	var problem struct{ Code string }
	_ = json.NewDecoder(res.Body).Decode(&problem) // a result has no code
	if problem.Code != "" {
		return problem.Code
	}
	return fmt.Sprint(res.StatusCode)
}

// deployment is a toolgate as it is installed, and what can be done to it.
type deployment struct {
	agents, admin, far string
	kill               func()               // as a crash; what runs it starts it again
	stop               func()               // for good
	configure          func(text string)    // and have it read again
	run                func(command string) // in a shell that sees the state, in $STATE
}

// suffer does to a deployment what goes wrong in operation while calls go on. toolgate
// fails as docs/run.md says and recovers, and the alerts name the runbook.
func (d *deployment) suffer(t *testing.T) {
	parts.Need(t, "prometheus")
	outer, server := t, elsewhere(t, d.far)
	verify := func() { d.run("toolgate audit verify --state $STATE --keys $STATE-keys") }
	calls := call(t, d.agents)
	calls.gets(t, made)
	p := watch(t, d.admin)
	p.calm(t)
	t.Run("killed", func(t *testing.T) {
		d.kill()
		calls.gets(t, made)
		p.calm(t)
		verify()
	})
	t.Run("disk full", func(t *testing.T) {
		d.run("fallocate -l $(($(df --output=avail -k $STATE | tail -n 1) - 1024))K $STATE/ballast") // the reserve is 3.2 MiB
		calls.gets(t, "AUDIT_UNAVAILABLE")
		p.fires(t, "ToolgateNotReady", "ToolgateDiskReserveNear")
		d.run("rm $STATE/ballast")
		calls.gets(t, made)
		p.calm(t)
		verify()
	})
	t.Run("server dead", func(t *testing.T) {
		server.Kill(t)
		program.Await(t, "calls of it are refused", func() bool {
			return job(t.Context(), d.agents, "elsewhere__search_internet") == "UPSTREAM_UNAVAILABLE"
		})
		p.fires(t, "ToolgateUpstreamDown")
		calls.gets(t, made)
		elsewhere(outer, d.far)
		program.Await(t, "calls of it are made", func() bool { return job(t.Context(), d.agents, "elsewhere__search_internet") == made })
		p.calm(t)
	})
	t.Run("bad configuration", func(t *testing.T) {
		d.configure("{")
		p.fires(t, "ToolgateReloadFailed")
		calls.gets(t, made)
		d.configure(d.config())
		p.calm(t)
	})
	t.Run("stopped", func(t *testing.T) {
		d.stop()
		p.fires(t, "ToolgateDown")
		verify()
	})
}

// config is the configuration of d.
func (d *deployment) config() string { return fmt.Sprintf(faultyConfig, d.far, d.agents, d.admin) }

// TestFaultsOfUnit: see suffer, with the unit under systemd.
func TestFaultsOfUnit(t *testing.T) {
	t.Parallel()
	parts.Long(t, "deploys toolgate")
	root, agents, admin := installUnit(t)
	d := &deployment{agents: agents, admin: admin, far: program.FreeAddress(t)}
	writeFile(t, filepath.Join(root, "etc/toolgate/mcp.json"), []byte(d.config()), 0o644)
	writeFile(t, filepath.Join(root, "etc/toolgate/policy/p.rego"), []byte(freePolicy), 0o644)
	h := boot(t, root)
	d.run = func(command string) { h.run(t, "env", "STATE=/var/lib/toolgate", "sh", "-c", command) }
	d.kill = func() { h.run(t, "kill", "-KILL", h.property(t, "MainPID")) }
	d.stop = func() { h.run(t, "systemctl", "stop", "toolgate") }
	d.configure = func(text string) {
		h.run(t, "sh", "-c", `printf %s "$0" >/etc/toolgate/mcp.json && systemctl reload toolgate`, text)
	}
	h.run(t, "systemd-sysusers")
	d.run("mkdir $STATE && mount -t tmpfs -o size=64m,mode=0700 tmpfs $STATE && chown toolgate:toolgate $STATE")
	h.run(t, "systemctl", "start", "toolgate")
	d.suffer(t)
}

// sufferInContainer: see suffer, with what start starts from an image. Its state is on a
// small disk.
func sufferInContainer(t *testing.T, start func(dir string) *program.Process) {
	dir, state := t.TempDir(), ""
	d := &deployment{agents: program.FreeAddress(t), admin: program.FreeAddress(t), far: program.FreeAddress(t)}
	state = filepath.Join(dir, "toolgate")
	d.configure = func(text string) { writeFile(t, filepath.Join(dir, "config/mcp.json"), []byte(text), 0o644) }
	d.run = func(command string) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = append(os.Environ(), "STATE="+state, "PATH="+os.Getenv("PATH")+":"+filepath.Join(dir, "bin"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	install(t, dir, "bin/toolgate", static(t), 0o755)
	d.configure(d.config())
	writeFile(t, filepath.Join(dir, "config/policy/p.rego"), []byte(freePolicy), 0o644)
	d.run("mkdir $STATE && chmod 755 $STATE/.. && mount -t tmpfs -o size=64m tmpfs $STATE")
	t.Cleanup(func() { d.run("umount --lazy $STATE") })
	p := start(dir)
	d.stop = func() {
		d.signal(p, "TERM")
		p.Wait(t)
	}
	d.kill = func() {
		d.signal(p, "KILL")
		p.Wait(t)
		p = start(dir)
	}
	d.suffer(t)
}

// signal sends a signal to the first process in a container.
func (d *deployment) signal(p *program.Process, name string) {
	d.run("kill -" + name + " " + firstInside(p))
}
