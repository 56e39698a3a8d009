package share_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/share"
)

// holder is a holder for tests.
type holder struct {
	state   share.State
	used    int64
	evicted bool
}

func (h *holder) State() share.State { return h.state }
func (h *holder) Used() int64        { return h.used }
func (h *holder) Evict()             { h.evicted = true }

// Each table row is a pool of four places. Words before the bar hold them, in the order
// of their use: an owner, and i for idle, p for pinned, b for busy. The word behind it
// asks: then the pool has what is expected, and ? asks in vain.
func TestWhoGivesUpAPlace(t *testing.T) {
	for _, row := range []struct{ name, before, asks, want string }{
		{"there is room", "ab ab ab", "b", "a a a b"},
		{"an owner who is alone may have every place", "ab ab ab", "a", "a a a a"},
		{"all are busy: who asks waits", "ab ab ab ab", "b", "a a a a ?"},
		{"the idle one of who has the most goes first", "bi ai ab ab", "c", "b a a c"},
		{"also when it was used last", "ci bi ab ai", "d", "c b a d"},
		{"of two owners with as many the one who asks", "bi bb ai ab", "a", "b b a a"},
		{"of one owner the place used longest ago", "ai ai ab ab", "a", "a a a a"},
		{"an idle one of another goes when the most are busy", "ab ab ab bi", "c", "a a a c"},
		{"a pinned one goes to who has fewer", "ap ap ap bp", "c", "a a b c"},
		{"a pinned one stays for who has as many", "ap ap bp bp", "a", "a a b b ?"},
		{"a pinned one stays where the other would then have more", "ap ap bp cp", "b", "a a b c ?"},
		{"a pinned one of one's own stays", "ap ap ap ap", "a", "a a a a ?"},
		{"an idle one goes before a pinned one", "ap ap ap bi", "c", "a a a c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			pool := share.New[string](4)
			var owners []string
			var holders []*holder
			var places []*share.Place[string]
			ask := func(owner string, state share.State) {
				h := &holder{state: state, used: int64(len(holders))}
				owners, holders, places = append(owners, owner), append(holders, h), append(places, pool.Claim(owner, h))
			}
			for _, word := range strings.Fields(row.before) {
				ask(word[:1], map[byte]share.State{'i': share.Idle, 'p': share.Pinned, 'b': share.Busy}[word[1]])
			}
			ask(row.asks, share.Busy)
			var got []string
			for i, h := range holders {
				select {
				case <-places[i].Granted():
					if !h.evicted {
						got = append(got, owners[i])
					}
				default:
					got = append(got, "?")
				}
			}
			if got := strings.Join(got, " "); got != row.want {
				t.Errorf("the places are %s, want %s", got, row.want)
			}
		})
	}
}

// One place of the owner who has the most is marked for who waits, and given to it when
// it is idle, before any request of an owner who has more.
func TestWaiting(t *testing.T) {
	pool := share.New[string](2)
	first, second := &holder{state: share.Busy}, &holder{state: share.Busy, used: 1}
	one, two := pool.Claim("hog", first), pool.Claim("hog", second)
	more := pool.Claim("hog", &holder{})
	mine := pool.Claim("agent", &holder{state: share.Busy})
	if !one.Leaving() || two.Leaving() {
		t.Errorf("leaving: %v %v, want the one used longest ago", one.Leaving(), two.Leaving())
	}
	pool.Settle()
	if granted(more) || granted(mine) {
		t.Error("a place was granted while all are busy")
	}
	second.state = share.Idle // any place will do
	pool.Settle()
	if !granted(mine) || granted(more) || !second.evicted || first.evicted || one.Leaving() {
		t.Errorf("granted: agent %v, hog %v; evicted %v %v; leaving %v", granted(mine), granted(more), first.evicted, second.evicted, one.Leaving())
	}
	mine.Release()
	mine.Release()
	if !granted(more) {
		t.Error("the hog does not get the place that nobody else wants")
	}
	two.Release() // it was evicted
	if pool.Claim("agent", &holder{}); first.evicted {
		t.Error("a busy place was taken away")
	}
}

// A request that is withdrawn marks nobody any longer.
func TestWithdrawn(t *testing.T) {
	pool := share.New[string](2)
	one := pool.Claim("hog", &holder{state: share.Busy})
	two := pool.Claim("hog", &holder{state: share.Busy, used: 1})
	other := pool.Claim("agent", &holder{})
	if !one.Leaving() {
		t.Error("no place is marked")
	}
	other.Release()
	if one.Leaving() || two.Leaving() {
		t.Error("a place leaves for nobody")
	}
	one.Release()
	if granted(other) {
		t.Error("a withdrawn request was granted")
	}
}

func granted(p *share.Place[string]) bool {
	select {
	case <-p.Granted():
		return true
	default:
		return false
	}
}

// Whatever happens, no more than all places are held, busy ones are not taken away, and
// nobody waits while there is room or an idle place.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		most := 1 + rnd.IntN(5)
		pool := share.New[string](most)
		held := map[*share.Place[string]]*holder{}
		for step := range 200 {
			switch rnd.IntN(4) {
			case 0, 1:
				h := &holder{state: share.State(rnd.IntN(3)), used: int64(step)}
				held[pool.Claim(fmt.Sprint(rnd.IntN(4)), h)] = h
			case 2:
				for p := range held {
					p.Release()
					delete(held, p)
					break
				}
			case 3:
				for _, h := range held {
					h.state = share.State(rnd.IntN(3))
					pool.Settle()
					break
				}
			}
			has, idle, waits := 0, 0, 0
			for p, h := range held {
				switch {
				case h.evicted && h.state == share.Busy:
					t.Fatalf("seed %d, step %d: a busy place was taken away", seed, step)
				case h.evicted:
					delete(held, p)
				case !granted(p):
					waits++
				default:
					has++
					if h.state == share.Idle {
						idle++
					}
				}
			}
			if has > most || waits > 0 && (has < most || idle > 0) {
				t.Fatalf("seed %d, step %d: %d of %d places held, %d idle, %d wait", seed, step, has, most, idle, waits)
			}
		}
	}
}

// Without a bound every request is granted.
func TestUnbounded(t *testing.T) {
	pool := share.New[string](0)
	for range 1000 {
		if !granted(pool.Claim("a", &holder{state: share.Busy})) || pool.Full() {
			t.Fatal("no place")
		}
	}
}

func ExamplePool() {
	connections := share.New[string](2)
	first := &holder{state: share.Idle}
	connections.Claim("agent-1", first)
	connections.Claim("agent-1", &holder{state: share.Busy})
	third := connections.Claim("agent-2", &holder{state: share.Busy})
	<-third.Granted()
	fmt.Println(first.evicted)
	// Output: true
}
