package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

//go:embed policy.rego
var benchPolicy string

// A site describes an upstream and the toolgate before it. Lanes with equal sites
// share the processes. The zero value has three tools, a policy for 100 roles, no
// history, and durability os.
type site struct {
	tools    int  // of the upstream, the three that are called included
	agents   int  // with tokens and roles of their own, in addition to the first
	tickets  int  // that have ended
	pages    int  // of the console that show calls as they come
	sync     bool // durability sync
	isolated bool // isolation session, the default; otherwise shared
	stdio    bool // upstream and clients on stdin and stdout
	issued   bool // the agent has a token of an issuer
	header   bool // the upstream is shown a token as a header of the configuration
	personal bool // it is shown the agent's own token, which a credential program has written
}

// A via is what a lane's clients talk to.
type via string

// The peers of a site.
const (
	direct    via = "direct"          // the upstream itself
	reverse   via = "reverse proxy"   // before the upstream
	buffering via = "buffering proxy" // the same, which reads the body of a request first
	gate      via = "toolgate"        // before the upstream
)

// token returns the bearer token of an agent; agent 0 makes most calls.
func token(agent int) string { return "bench-agent-" + strconv.Itoa(agent) }

// agentCount is the number of tokens that a site needs.
func (s site) agentCount() int { return 1 + s.agents }

// configuration returns mcp.json for a toolgate in dir; issuer is "" without one.
func (s site) configuration(self, upstream, issuer, dir string) any {
	server := map[string]any{"type": "http", "url": "http://" + upstream + "/mcp"}
	if s.stdio {
		server = map[string]any{"command": self, "args": []string{"upstream", "-tools", strconv.Itoa(s.toolCount())}}
	}
	durability, isolation := "os", "shared"
	if s.sync {
		durability = "sync"
	}
	if s.isolated {
		isolation = "session"
	}
	up := map[string]any{"isolation": isolation, "pin": !s.personal}
	if s.header {
		server["headers"] = map[string]string{"Authorization": "Bearer bench-token"}
	}
	if s.personal {
		up["credential"] = map[string]any{"type": "command", "command": []string{"echo", `{"token":"bench-token","expires_at":"2100-01-01T00:00:00Z"}`}}
	}
	settings := map[string]any{
		"state":     filepath.Join(dir, "state"),
		"policy":    map[string]any{"path": filepath.Join(dir, "policy")},
		"limits":    map[string]any{"default": "100000000/1m"},
		"approvals": map[string]any{"hold": "0s"},
		"audit":     map[string]any{"durability": durability},
		"servers":   map[string]any{"up": up},
	}
	if !s.stdio {
		known := map[string]any{"tokens": s.tokens()}
		if issuer != "" {
			known["jwt"] = []any{map[string]any{"issuer": issuer, "audience": []string{issuedFor}}}
		}
		settings["identity"] = known
	}
	return map[string]any{"mcpServers": map[string]any{"up": server}, "toolgate": settings}
}

// tokens gives every agent a role of its own beside the common one, so that each has
// a rights set of its own.
func (s site) tokens() (tokens []any) {
	for i := range s.agentCount() {
		roles := []string{"agent"}
		if i > 0 {
			roles = append(roles, "team-"+strconv.Itoa(i))
		}
		tokens = append(tokens, map[string]any{"subject": "agent-" + strconv.Itoa(i), "roles": roles, "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(token(i))))})
	}
	return tokens
}

func (s site) toolCount() int { return max(s.tools, own) }

// policyData returns data.json: what the roles may call.
func (s site) policyData() any {
	all := map[string]bool{"echo": true, "checked": true, "big": true}
	for i := own; i < s.tools; i++ {
		all[fmt.Sprintf("record_%05d", i)] = true
	}
	roles := map[string]any{"agent": map[string]any{"tools": all}}
	for i := range 100 {
		some := map[string]bool{}
		for j := range 20 {
			some[fmt.Sprintf("other_%d_%d", i, j)] = true
		}
		roles["other-"+strconv.Itoa(i)] = map[string]any{"tools": some}
	}
	return map[string]any{"roles": roles, "longest": map[string]int{"checked": 10_000}, "held": map[string]string{"checked": "held"}}
}

// write writes the files of a toolgate to dir, which it creates.
func (s site) write(self, upstream, issuer, dir string) error {
	config, err := json.MarshalIndent(s.configuration(self, upstream, issuer, dir), "", "\t")
	if err != nil {
		return err
	}
	data, err := json.Marshal(s.policyData())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "policy"), 0o700); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"mcp.json": config, "policy/policy.rego": []byte(benchPolicy), "policy/data.json": data} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// A process is a program that a benchmark has started.
type process struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
	log  *os.File
	done chan struct{} // closed when it has ended
}

// programIn prepares a program in dir, with its stderr in a file log there. Its end, by
// SIGTERM, comes with ctx.
func programIn(ctx context.Context, dir, name string, args ...string) (*process, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, log
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return &process{cmd: cmd, stop: stop, log: log, done: make(chan struct{})}, nil
}

// serve starts a program that prints the URL of its MCP endpoint, and returns the
// endpoint's address. Each chooses a free port itself, so none can meet another's.
func (p *process) serve() (address string, err error) {
	found := make(chan string, 1)
	p.cmd.Stdout = &endpointLine{log: p.log, found: found}
	if err := p.start(); err != nil {
		return "", err
	}
	select {
	case address = <-found:
		return address, nil
	case <-p.done:
		err = p.ended()
	case <-time.After(startTime):
		err = errors.New("it does not listen")
	}
	p.end()
	return "", err
}

// An endpointLine looks for the address of an endpoint in what a program prints.
type endpointLine struct {
	log   io.Writer
	text  []byte        // that was printed before the endpoint
	found chan<- string // nil once it has the address
}

var endpointURL = regexp.MustCompile(`http://(\S+)/mcp\s`)

// Write implements io.Writer.
func (l *endpointLine) Write(p []byte) (int, error) {
	if l.found != nil {
		l.text = append(l.text, p...)
		if m := endpointURL.FindSubmatch(l.text); m != nil {
			l.found <- string(m[1])
			l.found = nil
		}
	}
	return l.log.Write(p)
}

// announce listens on an address and prints the endpoint for serve.
func announce(w io.Writer, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err == nil {
		_, err = fmt.Fprintf(w, "http://%s/mcp\n", l.Addr())
	}
	return l, err
}

// start starts a program, whose end reap notes.
func (p *process) start() error {
	if err := p.cmd.Start(); err != nil {
		close(p.done)
		p.end()
		return err
	}
	p.reap()
	return nil
}

// reap notes the end of a program that was started.
func (p *process) reap() {
	go func() {
		_ = p.cmd.Wait() // it was told to end, or its log says more
		close(p.done)
	}()
}

// end ends the program and waits until it has ended.
func (p *process) end() {
	p.stop()
	<-p.done
	p.log.Close()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended reports whether the program has ended, with the last that it logged.
func (p *process) ended() error {
	select {
	case <-p.done:
		text, _ := os.ReadFile(p.log.Name())
		return fmt.Errorf("%s has ended: %s", filepath.Base(p.cmd.Path), text[max(0, len(text)-500):])
	default:
		return nil
	}
}
