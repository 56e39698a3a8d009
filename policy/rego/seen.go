package rego

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/open-policy-agent/opa/v1/ast"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/policy"
)

// Bounds of what is known about visibility.
const (
	maxRightsSets = 1024    // of one engine; the least recently used is dropped
	maxSeenTools  = 1 << 16 // definitions; beyond them everything is forgotten
	lookedAtOnce  = 64      // tools by one goroutine
)

// sights remembers which tools each rights set sees: one bit for a tool and a
// rights set. Tools are numbered by their content, so that a new catalogue costs
// an evaluation only for what is new in it. It is safe for concurrent use.
type sights struct {
	mu      sync.Mutex // protects the fields below
	rights  *simplelru.LRU[string, *sight]
	owners  map[string]int // :: sight.owner ⇒ its rights sets
	numbers map[toolKey]int
}

// toolKey is what a policy can know of a tool.
type toolKey struct{ server, name, exposed, risk, fingerprint, annotations string }

// sight is what one rights set sees. The fields below turn belong to the holder
// of its element, so that of many clients that list at once one evaluates.
type sight struct {
	owner        string // principal without its client, where the policy reads the client; else ""
	turn         chan struct{}
	known, shown big.Int // bit by number of tool
}

func newSights() *sights {
	s := &sights{numbers: make(map[toolKey]int), owners: make(map[string]int)}
	s.rights, _ = simplelru.NewLRU(maxRightsSets, func(_ string, gone *sight) { // an error means a size below 1
		if s.owners[gone.owner]--; s.owners[gone.owner] == 0 {
			delete(s.owners, gone.owner)
		}
	})
	return s
}

// of returns what the principals with these rights see. A principal can claim any
// client, so what it sees beyond its share is not remembered.
func (s *sights) of(rights, owner string) *sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.rights.Get(rights); ok {
		return known
	}
	made := &sight{owner: owner, turn: make(chan struct{}, 1)}
	if owner == "" || s.owners[owner] < maxRightsSets/ownerShare {
		s.owners[owner]++
		s.rights.Add(rights, made)
	}
	return made
}

// number returns the numbers of tools, and false when there are too many.
func (s *sights) number(tools []policy.Tool) ([]int, bool) {
	out := make([]int, len(tools))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range tools {
		t := &tools[i]
		key := toolKey{t.Server, t.Name, t.Exposed, t.Risk, t.Fingerprint, string(t.Annotations)}
		n, ok := s.numbers[key]
		if !ok {
			n = len(s.numbers)
			s.numbers[key] = n
		}
		out[i] = n
	}
	return out, len(s.numbers) <= maxSeenTools
}

// Rights returns what the policy reads of p, in a form that is the same for two
// principals exactly when the policy cannot tell them apart. Claims says that it holds
// what the client says of itself, so that a principal can have any number of them.
func (e *Engine) Rights(p policy.Principal) (rights string, claims bool) {
	return string(e.pairs.reads.appendRights(make([]byte, 0, 128), &p)), e.pairs.reads.client
}

// Seen reports for each of tools whether p sees it, as Visible does. Each tool is
// judged once for a rights set and remembered. A tool that cannot be judged is
// hidden, and is judged again the next time; err is one of the causes.
func (e *Engine) Seen(ctx context.Context, p policy.Principal, tools []policy.Tool) (shown []bool, err error) {
	shown = make([]bool, len(tools))
	if !p.Valid() {
		return shown, errors.New("judging visibility: no principal")
	}
	all := e.sights.Load()
	rights, claims := e.Rights(p)
	owner := ""
	if claims {
		owner = p.Subject + "\x00" + p.Tenant
	}
	who := all.of(rights, owner)
	select {
	case who.turn <- struct{}{}:
		defer func() { <-who.turn }()
	case <-ctx.Done():
		return shown, ctx.Err()
	}
	numbers, fit := all.number(tools)
	if !fit {
		e.sights.CompareAndSwap(all, newSights())
	}
	principal, err := principalTerm(p)
	if err != nil {
		return shown, fmt.Errorf("judging visibility: %w", err)
	}
	var unknown []int // positions in tools
	for i, n := range numbers {
		if shown[i] = who.shown.Bit(n) == 1; who.known.Bit(n) == 0 {
			unknown = append(unknown, i)
		}
	}
	faults := make([]error, len(tools))
	var cores errgroup.Group
	cores.SetLimit(runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(unknown, lookedAtOnce) {
		cores.Go(func() error {
			for _, i := range part {
				shown[i], faults[i] = e.look(ctx, principal, &tools[i])
			}
			return nil
		})
	}
	_ = cores.Wait() // faults has the errors
	for _, i := range unknown {
		if faults[i] != nil {
			shown[i], err = false, fmt.Errorf("judging visibility of %s: %w", tools[i].Exposed, faults[i])
			continue
		}
		who.known.SetBit(&who.known, numbers[i], 1)
		if shown[i] {
			who.shown.SetBit(&who.shown, numbers[i], 1)
		}
	}
	return shown, err
}

// look judges one tool for a principal. What cannot be judged is hidden.
func (e *Engine) look(ctx context.Context, principal *ast.Term, t *policy.Tool) (bool, error) {
	tool, err := toolTerm(t)
	if err != nil {
		return false, err
	}
	known := &pair{principal: principal, tool: tool, facts: e.program.facts[t.Exposed]}
	if e.program.visible == nil {
		return e.mayServe(ctx, known)
	}
	return e.show(ctx, known)
}

// mayServe is show for a policy without the rule visible. A verdict that is no
// denial without a call spares the search for a constant one.
func (e *Engine) mayServe(ctx context.Context, known *pair) (bool, error) {
	d, err := e.close(e.evaluate(ctx, &policy.Input{}, known, e.timeout))
	if err != nil || d.Effect != policy.Deny {
		return true, ctx.Err()
	}
	return e.show(ctx, known)
}
