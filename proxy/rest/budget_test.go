package rest_test

import (
	"net/http"
	"testing"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/proxy/rest"
)

// A body without room is refused before it is read, as OVERLOADED in the form of its route.
func TestBodiesBeyondTheBudget(t *testing.T) {
	budget, full := share.NewBudget(1<<20, 1<<19), new(share.Claim)
	d := open(t, func(_ *gate, o *rest.Options) { o.Budget = budget })
	if !budget.Take(full, share.Owner{Subject: "alice"}, 1<<19) {
		t.Fatal("no room")
	}
	const job = `{"query":"q"}`
	for path, member := range map[string]string{"/v1/jobs": "/code", "/v1/rpc": "/error/data/code"} {
		got := d.do("alice", http.MethodPost, path, job)
		if got.status != http.StatusServiceUnavailable || got.head.Get("Retry-After") != "1" || got.text(member) != "OVERLOADED" {
			t.Errorf("%s: %d %v %s", path, got.status, got.head, got.body)
		}
	}
	if got := d.do("alice", http.MethodPost, "/v1/jobs", job); got.text("/status") != "503" {
		t.Errorf("the status in the body: %s", got.body)
	}
	if got := d.do("alice", http.MethodPost, "/v1/rpc", job); got.text("/id") != "null" {
		t.Errorf("the id in the body: %s", got.body)
	}
	if got := d.job("bob", job); got.status != http.StatusOK {
		t.Errorf("somebody else: %d %s", got.status, got.body)
	}
	full.Release()
	if got := d.job("alice", job); got.status != http.StatusOK {
		t.Errorf("when there is room again: %d %s", got.status, got.body)
	}
	await(t, "nothing is held in the end", func() bool { // an answer may arrive before its handler has ended
		requests, answers := budget.Held()
		return requests == 0 && answers == 0
	})
}
