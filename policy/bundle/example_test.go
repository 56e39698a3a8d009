package bundle_test

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

const example = "../../docs/example-policy/policy"

// TestExample holds that the example passes what its own workflow asks for.
func TestExample(t *testing.T) {
	parts.Long(t, "runs the tests of the example")
	_, slips, err := rego.Check(t.Context(), rego.Options{Path: example})
	slips = slices.DeleteFunc(slips, func(f rego.Finding) bool { return f.Code == "no-visible" })
	if err != nil || len(slips) > 0 {
		t.Errorf("check: %v, %v", slips, err)
	}
	report, err := workbench.Test(t.Context(), workbench.TestOptions{Policy: rego.Options{Path: example, Timeout: time.Minute}, Coverage: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Cases {
		if c.Outcome != workbench.Passed {
			t.Errorf("%s: %s %s", c.Name, c.Outcome, c.Message)
		}
	}
	if len(report.Cases) < 40 || report.Coverage.Percent < 100 {
		t.Errorf("%d tests reach %v %%", len(report.Cases), report.Coverage.Percent)
	}
}

// TestExampleLibrary holds that the library in the example is ours.
func TestExampleLibrary(t *testing.T) {
	ours, err := fs.Glob(bundle.Files, "lib/*")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadDir(path.Join(example, "lib"))
	if err != nil || len(ours) == 0 || len(theirs) != len(ours) {
		t.Fatalf("the example has %d files of the library, want %d: %v", len(theirs), len(ours), err)
	}
	for _, name := range ours {
		want, err := fs.ReadFile(bundle.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path.Join(example, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs from policy/bundle/%s: %v (hint: copy it)", path.Join(example, name), name, err)
		}
	}
}
