package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// TestPagesAreGenerated holds that the committed code of every page and text is what its source
// generates, and that no code is left of a source that is gone.
func TestPagesAreGenerated(t *testing.T) {
	for dir, least := range map[string]int{"console": 5, "console/page": 4, "console/people": 1, "console/tickets": 4, "cmd/toolgate/internal/cli": 1, "cmd/toolgate/internal/cli/connect": 1, "cmd/toolgate/internal/cli/policies": 1, "cmd/toolgate/internal/cli/records": 1, "cmd/toolgate/internal/cli/loginitem": 1} {
		dir := filepath.Join(corpus.Checkout(t), dir)
		sources, err := sourcesIn(dir)
		if err != nil || len(sources) < least {
			t.Fatalf("%s: %d sources, %v", dir, len(sources), err)
		}
		known := map[string]bool{}
		for _, source := range sources {
			known[generated(source)] = true
			want, err := generate(source)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(generated(source))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s is not what its source generates (make -f .ci/Makefile pages):\n%s", generated(source), diff)
			}
		}
		committed, err := filepath.Glob(filepath.Join(dir, "*_templ.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range committed {
			if !known[name] {
				t.Errorf("%s has no source", name)
			}
		}
	}
}
