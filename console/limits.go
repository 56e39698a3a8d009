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

// limitRoutes are the routes of limits.
func (c *Console) limitRoutes() map[string]map[string]handler {
	return map[string]map[string]handler{
		limitsPath:   {http.MethodGet: c.visit(shows(c.limitsPage))},
		"/v1/limits": {http.MethodGet: c.as(answers(c.listLimits))},
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

// askLimits returns the limits for which r asks, as p may see them. The values that meters count apart are
// arguments of calls: p sees them with the right to read those.
func (c *Console) askLimits(r *http.Request, p policy.Principal) (d limitsPage, err error) {
	var part paging
	if err := readQuery(r.URL, part.parameters(map[string]func(string) error{
		"principal": anyText(&d.Principal), "tool": anyText(&d.Tool),
		"kind": func(value string) error {
			if d.Kind = value; value != "" && !slices.Contains(limitKinds, value) {
				return badRequest("kind is rate, refused or meter", "")
			}
			return nil
		},
	})); err != nil {
		return d, err
	}
	if !c.may(r.Context(), p, policy.Operates) {
		return d, notOperator
	}
	all, whole, err := c.opts.Limits(r.Context())
	found := slices.DeleteFunc(all, func(l Limit) bool {
		return d.Kind != "" && l.Kind != d.Kind || d.Principal != "" && l.Principal != d.Principal || d.Tool != "" && l.Tool != d.Tool
	})
	d.listPart, d.Cut = partOf(r.URL, part, found, Limit.order), !whole
	c.showLimits(r.Context(), p, d.All)
	return d, err
}

func (c *Console) listLimits(r *http.Request, p policy.Principal) (any, error) {
	d, err := c.askLimits(r, p)
	if err != nil {
		return nil, err
	}
	page := d.object("limits")
	if d.Cut {
		page["cut"] = true
	}
	return page, nil
}

// showLimits brings the texts of limits into their visible form, and takes away what p may not read.
func (c *Console) showLimits(ctx context.Context, p policy.Principal, shown []Limit) {
	reads := c.may(ctx, p, policy.ReadsArguments)
	for i := range shown {
		l := &shown[i]
		l.Rule, l.Principal, l.Tenant, l.Tool = Visible(l.Rule), Visible(l.Principal), Visible(l.Tenant), Visible(l.Tool)
		if !reads {
			l.Per = nil
		}
	}
}

const limitsPath = "/console/limits"

type limitsPage struct {
	shell
	listPart[Limit]
	Kind, Principal, Tool string // that were asked for, "" = all
	Cut                   bool   // not all are known
}

// limitsPage shows what is used of limits.
func (c *Console) limitsPage(r *http.Request, v visitor) (templ.Component, error) {
	d, err := c.askLimits(r, v.Principal)
	if err != nil {
		return nil, err
	}
	d.shell, err = c.shell(r.Context(), v, "Limits", limitsPath, "")
	return limitsView(d), err
}

// near reports whether little of l is left.
func (l Limit) near() bool { return l.Size > 0 && l.Used*10 >= int64(l.Size)*9 }
