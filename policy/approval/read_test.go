package approval_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func TestList(t *testing.T) {
	w := newWorld(t)
	names := map[string]string{}
	ask := func(name, subject, tenant string, roles ...string) string {
		h := transfer(fmt.Sprintf(`{"name":%q}`, name))
		h.Tool, h.Principal.Subject, h.Principal.Tenant, h.Approval.Roles, h.Approval.Quorum = "raw_"+name, subject, tenant, roles, 2
		if name == "b" || name == "d" {
			h.Server, h.Exposed = "bank", "bank__pay"
		}
		id := w.claim(h, approval.Pending).ID
		names[id] = name
		return id
	}
	a := ask("a", "agent", "", "approver")
	ask("b", "agent2", "", "approver", "cfo")
	c := ask("c", "agent", "", "cfo")
	d := ask("d", "agent", "acme", "approver")
	ask("e", "ann", "", "approver")
	w.decide(approval.Vote{ID: c, Approver: person("carl", "cfo"), Reason: "no"})
	w.approve(a, bob) // of two

	acme := policy.Principal{Subject: "ann", Roles: []string{"approver"}, Tenant: "acme"}
	for name, tt := range map[string]struct {
		filter approval.Filter
		want   string
	}{
		"everything, newest first":   {approval.Filter{}, "e d c b a"},
		"the newest two":             {approval.Filter{Limit: 2}, "e d"},
		"a limit beyond reason":      {approval.Filter{Limit: 1 << 30}, "e d c b a"},
		"a state":                    {approval.Filter{States: []approval.State{approval.StateDenied}}, "c"},
		"a requester":                {approval.Filter{Principal: "agent2"}, "b"},
		"a server":                   {approval.Filter{Server: "bank"}, "d b"},
		"a tool, as agents call it":  {approval.Filter{Tool: "bank__pay"}, "d b"},
		"a tool, as its server does": {approval.Filter{Tool: "raw_b"}, ""},
		"a server like SQL":          {approval.Filter{Server: "bank' OR 1 --"}, ""},
		"a server and a requester":   {approval.Filter{Server: "bank", Principal: "agent2"}, "b"},
		"a role":                     {approval.Filter{Roles: []string{"cfo"}}, "c b"},
		"any of two roles":           {approval.Filter{Roles: []string{"cfo", "approver"}}, "e d c b a"},
		"no role":                    {approval.Filter{Roles: []string{}}, ""},
		"a role like SQL":            {approval.Filter{Roles: []string{"cfo' OR 1 --", `"cfo"`, "%"}}, ""},
		"all at once":                {approval.Filter{States: []approval.State{approval.StateProposed}, Principal: "agent2", Roles: []string{"cfo"}}, "b"},
		"any of two states":          {approval.Filter{States: []approval.State{approval.StateDenied, approval.StateDone}}, "c"},
		"two states, all":            {approval.Filter{States: []approval.State{approval.StateDenied, approval.StateProposed}}, "e d c b a"},
		"no state":                   {approval.Filter{States: []approval.State{}}, ""},
		"older than one":             {approval.Filter{Before: d}, "c b a"},
		"the next page of two":       {approval.Filter{Before: d, Limit: 2}, "c b"},
		"older than nothing known":   {approval.Filter{Before: "apr_none"}, ""},
		"what awaits bob":            {approval.Filter{Awaiting: bob}, "e b"},
		"what awaits ann, her own":   {approval.Filter{Awaiting: ann}, "b a"},
		"what awaits a cfo":          {approval.Filter{Awaiting: person("carl", "cfo")}, "b"},
		"what awaits another tenant": {approval.Filter{Awaiting: acme}, "d"},
		"what awaits another role":   {approval.Filter{Awaiting: person("eve", "treasurer")}, ""},
		"what an approver sees":      {approval.Filter{Viewer: ann}, "e b a"},
		"what a requester sees":      {approval.Filter{Viewer: person("agent")}, "c a"},
		"what another role sees":     {approval.Filter{Viewer: person("eve", "treasurer")}, ""},
		"what another tenant sees":   {approval.Filter{Viewer: acme}, "d"},
		"an approver, one's own too": {approval.Filter{Viewer: person("agent", "approver")}, "e c b a"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := w.List(t.Context(), tt.filter)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range found {
				got = append(got, names[k.ID])
				if want := map[string]int{"a": 1}[names[k.ID]]; k.Approvals != want {
					t.Errorf("%s is listed with %d approvals, want %d", names[k.ID], k.Approvals, want)
				}
				if v := tt.filter.Viewer; v.Valid() && !k.VisibleTo(v) {
					t.Errorf("%s is listed for a viewer who may not see it", names[k.ID])
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if n, err := w.Held(t.Context()); err != nil || n != 4 {
		t.Errorf("%d held, %v; want 4", n, err)
	}
}

func TestListedArguments(t *testing.T) {
	w := newWorld(t)
	sized := func(n int) approval.Held { return transfer(`"` + strings.Repeat("x", n-2) + `"`) }
	w.claim(sized(approval.ListedArgumentBytes), approval.Pending)
	large := w.claim(sized(approval.ListedArgumentBytes+1), approval.Pending)
	found, err := w.List(t.Context(), approval.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, approval.ListedArgumentBytes} {
		if k := found[i]; len(k.Arguments) != want || k.ArgumentBytes != approval.ListedArgumentBytes+1-i {
			t.Errorf("listed %d of %d bytes, want %d", len(k.Arguments), k.ArgumentBytes, want)
		}
	}
	if got := w.get(large.ID); len(got.Arguments) != approval.ListedArgumentBytes+1 {
		t.Errorf("the ticket itself has %d bytes", len(got.Arguments))
	}
}

func TestGetOfNothing(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Get(t.Context(), "apr_none"); !errors.Is(err, approval.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}
