package share_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/share"
)

// usedAgain reports whether the memory of room is that of an answer that is read after it. A pool may give
// other memory, so it asks for some.
func usedAgain(budget *share.Budget, room []byte) bool {
	for range 4 {
		claim := new(share.Claim)
		budget.Take(claim, share.Owner{}, 1)
		if next := claim.Buffer(len(room), 512); &next[0] == &room[0] {
			return true
		}
	}
	return false
}

// The memory of an answer is used again when the road has relinquished the answer, its door has
// delivered it, and nobody holds its claim.
func TestBuffersAreUsedAgain(t *testing.T) {
	for _, row := range []struct {
		size int
		does string
		want bool
	}{
		{512, "relinquish deliver release", true},
		{100_000, "relinquish deliver release", true},
		{8<<20 - 512, "deliver relinquish release", true},
		{100_000, "hold relinquish deliver release release", true},
		{100_000, "hold relinquish deliver release", false},
		{100_000, "relinquish deliver", false},
		{100_000, "relinquish release", false},
		{100_000, "deliver release", false},
		{100_000, "release relinquish deliver release", false},
		{100_000, "relinquish deliver another release", false}, // the second answer is neither
		{511, "relinquish deliver release", false},
		{8<<20 - 511, "relinquish deliver release", false},
	} {
		t.Run(row.does, func(t *testing.T) {
			budget, got := share.NewBudget(1<<30, 1<<30), false
			for range 20 {
				claim := new(share.Claim)
				budget.Take(claim, share.Owner{}, 1)
				room := claim.Buffer(row.size, 512)
				if len(room) != row.size || cap(room) < row.size+512 || cap(room) > row.size*5/4+1024 {
					t.Fatalf("%d bytes with a capacity of %d for %d", len(room), cap(room), row.size)
				}
				for _, word := range strings.Fields(row.does) {
					map[string]func(){
						"relinquish": claim.Relinquish, "deliver": claim.Delivered, "release": claim.Release, "hold": func() { claim.Hold() },
						"another": func() { claim.Buffer(row.size, 512) },
					}[word]()
				}
				got = got || usedAgain(budget, room)
			}
			if got != row.want {
				t.Errorf("%d bytes, %s: used again is %v", row.size, row.does, got)
			}
		})
	}
}

// Every size has a buffer that is large enough, and at most a quarter larger.
func TestBufferSizes(t *testing.T) {
	budget := share.NewBudget(1<<30, 1<<30)
	for n := 512; n <= 8<<20; n += n/97 + 1 {
		claim := new(share.Claim)
		budget.Take(claim, share.Owner{}, 1)
		if got := cap(claim.Buffer(n, 0)); got < n || got > n*5/4 {
			t.Errorf("%d bytes have a buffer of %d", n, got)
		}
	}
}
