package decisionlog_test

import (
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
)

// BenchmarkEvent is what a decision costs behind the back of its call: reading its
// record, asking a policy with a mask, hiding, writing.
func BenchmarkEvent(b *testing.B) {
	r := record(1, "dec-1")
	for name, module := range map[string]string{"unmasked": "package system.log\n", "masked": "package system.log\nimport rego.v2\n" + masks["on a condition"]} {
		mask := engine(b, module).Mask
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e, err := decisionlog.EventOf(r, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := decisionlog.MaskedEvent(b.Context(), mask, e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
