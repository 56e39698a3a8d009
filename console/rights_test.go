package console_test

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

var update = flag.Bool("update", false, "write the table of rights")

// whole is a listener with everything that there is, and the rights of the default policy.
func whole(t *testing.T) *listener {
	t.Helper()
	a := newAccounts()
	l, _ := stopped(t, func(o *console.Options) {
		says := talker{adviser: new(adviser)}
		o.Connections, o.Connector = a, a
		o.Policy, o.Judge, o.Verify, o.Calls, o.Tools = says, says, says.verify, says, says
		o.Sessions, o.Limits, o.Tokens, o.Clients = guests{says}, says.limits, pouch{says}, says.clients
		o.Shadow, o.Anchors = says.shadow, says.anchors
		o.Export = func(context.Context, console.ExportQuery) (iter.Seq2[[]byte, error], error) {
			return func(func([]byte, error) bool) {}, nil
		}
		o.TrailRight, o.TraceURL = trailRight, "https://traces.example/{trace_id}"
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			if right == policy.ReadsArguments || right == policy.Exports {
				return p.Has("auditor"), nil
			}
			return p.Has("operator"), nil
		}
	})
	return l
}

var pathValue = regexp.MustCompile(`\{[a-z]+\}`)

// TestRights holds the table of every address and role against testdata/rights.txt: the status of a request
// without a body. 2xx and 4xx but 401 and 403 are for those who have the right.
func TestRights(t *testing.T) {
	roles := []string{"nobody", "t-agent", "t-ann", "t-audit", "t-oda"}
	var table strings.Builder
	fmt.Fprintf(&table, "%-60s %s\n", "", "nobody agent approver auditor operator")
	l := whole(t)
	routes := l.Routes()
	for _, path := range slices.Sorted(maps.Keys(routes)) {
		for _, method := range routes[path] {
			if strings.HasSuffix(path, "/events") || strings.HasSuffix(path, "/watch") {
				continue // they do not end
			}
			at := strings.NewReplacer("{$}", "", "{action}", "approve").Replace(path)
			at = pathValue.ReplaceAllString(at, "x")
			var statuses []string
			for _, who := range roles {
				b := newBrowser(l)
				var headers []string
				var form url.Values
				switch {
				case who == "nobody":
				case strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/debug/"):
					headers = as(who)
				default:
					b.signIn(who)
					if method == "POST" {
						form = b.form("/console/approvals")
					}
				}
				statuses = append(statuses, fmt.Sprint(b.do(method, at, form, headers...).Code))
			}
			fmt.Fprintf(&table, "%-60s %s\n", method+" "+path, strings.Join(statuses, " "))
		}
	}
	const file = "testdata/rights.txt"
	if *update {
		if err := os.WriteFile(file, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(table.String(), "\n")); diff != "" {
		t.Errorf("rights (-%s +now; -update writes it):\n%s", file, diff)
	}
}
