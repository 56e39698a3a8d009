package approval_test

import (
	"fmt"
	"testing"

	"github.com/toolgate/toolgate/policy/approval"
)

// BenchmarkAttach is the call that finds its ticket waiting: one commit.
func BenchmarkAttach(b *testing.B) {
	w := newWorld(b)
	w.claim(transfer(hundred), approval.Pending)
	b.ReportAllocs()
	for b.Loop() {
		w.claim(transfer(hundred), approval.Pending)
	}
}

// BenchmarkLife is a ticket's whole life, from the call to the stored result:
// four commits.
func BenchmarkLife(b *testing.B) {
	w := newWorld(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		held := transfer(fmt.Sprintf(`{"n":%d}`, i))
		k := w.claim(held, approval.Pending)
		w.approve(k.ID, ann)
		w.claim(held, approval.Granted)
		w.finish(k.ID, approval.StateDone, answer, "")
	}
}
