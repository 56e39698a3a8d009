package notice_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

const (
	childStore = "NOTICE_TEST_STORE"
	childHook  = "NOTICE_TEST_HOOK"
)

func inChild() bool { return os.Getenv(childStore) != "" }

// child is a process that delivers until it is killed.
func child() {
	db, err := postgres.State(context.Background(), os.Getenv(childStore))
	if err != nil {
		panic(err)
	}
	s, err := notice.New(notice.Options{DB: db, Link: func(id string) string { return id }},
		[]notice.Channel{{Webhook: os.Getenv(childHook), Secret: secret}})
	if err != nil {
		panic(err)
	}
	s.Start()
	fmt.Println("started")
	select {}
}

// A process that is killed while it sends leaves a notice that comes due again,
// under the same id.
func TestKilledWhileSending(t *testing.T) {
	w := newWorld(t)
	free := make(chan struct{})
	r := newReceiver(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-free
		}
	})
	s := w.idle(r.channel())
	k := w.held(`{}`, nil)
	w.change(s, k, asked)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childStore+"="+w.path, childHook+"="+r.channel().Webhook)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	r.wait(t, 1)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	close(free)
	s.Start()
	w.settle(s, r)
	if n := len(r.got()); n != 1 {
		t.Fatalf("%d posts while the try of the dead process counts", n)
	}
	w.pass(time.Since(noon) + 2*notice.LeaseTime) // the lease began by the real time
	posts := r.wait(t, 2)
	if posts[0].id() != posts[1].id() || posts[1].decode(t).Data.Ticket != k.ID {
		t.Errorf("%s and %s", posts[0].id(), posts[1].id())
	}
	until(t, "delivery", func() bool { return w.rows("TRUE") == 0 })
}
