// Package redis starts redis-server for tests, on a free port of loopback and in a
// directory of its own.
package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/wait"
)

// patience is how long a server may take to answer: machines of tests can be busy.
const patience = time.Minute

// Server is one redis-server, which ends with its test.
type Server struct {
	URL  string // redis://127.0.0.1:PORT
	Addr string

	t    testing.TB
	args []string
	cmd  *exec.Cmd
}

// Start starts a server, which requires password unless that is "". Package parts says
// when the test skips.
func Start(t testing.TB, password string) *Server {
	t.Helper()
	parts.Need(t, "redis-server")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := &Server{t: t, URL: "redis://" + l.Addr().String(), Addr: l.Addr().String()}
	s.args = []string{"--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--logfile", "log"}
	if password != "" {
		s.URL = "redis://:" + password + "@" + s.Addr
		s.args = append(s.args, "--requirepass", password)
	}
	_ = l.Close() // nothing was accepted
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// Restart starts the server again after Kill, with what it has stored, and waits until it
// answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	err := errors.New("not asked")
	for err != nil {
		if _, err = s.try(ctx, "return {1}"); err != nil && !wait.For(ctx, 10*time.Millisecond) {
			s.t.Fatalf("redis-server does not answer: %v", err)
		}
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()         // its status says that it was killed
}

// Freeze stops the process of the server; it keeps its connections and answers nothing.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw continues a server after Freeze.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Run runs a Lua script whose answer is a list of whole numbers.
func (s *Server) Run(script string) []int64 {
	s.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	answer, err := s.try(ctx, script)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

func (s *Server) try(ctx context.Context, script string) ([]int64, error) {
	c := s.open()
	answer, err := c.Run(ctx, script, nil)
	return answer, errors.Join(err, c.pool.Close())
}

// A Client runs scripts on a Server.
type Client struct{ pool *redis.Client }

// Client returns a client whose connections close with the test. It waits for an answer for a
// second, and does not try again.
func (s *Server) Client() *Client {
	c := s.open()
	s.t.Cleanup(func() { _ = c.pool.Close() }) // the server may be gone
	return c
}

func (s *Server) open() *Client {
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = time.Second, time.Second, time.Second, time.Second
	return &Client{redis.NewClient(o)}
}

// Run runs a Lua script whose answer is a list of whole numbers.
func (c *Client) Run(ctx context.Context, script string, keys []string, args ...any) ([]int64, error) {
	return redis.NewScript(script).Run(ctx, c.pool, keys, args...).Int64Slice()
}
