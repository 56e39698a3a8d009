package upstream

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/registry/config"
)

// ownName is the command that means this binary itself.
const ownName = "toolgate"

const (
	reapGrace   = 2 * time.Second // from KILL to giving up on the guardian
	stderrLine  = 4 << 10         // bytes of one stderr line that are logged
	stderrLines = 200             // stderr lines per second that are logged

	tailLines = 20  // lines of stderr that are kept of a server
	tailLine  = 500 // bytes that are kept of one
)

// tail is the end of what the processes of a server wrote to stderr. It is safe for concurrent use.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = slices.Delete(t.lines, 0, 1)
	}
	t.lines = append(t.lines, strings.ToValidUTF8(line[:min(len(line), tailLine)], ""))
}

// child is one running stdio server with its streams.
type child struct {
	stdin  io.WriteCloser
	stdout io.ReadCloser
	cmd    *exec.Cmd
	leash  io.Closer     // closing it ends the process and all that it started
	exited chan struct{} // closed when the process is gone
	fate   string        // how it went, read after exited
	drains sync.WaitGroup
	last   atomic.Pointer[string] // line on stderr
}

// startChild starts the server's command in a sandbox. The error names what is wrong
// with the command, or what the sandbox lacks.
func startChild(cfg config.Server, host *sandbox.Host, executable string, given *secrets, said *tail, log hclog.Logger) (*child, error) {
	env := environ(os.Environ(), cfg.Env)
	path, err := resolve(cfg, executable)
	if err != nil {
		return nil, err
	}
	confined := Confined(cfg)
	confined.Path = path
	cmd, leash, err := host.Command(confined)
	if err != nil {
		return nil, fmt.Errorf("confining %s: %w", cfg.Command, err)
	}
	cmd.Dir, cmd.Env = cfg.Dir, append(cmd.Env, env...)
	c := &child{cmd: cmd, leash: leash, exited: make(chan struct{})}
	var stderr io.ReadCloser
	if c.stdin, err = cmd.StdinPipe(); err == nil {
		c.stdout, err = cmd.StdoutPipe()
	}
	if err == nil {
		stderr, err = cmd.StderrPipe()
	}
	if err == nil {
		err = cmd.Start() // closes the pipes when it fails
	}
	sandbox.Started(cmd)
	if err != nil {
		leash.Close()
		sandbox.Ended(cmd)
		return nil, fmt.Errorf("starting %s: %w", cfg.Command, err)
	}
	c.drains.Go(func() { c.drain(stderr, given.redactText, said, log) })
	go c.wait()
	return c, nil
}

// Confined returns how the command of a server is confined and limited, without the path of
// its program.
func Confined(cfg config.Server) sandbox.Server {
	return sandbox.Server{
		Args: cfg.Args, Mode: sandbox.Mode(cfg.Sandbox), NoNetwork: cfg.Network == "none", User: cfg.User, Limits: cfg.RLimits,
		Resources: sandbox.Resources{
			Memory: uint64(cfg.Resources.Memory), Processes: uint64(cfg.Resources.Processes), CPUWeight: uint64(cfg.Resources.CPUWeight),
			FileSize: uint64(cfg.Resources.FileSize), Files: uint64(cfg.Resources.Files),
		},
	}
}

// resolve finds the program to run.
func resolve(cfg config.Server, executable string) (string, error) {
	if cfg.Command == ownName {
		return executable, nil
	}
	name := cfg.Command
	if filepath.Base(name) != name && !filepath.IsAbs(name) && cfg.Dir != "" {
		name = filepath.Join(cfg.Dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("finding command %q: %w\nhint: %s", cfg.Command, err, cfg.CommandHint())
	}
	return filepath.Abs(path)
}

// wait records how the process ended. It leaves the pipes open, from which the
// last output is yet to be read; Cmd.Wait would close them.
func (c *child) wait() {
	state, err := c.cmd.Process.Wait()
	if c.cmd.ProcessState = state; err != nil {
		c.fate = err.Error()
	} else {
		c.fate = state.String()
	}
	sandbox.Ended(c.cmd)
	close(c.exited)
}

// drain reads stderr to its end, line by line, so that the pipe never fills
// up. It keeps the last lines and logs at most stderrLines a second, both without secrets.
func (c *child) drain(r io.ReadCloser, redact func(string) string, said *tail, log hclog.Logger) {
	defer r.Close()
	lines := bufio.NewReaderSize(r, stderrLine)
	window, count := time.Now(), 0
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := redact(string(line))
		c.last.Store(&text)
		said.add(text)
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
		if now := time.Now(); now.Sub(window) > time.Second {
			window, count = now, 0
		}
		if count++; count <= stderrLines && log.IsDebug() {
			log.Debug("stderr", "line", text)
		}
	}
}

// Exited is closed when the process has ended.
func (c *child) Exited() <-chan struct{} { return c.exited }

// Fate says how the process ended. It may be called after Exited only.
func (c *child) Fate() error {
	c.drains.Wait()
	if last := c.last.Load(); last != nil && *last != "" {
		return fmt.Errorf("%w: %s: %s", mcpclient.ErrEnded, c.fate, mcpclient.Clip([]byte(*last)))
	}
	return fmt.Errorf("%w: %s", mcpclient.ErrEnded, c.fate)
}

// Stop ends the process and everything that it started: stdin is closed, then
// comes TERM, then KILL, each after its grace time. It returns when they are
// gone.
func (c *child) Stop() {
	c.stdin.Close()
	c.leash.Close()
	timer := time.NewTimer(guardian.StdinGrace + guardian.TermGrace + reapGrace)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
		_ = c.cmd.Process.Kill() // one that has ended already is what we want
		<-c.exited
	}
	c.stdout.Close()
	c.drains.Wait()
}
