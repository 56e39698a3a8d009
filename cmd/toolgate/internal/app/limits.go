package app

import (
	"context"
	"math"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/limit"
)

// limitsNow returns what is used of rate limits and meters, and whether that is all.
func (d *desk) limitsNow(ctx context.Context) (all []console.Limit, whole bool, err error) {
	now := time.Now()
	for kind, l := range map[string]*limit.Limiter{console.LimitRate: d.limits, console.LimitRefused: d.refused} {
		for _, s := range l.States(now) {
			one := console.Limit{
				Kind: kind, Rule: s.Rule, Principal: s.Subject, Tenant: s.Tenant, Tool: s.Tool, Limit: s.Rate.String(), Size: s.Rate.Size(),
				Used: int64(math.Ceil(float64(s.Rate.Size()) - s.Left)), Known: console.KnownProcess,
			}
			if s.Shared {
				one.Known = console.KnownReplicas
			}
			all = append(all, one)
		}
	}
	meters, whole, err := limit.NewUsage(d.state.db, nil).States(ctx)
	for _, m := range meters {
		all = append(all, console.Limit{
			Kind: console.LimitMeter, Rule: m.Meter, Principal: m.Subject, Tenant: m.Tenant, Tool: m.Tool,
			Used: m.Calls, Sum: m.Sum, Per: m.Per, Window: text.Duration(m.Window), Known: console.KnownAll,
		})
	}
	return all, whole, err
}
