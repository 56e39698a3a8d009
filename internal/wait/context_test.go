package wait_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/toolgate/toolgate/internal/wait"
)

var errTest = errors.New("it is over")

func TestContextEnds(t *testing.T) {
	for _, tc := range []struct {
		name     string
		cause    error
		want     error // of Err, by errors.Is
		deadline bool
	}{
		{"for a cause", errTest, errTest, false},
		{"without a cause", nil, context.Canceled, false},
		{"at its deadline", context.DeadlineExceeded, context.DeadlineExceeded, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c wait.Context
			c.Begin(nil)
			if c.Err() != nil || context.Cause(&c) != nil {
				t.Fatalf("it has ended before its end: %v, %v", c.Err(), context.Cause(&c))
			}
			early := c.Done()
			c.End(tc.cause)
			c.End(errors.New("a later cause"))
			<-early
			<-c.Done()
			for _, err := range []error{c.Err(), context.Cause(&c)} {
				if !errors.Is(err, tc.want) || errors.Is(err, context.Canceled) == tc.deadline {
					t.Errorf("it ended with %v, want %v", err, tc.want)
				}
			}
		})
	}
}

func TestContextEndsWithParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var root, child, grandchild, sibling wait.Context
		root.Begin(nil)
		child.Begin(&root)
		grandchild.Begin(&child)
		sibling.Begin(&root)
		ofPackage, stop := context.WithCancel(&grandchild)
		defer stop()
		sibling.End(nil)
		root.End(errTest)
		synctest.Wait()
		for name, c := range map[string]context.Context{"child": &child, "grandchild": &grandchild, "a context of package context": ofPackage} {
			if <-c.Done(); !errors.Is(context.Cause(c), errTest) {
				t.Errorf("%s ended with %v", name, context.Cause(c))
			}
		}
		if errors.Is(sibling.Err(), errTest) {
			t.Error("a sibling that had ended has the cause of the root")
		}
		child.Begin(&root)
		if !errors.Is(child.Err(), errTest) {
			t.Errorf("a child of what has ended lives: %v", child.Err())
		}
	})
}

func TestWatcher(t *testing.T) {
	var c wait.Context
	c.Begin(nil)
	var heard [3]int
	watchers := make([]wait.Watcher, len(heard))
	for i := range watchers {
		watchers[i].Ended = func() { heard[i]++ }
		if !c.Watch(&watchers[i]) {
			t.Fatal("a context that lives is not watched")
		}
	}
	if !c.Unwatch(&watchers[1]) || c.Unwatch(&watchers[1]) {
		t.Error("a watcher leaves once")
	}
	c.End(nil)
	c.End(nil)
	if heard != [3]int{1, 0, 1} {
		t.Errorf("the watchers heard of the end %v times", heard)
	}
	if c.Unwatch(&watchers[0]) || c.Watch(&watchers[1]) {
		t.Error("a context that has ended is watched")
	}
}

// Contexts that begin again hear of no end of an earlier life.
func TestContextBeginsAgain(t *testing.T) {
	var root wait.Context
	root.Begin(nil)
	var wrong atomic.Int32
	var lives sync.WaitGroup
	for range 8 {
		lives.Go(func() {
			var call wait.Context
			w := wait.Watcher{Ended: func() { wrong.Add(1) }}
			for range 2000 {
				call.Begin(&root)
				call.Watch(&w)
				if call.Err() != nil {
					wrong.Add(1)
				}
				call.Unwatch(&w)
				call.End(nil)
			}
		})
	}
	lives.Wait()
	if root.End(errTest); wrong.Load() != 0 {
		t.Errorf("%d ends were heard that were another's", wrong.Load())
	}
}

func TestContextAllocatesNothing(t *testing.T) {
	var root, call wait.Context
	root.Begin(nil)
	w := wait.Watcher{Ended: func() {}}
	if n := testing.AllocsPerRun(100, func() {
		call.Begin(&root)
		call.Watch(&w)
		call.Unwatch(&w)
		call.End(nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
