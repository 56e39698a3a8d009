package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// A principal who may call nothing sends 256 calls of 3.9 MB at once: each is refused as unknown, or
// refused before it is read, and the process stays below 200 MB.
func TestDeniedBodiesAtOnce(t *testing.T) {
	parts.Long(t, "sends a gigabyte")
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"up.json":  `{"Tools": [{"Name": "say"}]}`,
		"mcp.json": `{"mcpServers": {"up": {"command": "recorder", "args": ["up.json", "record"]}}, "toolgate": {"limits": {"refused": "off"}}}`,
	})
	g := program.ServeReady(t, dir)
	call := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"up__say","arguments":{"text":"%s"}}}`, bytes.Repeat([]byte("x"), 3_900_000))
	var senders sync.WaitGroup
	statuses := make([]int, 256)
	begin := make(chan struct{})
	for i := range statuses {
		senders.Go(func() {
			<-begin
			req, err := http.NewRequest(http.MethodPost, g.Agents+"/v1/rpc", bytes.NewReader(call))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return // the connection of a refused request may end while it is written
			}
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
			statuses[i] = res.StatusCode
		})
	}
	close(begin)
	senders.Wait()
	count := make(map[int]int)
	for _, status := range statuses {
		count[status]++
	}
	if count[http.StatusNotFound] == 0 || count[http.StatusServiceUnavailable] == 0 || count[0]+count[http.StatusNotFound]+count[http.StatusServiceUnavailable] != len(statuses) {
		t.Errorf("answers by status, 0 for none: %v; want some of 404 and of 503", count)
	}
	peak := peakMemory(t, g.Cmd.Process.Pid)
	t.Logf("%d KB, answers %v", peak, count)
	if peak > 200_000 {
		t.Errorf("the process had %d KB, want 200 MB at most", peak)
	}
}

// peakMemory returns the most memory that a process has had resident, in KB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatal("the system does not say how much memory a process has had")
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}
