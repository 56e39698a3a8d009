package schema_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/schema"
)

// TestForms: of many schemas the latest compiled forms are kept, and one that was
// dropped judges as before.
func TestForms(t *testing.T) {
	const fault = `{"n":-1}`
	var all []*schema.Schema
	for i := range schema.MaxKept/2 + 100 { // two subschemas each
		all = append(all, mustCompile(t, fmt.Sprintf(`{"properties":{"n":{"minimum":%d}}}`, i)))
	}
	runtime.GC()
	if all[0].Kept() || all[90].Kept() || !all[110].Kept() || !all[len(all)-1].Kept() {
		t.Errorf("of %d forms, the first is kept: %v, the last: %v", len(all), all[0].Kept(), all[len(all)-1].Kept())
	}
	want, err := all[0].Validate(json.RawMessage(fault))
	if err != nil || len(want) != 1 || want[0].Want != "at least 0" {
		t.Fatal(want, err)
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for i := range 100 {
				got, err := all[i%10].ValidateAccepted(json.RawMessage(fault))
				if err != nil || len(got) != 1 || i%10 == 0 && cmp.Diff(want, got) != "" {
					t.Error(got, err)
				}
			}
		})
	}
	clients.Wait()
}
