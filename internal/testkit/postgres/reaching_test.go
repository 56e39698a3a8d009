package postgres

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReaching(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": `package a
func TestDirect(t *testing.T) { postgres.State(t.Context(), "") }
func TestByFunction(t *testing.T) { t.Run("", func(t *testing.T) { open(t) }) }
func TestByMethod(t *testing.T) { w := world{}; w.begin() }
func TestByVariable(t *testing.T) { for _, c := range cases { c(t) } }
func TestNone(t *testing.T) { other() }
func TestField(t *testing.T) { _ = ticket{State: "open"}.State }
func ExampleState() { open(nil) }
func BenchmarkOpen(b *testing.B) { open(b) }`,
		"b_test.go": `package a_test
func (w world) begin() { open(w.t) }
func open(t testing.TB) { postgres.State(t.Context(), "") }
func other() {}
var cases = []func(*testing.T){ open }`,
		"product.go": `package a
func other() { postgres.State() }`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := reaching(dir, "postgres.State")
	want := []string{"ExampleState", "TestByFunction", "TestByMethod", "TestByVariable", "TestDirect"}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("found %v, %v, want %v", got, err, want)
	}
	if got, err := reaching(dir, "postgres.Absent"); err == nil {
		t.Errorf("found %v for a function that nothing calls", got)
	}
}
