package approval_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy/approval"
)

// The package comment draws every move; Moves has them. Neither has more.
func TestTheDrawnMovesAreTheMoves(t *testing.T) {
	source, err := os.ReadFile("approval.go")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[approval.State][]approval.State{}
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z_]+) +([a-z_]+) {2,}\S`).FindAllSubmatch(source, -1) {
		if from := approval.State(m[1]); from != "from" {
			drawn[from] = append(drawn[from], approval.State(m[2]))
		}
	}
	if len(drawn) == 0 {
		t.Fatal("no move is drawn")
	}
	known := map[approval.State][]approval.State{}
	for _, s := range approval.States() {
		if moves := approval.Moves(s); moves != nil {
			known[s] = moves
		}
	}
	order := cmp.Transformer("set", func(l []approval.State) map[approval.State]bool {
		set := map[approval.State]bool{}
		for _, s := range l {
			set[s] = true
		}
		return set
	})
	if diff := cmp.Diff(known, drawn, order); diff != "" {
		t.Errorf("moves (-code +comment):\n%s", diff)
	}
}

// Each story is a ticket's life step by step; after each step the next
// identical call gets the outcome on the right.
func TestLives(t *testing.T) {
	const (
		approve = "approve"
		deny    = "deny"
		done    = "done"
		failed  = "failed"
		unknown = "unknown"
		release = "release"
		late    = "late"        // the ticket's life passes
		took    = "took effect" // a person's finding
		not     = "did not"
		over    = "superseded"
	)
	type step struct {
		do   string
		want approval.ClaimOutcome
	}
	for name, steps := range map[string][]step{
		"approved, runs, replays":      {{approve, approval.Granted}, {done, approval.Replay}, {"", approval.Replay}, {late, approval.Pending}},
		"fails, is not armed again":    {{approve, approval.Granted}, {failed, approval.Failed}, {"", approval.Failed}, {late, approval.Pending}},
		"unknown, is not armed again":  {{approve, approval.Granted}, {unknown, approval.Unknown}, {"", approval.Unknown}, {late, approval.Pending}},
		"unknown, took effect":         {{approve, approval.Granted}, {unknown, approval.Unknown}, {took, approval.Replay}, {late, approval.Pending}},
		"unknown, did not":             {{approve, approval.Granted}, {unknown, approval.Unknown}, {not, approval.Failed}, {late, approval.Pending}},
		"found out after its expiry":   {{approve, approval.Granted}, {unknown, ""}, {late, ""}, {not, approval.Pending}},
		"superseded while it waits":    {{over, approval.Pending}},
		"superseded when approved":     {{approve, ""}, {over, approval.Pending}},
		"denied":                       {{deny, approval.Denied}, {"", approval.Denied}, {late, approval.Pending}},
		"nobody decides":               {{late, approval.Expired}, {"", approval.Pending}},
		"approved too late to be used": {{approve, ""}, {late, approval.Expired}, {"", approval.Pending}},
		"released, runs later":         {{approve, approval.Granted}, {release, approval.Granted}, {done, approval.Replay}},
		"released after its expiry":    {{approve, approval.Granted}, {late, approval.InFlight}, {release, approval.Expired}, {"", approval.Pending}},
		"finished after its expiry":    {{approve, approval.Granted}, {late, approval.InFlight}, {done, approval.Pending}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.claim(transfer(hundred), approval.Pending)
			for _, s := range steps {
				switch s.do {
				case approve:
					w.approve(k.ID, ann)
				case deny:
					w.deny(k.ID, ann)
				case done, failed, unknown:
					w.finish(k.ID, approval.State(s.do), answer, "")
				case release:
					if err := w.Release(t.Context(), k.ID); err != nil {
						t.Fatal(err)
					}
				case took, not:
					if _, err := w.Reconcile(t.Context(), approval.Finding{ID: k.ID, Approver: ann, TookEffect: s.do == took, Reason: "x"}); err != nil {
						t.Fatal(err)
					}
				case over:
					if err := w.Supersede(t.Context(), k.ID, "", "x"); err != nil {
						t.Fatal(err)
					}
				case late:
					w.pass(10 * time.Minute)
				}
				if s.want == "" {
					continue
				}
				got := w.claim(transfer(hundred), s.want)
				if s.want == approval.Pending && got.ID == k.ID {
					t.Error("the old ticket answered, a new one was due")
				}
			}
		})
	}
}
