package audit_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/toolgate/toolgate/audit"
)

// victim is the process that TestKill kills: it records without end and says on
// stdout what was acknowledged.
func victim(root string) {
	if os.Getenv("AUDIT_TEST_LIMIT") != "" { // the disk is full while zeros are written
		signal.Ignore(syscall.SIGXFSZ)
		limit := syscall.Rlimit{Cur: 100_000, Max: 100_000}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			os.Exit(1)
		}
	}
	l, err := audit.Open(root, audit.Options{SegmentBytes: 80_000})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for c := range 8 {
		go func() {
			for i := 0; ; i++ {
				r := sample(fmt.Sprintf("%d-%d", c, i))
				if err := l.Write(audit.KindDecision, r); err != nil {
					os.Exit(1)
				}
				fmt.Printf("decision %s\n", r.CallID)
				if err := l.Write(audit.KindOutcome, r); err != nil {
					os.Exit(1)
				}
				fmt.Printf("outcome %s\n", r.CallID)
				if err := l.Write(audit.KindTicket, r); err != nil {
					os.Exit(1)
				}
				fmt.Printf("ticket %s\n", r.CallID)
			}
		}()
	}
	select {}
}

func TestKill(t *testing.T) {
	root := t.TempDir()
	for round := range unlessShort(5, 1) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "AUDIT_TEST_VICTIM="+root)
		if round%2 == 1 {
			cmd.Env = append(cmd.Env, "AUDIT_TEST_LIMIT=yes")
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked := map[string]bool{}
		scan := bufio.NewScanner(out)
		for i := 0; i < 300+100*round && scan.Scan(); i++ {
			acked[scan.Text()] = true
		}
		cmd.Process.Kill()
		for scan.Scan() {
			acked[scan.Text()] = true
		}
		io.Copy(io.Discard, out)
		cmd.Wait()
		checkSurvivors(t, root, round+1, acked)
	}
	open(t, root, audit.Options{}).Close()
	noZeros(t, root)
}

// checkSurvivors holds the newest of so many chains to what was acknowledged.
func checkSurvivors(t *testing.T, root string, chains int, acked map[string]bool) {
	rep := verify(t, root)
	if !rep.OK() || len(rep.Chains) != chains {
		t.Fatalf("want %d intact chains, got %+v", chains, rep)
	}
	chain := rep.Chains[chains-1]
	if chain.Closed || len(acked) < 300 {
		t.Fatalf("chain = %+v, %d acknowledged", chain, len(acked))
	}
	for line, err := range audit.Tail(t.Context(), root, audit.TailOptions{Records: 1 << 20}) {
		if err != nil {
			t.Fatal(err)
		}
		if r := parse(t, line); r.Instance == chain.Instance {
			delete(acked, string(r.Kind)+" "+r.CallID)
		}
	}
	delete(acked, "") // the scanner's last, torn line is no acknowledgement
	for key := range acked {
		t.Errorf("acknowledged and lost: %s", key)
	}
}
