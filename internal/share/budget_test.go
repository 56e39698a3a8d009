package share_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolgate/toolgate/internal/share"
)

// Each row claims requests of a budget of 100 bytes, 25 for each owner: "a20" is 20 bytes of
// owner a, and "-a20" gives them back.
func TestRequestsOfABudget(t *testing.T) {
	for _, row := range []struct{ name, before, asks, want string }{
		{"an owner has its part", "a20", "a5", "taken"},
		{"and no more", "a20", "a6", "refused"},
		{"another owner has a part too", "a25", "b25", "taken"},
		{"all have the budget", "a25 b25 c25", "d25", "taken"},
		{"and no more", "a25 b25 c25 d20", "e6", "refused"},
		{"a large message fits an empty budget", "", "a400", "taken"},
		{"a message above the part fits while the owner has none", "b20", "a80", "taken"},
		{"but not beyond the budget", "b20", "a81", "refused"},
		{"what was given back is free", "a25 -a25 b25", "a25", "taken"},
	} {
		t.Run(row.name, func(t *testing.T) {
			budget := share.NewBudget(100, 25)
			claims := make(map[string]*share.Claim)
			ask := func(word string) bool {
				n := int64(0)
				for _, digit := range word[1:] {
					n = n*10 + int64(digit-'0')
				}
				claims[word] = new(share.Claim)
				return budget.Take(claims[word], share.Owner{Subject: word[:1]}, n)
			}
			for _, word := range strings.Fields(row.before) {
				if given, ok := strings.CutPrefix(word, "-"); ok {
					claims[given].Release()
				} else if !ask(word) {
					t.Fatalf("%s was refused", word)
				}
			}
			if got := map[bool]string{true: "taken", false: "refused"}[ask(row.asks)]; got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// A claim is given back when it was released as often as it was taken and held, and what
// the request did not need at once.
func TestRelease(t *testing.T) {
	budget, claim := share.NewBudget(100, 25), new(share.Claim)
	budget.Take(claim, share.Owner{}, 20)
	claim.Shrink(7)
	claim.Hold()
	claim.Release()
	if requests, _ := budget.Held(); requests != 7 {
		t.Errorf("%d bytes are held, want 7", requests)
	}
	claim.Release()
	if requests, answers := budget.Held(); requests != 0 || answers != 0 || claim.Hold() {
		t.Errorf("%d and %d bytes are held, want none", requests, answers)
	}
	if claim.Release(); claim.Grow(t.Context(), 1<<20) != nil { // of a request that was given up
		t.Error("an answer that nobody wants waits")
	}
	if requests, answers := budget.Held(); requests != 0 || answers != 0 {
		t.Errorf("%d and %d bytes are held after the end, want none", requests, answers)
	}
}

// Without a budget everything has room.
func TestNoBudget(t *testing.T) {
	var budget *share.Budget
	claim := new(share.Claim)
	if !budget.Take(claim, share.Owner{}, 1<<40) || claim.Grow(t.Context(), 1<<40) != nil || claim.Hold() {
		t.Error("nothing was to be counted")
	}
	claim.Release()
	claim = nil
	claim.Release()
	if text, err := io.ReadAll(claim.Reader(t.Context(), strings.NewReader("x"))); err != nil || string(text) != "x" {
		t.Errorf("read %q and %v", text, err)
	}
}

const mib = 1 << 20

// Answers wait until others have been delivered. One of them may exceed the budget, so that
// answers that have been read in part do not wait for each other, and one whose call ends
// waits no longer.
func TestAnswersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := share.NewBudget(10*mib, 10*mib)
		claims := make([]share.Claim, 4)
		for i := range claims {
			budget.Take(&claims[i], share.Owner{}, 1)
		}
		grown := make([]error, len(claims))
		grow := func(i int, ctx context.Context, n int) {
			grown[i] = errors.New("it waits")
			go func() { grown[i] = claims[i].Grow(ctx, n) }()
			synctest.Wait()
		}
		held := func(want int64) {
			t.Helper()
			if _, answers := budget.Held(); answers != want*mib {
				t.Errorf("answers hold %d bytes, want %d MiB", answers, want)
			}
		}
		grow(0, t.Context(), 6*mib)
		grow(1, t.Context(), 4*mib)
		held(10)
		grow(1, t.Context(), 6*mib) // beyond
		held(16)
		if grown[1] != nil {
			t.Errorf("no answer can be read to its end: %v", grown[1])
		}
		short, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		grow(2, t.Context(), 2*mib)
		grow(3, short, 2*mib)
		held(16)
		time.Sleep(time.Minute)
		if synctest.Wait(); !errors.Is(grown[3], context.DeadlineExceeded) {
			t.Errorf("the answer of a call that has ended: %v", grown[3])
		}
		claims[1].Release()
		synctest.Wait()
		held(8)
		if grown[2] != nil {
			t.Errorf("the answer that waited: %v", grown[2])
		}
		for i := range claims {
			claims[i].Release()
		}
		held(0)
	})
}

// The first bytes of an answer are not counted, and what was dropped is not either.
func TestSmallAnswers(t *testing.T) {
	budget, claim := share.NewBudget(mib, mib), new(share.Claim)
	budget.Take(claim, share.Owner{}, 1)
	for range 3 {
		if _, err := io.Copy(io.Discard, claim.Reader(t.Context(), strings.NewReader(strings.Repeat("x", share.SmallAnswer)))); err != nil {
			t.Fatal(err)
		}
		if _, answers := budget.Held(); answers != 0 {
			t.Errorf("a small answer holds %d bytes", answers)
		}
		_ = claim.Grow(t.Context(), 1000)
		if _, answers := budget.Held(); answers != 1000 {
			t.Errorf("a larger one holds %d bytes, want 1000", answers)
		}
		claim.Drop()
	}
}
