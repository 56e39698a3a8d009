package front

import (
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// A listener that stops returns the connections that clients have opened, and those alone. While it
// waits for them, the kernel answers nobody new; then it refuses them.
func TestStoppedListener(t *testing.T) {
	t.Parallel()
	in, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const queued = 50
	l := newListener(in, queued, func() {})
	var clients []net.Conn
	connect := func(within time.Duration) error {
		c, err := net.DialTimeout("tcp", in.Addr().String(), within)
		if err == nil {
			clients = append(clients, c)
		}
		return err
	}
	for range queued {
		if err := connect(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	var late net.Error
	if err := connect(50 * time.Millisecond); !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("connecting while the listener stops: %v", err)
	}
	for n := range queued {
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if c, err := l.Accept(); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("%v, %v after the last connection", c, err)
	}
	if err := connect(time.Minute); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting after the end: %v", err)
	}
	for _, c := range clients {
		c.Close()
	}
}
