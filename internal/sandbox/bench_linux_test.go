package sandbox_test

import (
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/sandbox"
)

// BenchmarkStart starts a server that ends at once, confined and not.
func BenchmarkStart(b *testing.B) {
	for _, mode := range []sandbox.Mode{sandbox.Off, sandbox.Auto} {
		b.Run(string(mode), func(b *testing.B) {
			h := sandbox.New(sandbox.Options{Hide: []string{b.TempDir()}})
			h.Support() // found out once
			var cpu time.Duration
			for b.Loop() {
				cmd, leash, err := h.Command(sandbox.Server{Path: "/bin/true", Mode: mode})
				if err != nil {
					b.Fatal(err)
				}
				err = cmd.Start()
				sandbox.Started(cmd)
				if err == nil {
					err = cmd.Wait()
				}
				leash.Close()
				if err != nil {
					b.Fatal(err)
				}
				cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			}
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/op") // of guardian and server
		})
	}
}
