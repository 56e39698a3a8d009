package approval_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// Live and Runnable are about the tickets of this instance and of dead ones;
// what another living process made is its own to judge and to run.
func TestLiveAndRunnable(t *testing.T) {
	w := newWorld(t)
	gone, err := openTickets(t, w.path, approval.Options{Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	makers := map[string]*approval.Tickets{"ours": w.Tickets, "theirs": w.open(approval.Options{}), "gone": gone}
	names := map[string]string{}
	for _, maker := range []string{"ours", "theirs", "gone"} {
		for _, kind := range []string{"waiting", "approved", "runs", "denied", "large"} {
			name := maker + " " + kind
			held := transfer(fmt.Sprintf(`{"name":%q}`, name))
			held.Execute = kind == "runs"
			if kind == "large" {
				args(`{"name":"` + name + strings.Repeat("x", approval.ListedArgumentBytes) + `"}`)(&held)
			}
			k := claimOn(t, makers[maker], held, approval.Pending)
			names[k.ID] = name
			switch kind {
			case "approved", "runs":
				w.approve(k.ID, ann)
			case "denied":
				w.deny(k.ID, ann)
			}
		}
	}
	list := func(find func() ([]approval.Ticket, error)) (got []string) {
		t.Helper()
		found, err := find()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range found {
			got = append(got, names[k.ID])
			if len(k.Arguments) != k.ArgumentBytes || digest(string(k.Arguments)) != k.Digest {
				t.Errorf("%s comes with %d of %d bytes", names[k.ID], len(k.Arguments), k.ArgumentBytes)
			}
		}
		return got
	}
	live := func() ([]approval.Ticket, error) { return w.Live(t.Context()) }
	runnable := func() ([]approval.Ticket, error) { return w.Runnable(t.Context()) }
	if diff := cmp.Diff([]string{"ours waiting", "ours approved", "ours runs", "ours large"}, list(live)); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ours runs"}, list(runnable)); diff != "" {
		t.Errorf("runnable (-want +got):\n%s", diff)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ours waiting", "ours approved", "ours runs", "ours large",
		"gone waiting", "gone approved", "gone runs", "gone large"}, list(live)); diff != "" {
		t.Errorf("live, after a death (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ours runs", "gone runs"}, list(runnable)); diff != "" {
		t.Errorf("runnable, after a death (-want +got):\n%s", diff)
	}
	held := transfer(`{"name":"ours runs"}`)
	w.claim(held, approval.Granted)
	if diff := cmp.Diff([]string{"gone runs"}, list(runnable)); diff != "" {
		t.Errorf("runnable, after one was spent (-want +got):\n%s", diff)
	}
	w.pass(10 * time.Minute)
	if got := append(list(live), list(runnable)...); len(got) != 0 {
		t.Errorf("after their time: %v", got)
	}
}

// A requester is told of the tickets that would answer the call, and of nobody
// else's.
func TestAnswering(t *testing.T) {
	w := newWorld(t)
	states := []approval.State{approval.StateProposed, approval.StateApproved, approval.StateDone, approval.StateFailed, approval.StateUnknown}
	names := map[string]string{}
	for _, s := range states {
		held := transfer(fmt.Sprintf(`{"to":%q}`, s))
		k := w.claim(held, approval.Pending)
		w.lead(held, k.ID, s)
		names[k.ID] = string(s)
	}
	running := w.claim(transfer(`{"to":"dispatching"}`), approval.Pending)
	w.approve(running.ID, ann)
	w.claim(transfer(`{"to":"dispatching"}`), approval.Granted)
	names[running.ID] = "dispatching"
	names[w.deny(w.claim(transfer(`{"to":"denied"}`), approval.Pending).ID, ann).ID] = "denied"
	gone := w.claim(transfer(`{"to":"superseded"}`), approval.Pending)
	if err := w.Supersede(t.Context(), gone.ID, "", "x"); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*approval.Held){
		func(h *approval.Held) { h.Principal.Subject = "agent2" }, func(h *approval.Held) { h.Principal.Tenant = "acme" },
	} {
		h := transfer(hundred)
		change(&h)
		w.claim(h, approval.Pending)
	}
	list := func(p policy.Principal) string {
		t.Helper()
		found, err := w.Answering(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range found {
			got = append(got, names[k.ID])
			if k.State == approval.StateDone && string(k.Result) != answer {
				t.Errorf("the result comes as %s", k.Result)
			}
		}
		return strings.Join(got, " ")
	}
	agent := person("agent", "whatever")
	if diff := cmp.Diff("denied dispatching unknown failed done approved proposed", list(agent)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, p := range []policy.Principal{ann, {}, {Tenant: "acme"}} {
		if got := list(p); got != "" {
			t.Errorf("%q is told of %s", p.Subject, got)
		}
	}
	w.pass(10 * time.Minute)
	if diff := cmp.Diff("dispatching", list(agent)); diff != "" {
		t.Errorf("after their time (-want +got):\n%s", diff)
	}
}

func TestSimilar(t *testing.T) {
	w := newWorld(t)
	ask := func(n int, change func(*approval.Held)) string {
		h := transfer(fmt.Sprintf(`{"n":%d}`, n))
		change(&h)
		return w.claim(h, approval.Pending).ID
	}
	same := func(*approval.Held) {}
	first := ask(1, same)
	want := func(what, id, of string) {
		t.Helper()
		got, err := w.Similar(t.Context(), of)
		if of == "" || id == "" {
			if !errors.Is(err, approval.ErrNotFound) {
				t.Errorf("%s: %s, %v", what, got.ID, err)
			}
			return
		}
		if err != nil || got.ID != id || len(got.Arguments) == 0 {
			t.Errorf("%s: %s, %v; want %s", what, got.ID, err, id)
		}
	}
	want("nothing before it", "", first)
	want("no such ticket", "", "apr_none")
	second := ask(2, func(h *approval.Held) {
		h.Principal.Subject, h.Fingerprint, h.Revision = "agent2", "sha256:f9", "sha256:r9"
	})
	want("the one before is not approved", "", second)
	w.approve(first, ann)
	want("approved", first, second)
	want("not itself", "", first)
	w.claim(transfer(`{"n":1}`), approval.Granted)
	w.finish(first, approval.StateFailed, "", "boom")
	want("approved, whatever became of it", first, second)
	w.deny(second, ann)
	third := ask(3, same)
	want("a denied one between", first, third)
	for i, change := range []func(*approval.Held){
		func(h *approval.Held) { h.Server = "x" }, func(h *approval.Held) { h.Tool = "x" },
		func(h *approval.Held) { h.Exposed = "x" }, func(h *approval.Held) { h.Principal.Tenant = "acme" },
	} {
		id := ask(10+i, change)
		want("of another tool or tenant", "", id)
		approver := ann
		approver.Tenant = w.get(id).Principal.Tenant
		w.approve(id, approver)
	}
	want("others between", first, third)
	expired := ask(20, same)
	w.approve(expired, ann)
	fourth := ask(21, same)
	w.pass(time.Hour)
	want("approved, and never called", expired, fourth)
	want("a later one", first, third)
}
