// Package postgres gives tests databases of a PostgreSQL server. The server is one for
// the test process, reached by a socket in its own directory, and ends with the process.
//
//	func TestMain(m *testing.M) { os.Exit(postgres.Run(m)) }
//
//	db, err := store.OpenPostgres(ctx, postgres.Database(t), store.PostgresMigrations())
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// Server is a PostgreSQL server.
type Server struct {
	bin, dir string
	as       *syscall.SysProcAttr // the user of the server's processes
	running  *exec.Cmd
}

var made atomic.Int64 // the databases of this process

var one struct {
	sync.Mutex
	server *Server
	err    error
}

// Run runs the tests of a process, and then ends the server that they started.
func Run(m *testing.M) int {
	code := m.Run()
	if one.server != nil {
		one.server.Remove()
	}
	return code
}

// Database returns the URL of a new database of the process's server. Package parts says
// when the test skips.
func Database(t testing.TB) string {
	t.Helper()
	need(t)
	address, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// New returns the URL of a new database of the process's server.
func New() (string, error) {
	one.Lock()
	defer one.Unlock()
	if one.server == nil && one.err == nil {
		one.server, one.err = start()
	}
	if one.err != nil {
		return "", one.err
	}
	return one.server.Database(context.Background())
}

func need(t testing.TB) {
	t.Helper()
	parts.Long(t, "needs PostgreSQL")
	if len(programs()) == 0 {
		parts.Missing(t, "PostgreSQL is not installed (.ci/debian)")
	}
}

// start starts a server. It is not durable, and asks no password of who can reach its
// socket.
func start() (*Server, error) {
	bins := programs()
	if len(bins) == 0 {
		return nil, errors.New("PostgreSQL is not installed")
	}
	dir, err := os.MkdirTemp(memory(), "pg-"+strconv.Itoa(os.Getpid())+"-") // short: a socket has a name of at most 107 bytes
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bins[len(bins)-1], dir: dir}
	if s.as, err = unprivileged(dir); err != nil {
		return nil, err
	}
	made := s.command("initdb", "-D", s.data(), "-U", "toolgate", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	if out, err := made.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s, s.Restart()
}

// programs returns the directories with the server's programs, the best one last.
func programs() []string {
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // Debian does not put them on the path
	if path, err := exec.LookPath("initdb"); err == nil {
		bins = append(bins, filepath.Dir(path))
	}
	return bins
}

// Wanted reports whether a part of a test that needs PostgreSQL runs: without -short, where
// PostgreSQL is installed or CI=true.
func Wanted() bool {
	return !testing.Short() && (len(programs()) > 0 || os.Getenv("CI") == "true")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, s.as
	return cmd
}

// Restart starts the server after Kill, and returns when it serves.
func (s *Server) Restart() error {
	s.running = s.command("postgres", "-D", s.data(), "-k", s.dir, "-h", "", "-F",
		"-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB", "-c", "autovacuum=off")
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.running.Stdout, s.running.Stderr = log, log
	if err := s.running.Start(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := s.exec(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("starting PostgreSQL: %w\n%s", err, text)
		case <-retry.C:
		}
	}
}

// Kill ends the server at once, with all connections.
func (s *Server) Kill() {
	_ = s.running.Process.Signal(syscall.SIGQUIT) // an immediate shutdown, which removes the shared memory
	_ = s.running.Wait()                          // its status is that of the signal
}

// Remove ends the server and removes its files.
func (s *Server) Remove() {
	s.Kill()
	_ = os.RemoveAll(s.dir) // below the temporary directory
}

// Database makes an empty database, and returns its URL.
func (s *Server) Database(ctx context.Context) (string, error) { return s.create(ctx, "template0") }

// create makes a copy of a database. Copying files is quicker here than through the log, although it
// needs a checkpoint.
func (s *Server) create(ctx context.Context, of string) (string, error) {
	name := "t" + strconv.Itoa(os.Getpid()) + "_" + strconv.FormatInt(made.Add(1), 10)
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+of+" STRATEGY FILE_COPY"); err != nil {
		return "", fmt.Errorf("making a database: %w", err)
	}
	return s.address(name), nil
}

func (s *Server) address(database string) string {
	return (&url.URL{Scheme: "postgres", User: url.User("toolgate"), Path: "/" + database, RawQuery: url.Values{"host": {s.dir}}.Encode()}).String()
}

// Forget ends the leases of a process that has ended, in the database at a URL.
func Forget(t testing.TB, database string, pid int) {
	t.Helper()
	if err := run(t.Context(), database, "DELETE FROM instances WHERE who LIKE $1", fmt.Sprintf("process %d on %%", pid)); err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement in the database postgres.
func (s *Server) exec(ctx context.Context, statement string) error {
	return run(ctx, s.address("postgres"), statement)
}

// LastStatements returns when each connection of toolgate to the database at a URL began its
// last statement, by the server's account.
func LastStatements(t testing.TB, database string) (begun string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), database)
	if err == nil {
		err = c.QueryRow(t.Context(), "SELECT coalesce(string_agg(pid || ' ' || query_start, ', ' ORDER BY pid), '') FROM pg_stat_activity WHERE application_name = 'toolgate' AND datname = current_database()").Scan(&begun)
		err = errors.Join(err, c.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return begun
}

func run(ctx context.Context, database, statement string, args ...any) error {
	c, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, statement, args...)
	return errors.Join(err, c.Close(ctx))
}
