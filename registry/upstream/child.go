package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/registry/config"
)

// ownName is the command that means this binary itself.
const ownName = "toolgate"

const (
	stdinGrace  = 1500 * time.Millisecond // from the end of stdin to TERM
	termGrace   = 1500 * time.Millisecond // from TERM to KILL
	reapGrace   = 2 * time.Second         // from KILL to giving up on the supervisor
	stderrLine  = 4 << 10                 // bytes of one stderr line that are logged
	stderrLines = 200                     // stderr lines per second that are logged
)

// child is one running stdio server with its streams.
type child struct {
	stdin  *os.File
	stdout *os.File
	cmd    *exec.Cmd
	leash  io.Closer     // closing it ends the process and all that it started
	exited chan struct{} // closed when the process is gone
	err    error         // how it went, read after exited
	drains sync.WaitGroup

	mu       sync.Mutex // protects the fields below
	lastLine string     // the last line on stderr
}

// startChild starts the server's command in a process group of its own. The
// error names what is wrong with the command.
func startChild(cfg config.Server, executable string, log hclog.Logger) (*child, error) {
	if supervised() {
		return nil, errors.New("starting a server from a supervisor process")
	}
	env := environ(os.Environ(), cfg.Env)
	path, err := resolve(cfg, executable)
	if err != nil {
		return nil, err
	}
	pipes, err := openPipes()
	if err != nil {
		return nil, err
	}
	cmd, leash, err := command(executable, path, cfg.Args)
	if err != nil {
		pipes.close()
		return nil, err
	}
	cmd.Dir, cmd.Env = cfg.Dir, append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0].r, pipes[1].w, pipes[2].w
	err = cmd.Start()
	started(cmd)
	if err != nil {
		pipes.close()
		leash.Close()
		return nil, fmt.Errorf("starting %s: %w", cfg.Command, err)
	}
	pipes[0].r.Close()
	pipes[1].w.Close()
	pipes[2].w.Close()
	c := &child{stdin: pipes[0].w, stdout: pipes[1].r, cmd: cmd, leash: leash, exited: make(chan struct{})}
	c.drains.Go(func() { c.drain(pipes[2].r, log) })
	go c.wait()
	return c, nil
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
		return "", fmt.Errorf("finding command %q: %w\nhint: install it, or give its full path", cfg.Command, err)
	}
	return filepath.Abs(path)
}

// pipe is both ends of an operating system pipe.
type pipe struct{ r, w *os.File }

// pipes are those of stdin, stdout and stderr.
type pipes [3]pipe

// openPipes opens three pipes or none.
func openPipes() (pipes, error) {
	var out pipes
	for i := range out {
		r, w, err := os.Pipe()
		if err != nil {
			out.close()
			return out, fmt.Errorf("opening a pipe: %w", err)
		}
		out[i] = pipe{r, w}
	}
	return out, nil
}

// close closes what is open.
func (p pipes) close() {
	for _, end := range p {
		if end.r != nil {
			end.r.Close()
			end.w.Close()
		}
	}
}

// wait records how the process ended.
func (c *child) wait() {
	c.err = c.cmd.Wait()
	close(c.exited)
}

// drain reads stderr to its end, line by line, so that the pipe never fills
// up, and logs what is not too much of it.
func (c *child) drain(r *os.File, log hclog.Logger) {
	defer r.Close()
	lines := bufio.NewReaderSize(r, stderrLine)
	window, count := time.Now(), 0
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		c.setLast(string(line))
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
		if now := time.Now(); now.Sub(window) > time.Second {
			window, count = now, 0
		}
		if count++; count <= stderrLines && log.IsDebug() {
			log.Debug("stderr", "line", c.last())
		}
	}
}

// setLast keeps a line of stderr for the message about an exit.
func (c *child) setLast(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastLine = line
}

// last gives the last line of stderr.
func (c *child) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastLine
}

// Exited is closed when the process has ended.
func (c *child) Exited() <-chan struct{} { return c.exited }

// Fate says how the process ended. It may be called after Exited only.
func (c *child) Fate() error {
	c.drains.Wait()
	what := "exit status 0"
	if c.err != nil {
		what = c.err.Error()
	}
	if last := c.last(); last != "" {
		return fmt.Errorf("the server ended: %s: %s", what, mcpclient.Clip([]byte(last)))
	}
	return fmt.Errorf("the server ended: %s", what)
}

// Stop ends the process and everything that it started: stdin is closed, then
// comes TERM, then KILL, each after its grace time. It returns when they are
// gone.
func (c *child) Stop() {
	c.stdin.Close()
	c.leash.Close()
	timer := time.NewTimer(stdinGrace + termGrace + reapGrace)
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
