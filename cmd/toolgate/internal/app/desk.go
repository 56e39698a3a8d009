package app

import (
	"context"
	"encoding/json"
	"math"
	"math/big"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/policy/limit"
)

// A desk answers what people ask at the admin listener. It is safe for concurrent use.
type desk struct {
	*serving
	state           *state
	limits, refused *limit.Limiter
}

// brief returns what people are told of a held call in addition to its ticket.
func (d *desk) brief(ctx context.Context, k approval.Ticket) (tickets.Briefing, error) {
	b := tickets.Briefing{Waiting: d.state.tickets.Awaited(k.ID)}
	if s := d.Config().Server(k.Server); s != nil {
		b.Risk, b.Notice = s.Risk, s.Notice
	}
	for _, t := range d.upstreams.Catalogue().Definitions() {
		if t.Server == k.Server && t.Name == k.Tool && t.Fingerprint == k.Fingerprint {
			b.Offered = true
			b.Description, _ = jsonrpc.TextAt(t.Definition, "description")
		}
	}
	switch k.State {
	case approval.StateProposed, approval.StateApproved, approval.StateNeedsConnection:
		var err error
		b.Budgets, err = d.budgets(ctx, k)
		return b, err
	}
	return b, nil
}

// budgets returns what the meters of the present policy read before and with a held call.
func (d *desk) budgets(ctx context.Context, k approval.Ticket) (all []tickets.Budget, err error) {
	engine := d.policy.current()
	meters := engine.Meters(policy.Tool{Exposed: k.Exposed})
	if len(meters) == 0 {
		return nil, nil
	}
	use, _ := limit.Measure(k.Principal, k.Exposed, k.Digest, k.Arguments, meters)
	if use == nil { // something other than toolgate changed the arguments, which the ticket says
		return nil, nil
	}
	found, err := limit.NewUsage(d.state.db, nil).Budgets(ctx, use)
	for _, m := range found {
		b := tickets.Budget{Meter: m.Meter.Name, Window: text.Duration(m.Meter.Window), Adds: m.Meter.Sum, Before: m.Before, With: m.With}
		var per []json.RawMessage
		if json.Unmarshal(m.Per, &per) == nil && len(m.Meter.Per) > 0 {
			b.Per, _ = json.Marshal(per[:len(m.Meter.Per)]) // what follows names a fact that is added up
		}
		if facts := engine.Facts(k.Exposed); facts.Declared(m.Meter.Sum).Kind == fact.Amount {
			amount := facts.Declared(m.Meter.Sum)
			b.Asset, _ = jsonrpc.TextAt(json.RawMessage(facts.Of(k.Arguments)), amount.Asset)
			b.Before.Sum, b.With.Sum = inWhole(b.Before.Sum, amount.Decimals[b.Asset]), inWhole(b.With.Sum, amount.Decimals[b.Asset])
		}
		all = append(all, b)
	}
	return all, err
}

// inWhole returns a sum of smallest units in whole units of an asset.
func inWhole(units json.Number, decimals int) json.Number {
	if n, ok := new(big.Int).SetString(units.String(), 10); ok {
		return json.Number(text.Decimal(n, decimals))
	}
	return units
}

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

// entries returns the address of the agents' listener, and what enters it into the file of each client.
// The entries hold no token: they name a variable.
func (d *desk) entries() (address string, all []console.Client) {
	cfg := d.Config()
	at := clients.Address{URL: AgentsURL(cfg) + "/mcp", Command: "toolgate"}
	if !admitsLocal(cfg) && len(cfg.Identity.JWT) == 0 { // at an issuer, the client signs in by itself
		at.Token = "${TOOLGATE_TOKEN}"
	}
	for _, c := range clients.Clients() {
		entry, err := c.Entry(at)
		if err != nil {
			continue // it calls no servers
		}
		var text []byte
		value, err := json.Marshal(entry)
		if err == nil {
			text, err = clientfile.Apply(c.Format, nil, clientfile.Edit{Container: c.Container, Key: c.List, Name: "toolgate", Value: value})
		}
		if err != nil {
			d.log.Warn("writing the entry of a client", "client", c.ID, "error", err)
			continue
		}
		all = append(all, console.Client{ID: c.ID, Name: c.Name, Text: string(text)})
	}
	return at.URL, all
}
