package upstream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// The last lines of stderr are kept, each up to a bound, and without the secrets that the server was
// given.
func TestStderr(t *testing.T) {
	t.Parallel()
	const script = `for i in $(seq 30); do echo line $i; done >&2; printf 'no bank at %s %0600d\n' "$KEY" 0 >&2; exec cat`
	r := start(t, config.Server{Name: "bank", Type: config.TypeStdio, Command: "sh", Args: []string{"-c", script}, Env: map[string]string{"KEY": "canary-secret"}}, upstream.Options{})
	var want []string
	for i := range 19 {
		want = append(want, fmt.Sprintf("line %d", i+12))
	}
	want = append(want, ("no bank at [redacted] " + strings.Repeat("0", 600))[:500])
	program.Await(t, "stderr is read", func() bool { return len(r.Stderr()) == 20 && strings.HasPrefix(r.Stderr()[19], "no bank") })
	if got := r.Stderr(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
