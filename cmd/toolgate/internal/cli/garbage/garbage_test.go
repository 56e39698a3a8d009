package garbage_test

import (
	"os"
	"runtime/metrics"
	"testing"

	_ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

func TestPercent(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC takes precedence")
	}
	const want = 200
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	program.Await(t, "the collector to have its percent after the start", func() bool {
		metrics.Read(percent)
		return percent[0].Value.Uint64() == want
	})
}
