package wait_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/toolgate/toolgate/internal/wait"
)

// Work runs in order, two pieces at a time; what waits is bounded by its bytes and 512 for
// each piece, but one may always wait.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		q := wait.NewQueue(2, 2000, all.Go)
		var mu sync.Mutex // protects the field below
		var order []int
		release := make(chan struct{})
		add := func(n, size int) string {
			began, ok := q.Add(size, func() {
				<-release
				mu.Lock()
				defer mu.Unlock()
				order = append(order, n)
			})
			return map[[2]bool]string{{true, true}: "began", {false, true}: "waits", {false, false}: "full"}[[2]bool{began, ok}]
		}
		got := []string{add(1, 9000), add(2, 9000), add(3, 9000), add(4, 0)}
		if want := []string{"began", "began", "waits", "full"}; !slices.Equal(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		if len(q.Moved) > 0 || !q.Busy() {
			t.Error("work that waited has begun, or none is there")
		}
		release <- struct{}{}
		synctest.Wait()
		<-q.Moved
		got = []string{add(5, 488), add(6, 488), add(7, 0)}
		if want := []string{"waits", "waits", "full"}; !slices.Equal(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		for range 4 {
			release <- struct{}{}
			synctest.Wait()
		}
		all.Wait()
		if slices.Sort(order[:2]); !slices.Equal(order[3:], []int{5, 6}) && !slices.Equal(order[3:], []int{6, 5}) {
			t.Errorf("order %v", order)
		}
		if q.Busy() {
			t.Error("nothing is left")
		}
	})
}

// A queue of one slot keeps the order.
func TestQueueOrder(t *testing.T) {
	var all sync.WaitGroup
	q := wait.NewQueue(1, 1<<20, all.Go)
	var order []int
	for n := range 100 {
		if _, ok := q.Add(1, func() { order = append(order, n) }); !ok {
			t.Fatalf("no room for %d", n)
		}
	}
	all.Wait()
	if len(order) != 100 || !slices.IsSorted(order) {
		t.Errorf("order %v", order)
	}
}
