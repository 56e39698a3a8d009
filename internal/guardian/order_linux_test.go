package guardian_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/guardian"
)

func TestOrderRoundTrip(t *testing.T) {
	for name, o := range map[string]guardian.Order{
		"nothing": {},
		"all": {
			Namespaces: true, Files: true, Scopes: true, Filter: true, PIDs: true, Group: true,
			Hide: []string{"/b", "/a b", "/--", "/c=d"}, Keep: []string{"/b/tools"}, ReadOnly: []string{"/bin/x"},
			Limits: map[string]uint64{"nofile": 256, "as": 1 << 40, "core": 0},
		},
	} {
		command := []string{"/bin/server", "--hide=/etc", "--", "-x"}
		got, rest, err := guardian.Parse(o.Args(command))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if o.Limits == nil {
			o.Limits = map[string]uint64{}
		}
		if diff := cmp.Diff(&o, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if !slices.Equal(rest, command) {
			t.Errorf("%s: command %q", name, rest)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"", "no command"},
		{"--scopes --", "no command"},
		{"--nothing -- x", "not defined"},
		{"--limit=sleep=1 -- x", `no resource limit "sleep"`},
		{"--limit=nofile -- x", "invalid syntax"},
		{"--limit=nofile=-1 -- x", "invalid syntax"},
		{"--try=perhaps -- x", "invalid boolean"},
	} {
		if _, _, err := guardian.Parse(strings.Fields(tc.args)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
}

// Whatever is parsed means the same when it is written again.
func FuzzOrder(f *testing.F) {
	f.Add("--hide=/a\n--limit=core=0\n--\n/bin/sh\n-c\nx")
	f.Add("--try")
	f.Fuzz(func(t *testing.T, text string) {
		o, command, err := guardian.Parse(strings.Split(text, "\n"))
		if err != nil {
			if o != nil || command != nil {
				t.Fatalf("an order with error %v", err)
			}
			return
		}
		again, rest, err := guardian.Parse(o.Args(command))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(o, again); diff != "" {
			t.Error(diff)
		}
		if !slices.Equal(command, rest) {
			t.Errorf("command %q, then %q", command, rest)
		}
	})
}
