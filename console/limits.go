package console

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// The kinds of a [Limit].
const (
	LimitRate    = "rate"    // of calls
	LimitRefused = "refused" // of records of refused calls
	LimitMeter   = "meter"   // that the policy reads, and that ends nothing by itself
)

var limitKinds = []string{LimitRate, LimitRefused, LimitMeter}

// A Limit is what one principal has used of one rate limit or meter. A bucket of which nothing is used is
// none.
type Limit struct {
	Kind      string          `json:"kind"` // one of the constants
	Rule      string          `json:"rule"` // "default", the selectors of a rule, "policy KEY", or the name of a meter
	Principal string          `json:"principal"`
	Tenant    string          `json:"tenant,omitempty"`
	Tool      string          `json:"tool,omitempty"`  // exposed name, "" = several
	Limit     string          `json:"limit,omitempty"` // of a rate, as in 60/1m
	Size      int             `json:"size,omitempty"`  // of a rate: calls at once
	Used      int64           `json:"used"`            // calls
	Sum       json.Number     `json:"sum,omitempty"`   // of a meter
	Per       json.RawMessage `json:"per,omitempty"`   // of a meter: array of the values that are counted apart
	Window    string          `json:"window,omitempty"`
	// Known says whose use it is: of this process, of all replicas as this one knows it, or all of it.
	Known string `json:"known"`
}

// The values of Limit.Known.
const (
	KnownProcess  = "process"
	KnownReplicas = "replicas"
	KnownAll      = "all"
)

// limits are the pages about what is used of rate limits and meters.
type limits struct {
	*people.Site
	used func(ctx context.Context) (all []Limit, whole bool, err error) // Options.Limits
}

// Routes are the routes of limits.
func (l *limits) Routes(g *people.Guard) page.Routes {
	return page.Routes{
		limitsPath:   {http.MethodGet: g.Visit(people.Shows(l.page))},
		"/v1/limits": {http.MethodGet: g.As(page.Answers(l.list))},
	}
}

// order returns a key that sorts limits: the nearest to the end first, then meters, the most used first.
func (l Limit) order() string {
	key := fmt.Sprintf("1 %020d", math.MaxInt64-l.Used)
	if l.Size > 0 {
		key = fmt.Sprintf("0 %07d", (int64(l.Size)-l.Used)*1_000_000/int64(l.Size))
	}
	per := sha256.Sum256(l.Per) // who may not read arguments gets cursors too
	return strings.Join([]string{key, l.Kind, l.Rule, l.Principal, l.Tenant, l.Tool, string(per[:])}, "\x00")
}

// ask returns the limits for which r asks, as p may see them. The values that meters count apart are
// arguments of calls: p sees them with the right to read those.
func (l *limits) ask(r *http.Request, p policy.Principal) (d limitsPage, err error) {
	var part page.Paging
	if err := page.ReadQuery(r.URL, part.Parameters(map[string]func(string) error{
		"principal": page.String(&d.Principal), "tool": page.String(&d.Tool),
		"kind": page.OneOf(&d.Kind, limitKinds, "kind is rate, refused or meter"),
	})); err != nil {
		return d, err
	}
	if !l.May(r.Context(), p, policy.Operates) {
		return d, people.NotOperator
	}
	all, whole, err := l.used(r.Context())
	found := slices.DeleteFunc(all, func(l Limit) bool {
		return d.Kind != "" && l.Kind != d.Kind || d.Principal != "" && l.Principal != d.Principal || d.Tool != "" && l.Tool != d.Tool
	})
	d.List, d.Cut = page.PartOf(r.URL, part, found, Limit.order), !whole
	reads := l.May(r.Context(), p, policy.ReadsArguments)
	for i := range d.All {
		one := &d.All[i]
		one.Rule, one.Principal, one.Tenant, one.Tool = page.Visible(one.Rule), page.Visible(one.Principal), page.Visible(one.Tenant), page.Visible(one.Tool)
		if !reads {
			one.Per = nil
		}
	}
	return d, err
}

func (l *limits) list(r *http.Request, p policy.Principal) (any, error) {
	d, err := l.ask(r, p)
	if err != nil {
		return nil, err
	}
	answer := d.Object("limits")
	if d.Cut {
		answer["cut"] = true
	}
	return answer, nil
}

const limitsPath = "/console/limits"

type limitsPage struct {
	page.Shell
	page.List[Limit]
	Kind, Principal, Tool string // that were asked for, "" = all
	Cut                   bool   // not all are known
}

// page shows what is used of limits.
func (l *limits) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	d, err := l.ask(r, v.Principal)
	if err != nil {
		return nil, err
	}
	d.Shell, err = l.Shell(r.Context(), v, "Limits", limitsPath, "")
	return limitsView(d), err
}

// near reports whether little of l is left.
func (l Limit) near() bool { return l.Size > 0 && l.Used*10 >= int64(l.Size)*9 }
