package limit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/apd/v3"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// A State is what is known of one bucket that is not full.
type State struct {
	Rule            string // which limit: "default", a rule's selectors, or "policy KEY"
	Tool            string // that the rule names, "" = none
	Subject, Tenant string // whose it is
	Rate            Rate
	Left            float64 // tokens
	Shared          bool    // other replicas spend from it too; Left is as this one knows
}

// States returns the buckets from which something is spent at a time, in no order. Of shared buckets it
// returns those that this process has used, as it knows them.
func (l *Limiter) States(now time.Time) (all []State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rules := make(map[any]*rule) // by the id that they have here, and by the name among replicas
	for _, r := range slices.Concat(l.rules, []*rule{l.fallback}) {
		if r != nil {
			rules[r.id], rules[r.shared] = r, r
		}
	}
	add := func(of any, policyKey string, s State) {
		s.Rule = "policy " + policyKey
		if r := rules[of]; r != nil {
			s.Rule, s.Tool = r.name, r.Tool
		}
		if s.Left = max(0, s.Left); s.Left < float64(s.Rate.Size()) {
			all = append(all, s)
		}
	}
	if l.shared != nil {
		for b, left := range l.shared.Left(now) {
			add(b.Rule, b.Key, State{Subject: b.Subject, Tenant: b.Tenant, Rate: b.Rate, Left: left, Shared: true})
		}
		return all
	}
	for _, key := range l.buckets.Keys() {
		b, _ := l.buckets.Peek(key) // which marks it as used by nobody
		add(key.rule, key.policyKey, State{Subject: key.subject, Tenant: key.tenant, Rate: b.rate, Left: b.tokens.TokensAt(now)})
	}
	return all
}

// A MeterState is what one meter of a tool stands at for one principal and, where it counts some values
// apart, for one row of those.
type MeterState struct {
	Subject, Tenant, Tool, Meter string
	Per                          json.RawMessage // array of the values that are counted apart
	Window                       time.Duration   // how far back it counted when the last call was counted
	Calls                        int64
	Sum                          json.Number // exact, in decimal digits

	last int64 // nanoseconds since 1970
}

// maxSlices bounds what States reads of the store.
const maxSlices = 50_000

// States returns what meters stand at for those who have used them, in no order, for all processes on the
// store. whole is false when there is more than it reads: then what was used first is left out.
func (u *Usage) States(ctx context.Context) (all []MeterState, whole bool, err error) {
	rows, err := store.Select(ctx, u.db.Read, func(s *MeterState) []any {
		return []any{&s.Subject, &s.Tenant, &s.Tool, &s.Meter, (*[]byte)(&s.Per), &s.last, (*int64)(&s.Window), &s.Calls, (*string)(&s.Sum)}
	}, "SELECT subject, tenant, tool, meter, per, ends, until - ends, calls, sum FROM usage WHERE until > ? ORDER BY until DESC LIMIT ?", u.now().UnixNano(), maxSlices+1)
	if err != nil {
		return nil, false, fmt.Errorf("reading usage: %w", err)
	}
	whole = len(rows) <= maxSlices
	type key struct{ subject, tenant, tool, meter, per string }
	at, sums := make(map[key]int), []*apd.Decimal{}
	for _, r := range rows[:min(len(rows), maxSlices)] {
		k := key{r.Subject, r.Tenant, r.Tool, r.Meter, string(r.Per)}
		i, known := at[k]
		if !known {
			i = len(all)
			at[k], all, sums = i, append(all, MeterState{Subject: r.Subject, Tenant: r.Tenant, Tool: r.Tool, Meter: r.Meter, Per: r.Per}), append(sums, new(apd.Decimal))
		}
		s := &all[i]
		if s.Calls += r.Calls; r.last >= s.last {
			s.last, s.Window = r.last, r.Window
		}
		one, _, err := exact.NewFromString(cmp.Or(r.Sum.String(), "0"))
		if err == nil {
			_, err = exact.Add(sums[i], sums[i], one)
		}
		if err != nil {
			return nil, false, fmt.Errorf("adding up meter %s: %w", r.Meter, err)
		}
		s.Sum = json.Number(plain(sums[i]))
	}
	return all, whole, nil
}

// A Budget is what one meter of a call reads: before the call, and with it.
type Budget struct {
	Meter        policy.Meter
	Per          json.RawMessage // array of the values that are counted apart
	Before, With policy.Reading
}

// Budgets returns what the meters that count a call read, in the order of the meters. A call that
// cannot be counted has none.
func (u *Usage) Budgets(ctx context.Context, use *Use) (all []Budget, err error) {
	before, err := u.Read(ctx, use)
	for _, s := range use.shares {
		if err != nil || use.fault != nil {
			return nil, err
		}
		b := Budget{Meter: s.meter, Per: json.RawMessage(s.per), Before: before[s.meter.Name]}
		b.With.Calls = b.Before.Calls + 1
		var sum apd.Decimal
		if _, _, err = exact.SetString(&sum, b.Before.Sum.String()); err == nil {
			_, err = exact.Add(&sum, &sum, s.amount)
		}
		b.With.Sum = json.Number(plain(&sum))
		all = append(all, b)
	}
	return all, err
}
