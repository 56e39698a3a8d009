package audit_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/audit"
)

// The first act of a kind is recorded at once, and a flood of them in one record for
// each interval. The counts are exact, also when the log fails for a while, and when
// there are more kinds than are counted apart.
func TestFold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		records, acts, full := 0, map[string]int{}, false
		f := audit.NewFold(func(kind audit.Kind, r *audit.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if full {
				return errors.New("no space left on device")
			}
			records++
			acts[r.Principal.Subject+"/"+r.Event.Source] += max(1, r.Event.Count)
			return nil
		})
		add := func(n int, who, source string) {
			for range n {
				f.Add(audit.Principal{Subject: who}, audit.Event{Name: "refused", Source: source, Reason: "unknown"})
			}
		}
		add(1, "ann", "")
		if records != 1 {
			t.Fatalf("%d records of the first act, want 1", records)
		}
		for range 3 {
			add(1000, "ann", "")
			add(10, "ben", "")
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		if records != 8 { // one and three of ann, one and three of ben
			t.Errorf("%d records, want 8", records)
		}
		mu.Lock()
		full = true
		mu.Unlock()
		add(5, "cleo", "")
		time.Sleep(20 * time.Second)
		mu.Lock()
		full = false
		mu.Unlock()
		for i := range 2000 {
			add(2, "", fmt.Sprint(i))
		}
		f.Close()
		if acts["ann/"] != 3001 || acts["ben/"] != 30 || acts["cleo/"] != 5 {
			t.Errorf("the records count %v", acts)
		}
		flood := 0
		for key, n := range acts {
			if key[0] == '/' {
				flood += n
			}
		}
		if flood != 4000 || len(acts) > 1030 {
			t.Errorf("%d acts of %d kinds, want 4000 of about 1024", flood, len(acts))
		}
	})
}
