package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// Relay is a socket that passes connections on to a server, until a test interrupts one of
// them in its commit.
type Relay struct {
	URL string // of the database, by way of the relay

	server string // socket of the server
	conns  sync.WaitGroup

	mu   sync.Mutex // protects the field below
	next *interruption
}

// interruption is what happens at a commit. It is used once.
type interruption struct {
	value     []byte // a parameter of one of the transaction's statements
	committed bool
	then      func()
}

// Relay returns a relay to the database at a URL of s. It ends with the test.
func (s *Server) Relay(t testing.TB, database string) *Relay {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr-") // short, as of Start
	if err != nil {
		t.Fatal(err)
	}
	const name = ".s.PGSQL.5432"
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = url.Values{"host": {dir}}.Encode()
	r := &Relay{URL: u.String(), server: filepath.Join(s.dir, name)}
	var accepting sync.WaitGroup
	accepting.Go(func() { r.accept(l) })
	t.Cleanup(func() {
		_ = l.Close() // ends accept
		accepting.Wait()
		r.conns.Wait()
		_ = os.RemoveAll(dir) // below the temporary directory
	})
	return r
}

// Interrupt calls then at the next commit of a transaction that has sent value as a
// parameter, and cuts its connection afterwards. The server has committed the transaction
// or not; the client does not learn which.
func (r *Relay) Interrupt(value string, committed bool, then func()) {
	sent := append(binary.BigEndian.AppendUint32(nil, uint32(len(value))), value...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = &interruption{sent, committed, then}
}

// sends reports whether data has the parameter of the next interruption.
func (r *Relay) sends(data []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next != nil && bytes.Contains(data, r.next.value)
}

func (r *Relay) take() *interruption {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.next
	r.next = nil
	return taken
}

func (r *Relay) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", r.server)
		if err != nil {
			_ = client.Close() // as the server would
			continue
		}
		end := func() { _, _ = client.Close(), server.Close() } // one of them has ended already
		var late atomic.Pointer[interruption]                   // waits for the answer to a commit
		r.conns.Go(func() { defer end(); r.ask(client, server, &late) })
		r.conns.Go(func() { defer end(); r.answer(client, server, &late) })
	}
}

var commit = []byte("commit\x00") // the whole of pgx's statement

// ask passes on what the client sends. A message is never in two parts: pgx writes each at
// once, and sockets of the machine keep it.
func (r *Relay) ask(client, server net.Conn, late *atomic.Pointer[interruption]) {
	wanted := false
	_ = pass(client, server, func(data []byte) error {
		wanted = wanted || r.sends(data)
		if !wanted || !bytes.Contains(data, commit) {
			return nil
		}
		wanted = false
		switch i := r.take(); {
		case i == nil:
		case i.committed:
			late.Store(i)
		default:
			i.then()
			return errCut
		}
		return nil
	})
}

// answer passes on what the server answers.
func (r *Relay) answer(client, server net.Conn, late *atomic.Pointer[interruption]) {
	_ = pass(server, client, func([]byte) error {
		if i := late.Load(); i != nil {
			i.then()
			return errCut
		}
		return nil
	})
}

var errCut = errors.New("the connection is cut")

// pass copies what check lets pass, until an error.
func pass(from io.Reader, to io.Writer, check func([]byte) error) error {
	buf := make([]byte, 1<<20)
	for {
		n, err := from.Read(buf)
		if err == nil {
			err = check(buf[:n])
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}
