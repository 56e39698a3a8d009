package wait_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Loops that begin at different times wait for the same moment.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now() // a whole second
		for _, tt := range []struct{ at, period, want time.Duration }{
			{0, time.Second, time.Second},
			{400 * time.Millisecond, time.Second, 600 * time.Millisecond},
			{900 * time.Millisecond, 250 * time.Millisecond, 100 * time.Millisecond},
			{time.Second, time.Second, time.Second},
		} {
			time.Sleep(time.Until(begun.Add(tt.at)))
			if got := wait.Beat(tt.period); got != tt.want {
				t.Errorf("after %v the beat of %v is in %v, want %v", tt.at, tt.period, got, tt.want)
			}
		}
	})
}
