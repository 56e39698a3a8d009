package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
)

const (
	day    = 24 * time.Hour
	bars   = 48 // of a chart
	warned = 10 // warnings, unless all are asked for
)

// A Bucket counts the calls of one span of time by verdict.
type Bucket struct {
	From                  time.Time
	Allowed, Held, Denied int
}

// total is the number of calls in b.
func (b Bucket) total() int { return b.Allowed + b.Held + b.Denied }

// overview is the first page.
type overview struct {
	*people.Guard
	status  func() Status
	version string
	watches func(p policy.Principal) bool // Options.Watches
	held    func(ctx context.Context) (int, error)
	counts  func(ctx context.Context, since time.Time, buckets int) ([]Bucket, error) // Options.Activity
}

// Routes are the routes of the first page.
func (o *overview) Routes(*people.Guard) page.Routes {
	return page.Routes{page.OverviewPath + "{$}": {http.MethodGet: o.page}}
}

// overviewPage is what needs a person, and what has happened.
type overviewPage struct {
	page.Shell
	Status
	Version string
	Held    int
	Details bool // names and reasons, for those who may watch toolgate
	Warned  int  // most warnings that are shown
	Needs   []need

	Day      []Bucket // calls of the last day; nil = they are not known
	LastDay  Bucket   // the sum of Day
	LastHour Bucket
	Unused   bool // no call was ever governed, as far as is known
}

// A need is something that a person has to look at.
type need struct {
	Words, Path string
	Grave       bool // calls are refused or lost because of it
}

// page shows the status and what needs a person. Its readers may have not signed in: those
// who may not watch toolgate see counts only.
func (o *overview) page(w http.ResponseWriter, r *http.Request) error {
	d := overviewPage{Shell: o.Outside("Overview"), Status: o.status(), Version: o.version, Details: o.watches(policy.Principal{})}
	d.Enter, d.Warned = true, warned
	if r.URL.Query().Get("warnings") == "all" {
		d.Warned = len(d.Warnings)
	}
	csp := page.PlainCSP
	if v, err := o.Visitor(w, r); err == nil {
		csp, d.Details = page.ScriptCSP, o.watches(v.Principal)
		if d.Shell, err = o.Shell(r.Context(), v, "Overview", page.OverviewPath, page.OverviewPath); err != nil {
			return err
		}
	}
	var err error
	if d.Held, err = o.held(r.Context()); err != nil {
		return err
	}
	if d.Details { // as metrics are
		o.activity(r.Context(), &d)
	}
	d.Needs = d.needs()
	return page.Render(w, csp, http.StatusOK, overviewView(d))
}

// activity counts the calls of the last hour and day for d. Without counts the page has no chart.
func (o *overview) activity(ctx context.Context, d *overviewPage) {
	if o.counts == nil {
		return
	}
	now := o.Now()
	var hour, ever []Bucket
	var err error
	if d.Day, err = o.counts(ctx, now.Add(-day), bars); err == nil {
		hour, err = o.counts(ctx, now.Add(-time.Hour), 1)
	}
	d.LastDay, d.LastHour = sum(d.Day), sum(hour)
	if err == nil && d.LastDay.total() == 0 {
		ever, err = o.counts(ctx, time.Time{}, 1)
		d.Unused = sum(ever).total() == 0
	}
	if err != nil {
		if !errors.Is(err, index.ErrStarting) {
			o.Log.Error("counting the calls of the last day", "error", err)
		}
		d.Day, d.Unused = nil, false
	}
}

// sum adds up buckets.
func sum(all []Bucket) (s Bucket) {
	for _, b := range all {
		s.Allowed, s.Held, s.Denied = s.Allowed+b.Allowed, s.Held+b.Held, s.Denied+b.Denied
	}
	return s
}

// needs lists what needs a person, each with the address of its list.
func (d *overviewPage) needs() (all []need) {
	servers, tools, warnings := "#servers", "#servers", "" // readers who see counts only have no list of warnings
	if d.Finds(serversPath) {
		servers, tools = serversPath, serversPath
	}
	if d.Finds(toolsPath) {
		tools = toolsAt("", unserved)
	}
	if d.Details {
		warnings = "#warnings"
	}
	add := func(n int, path string, grave bool, one, many string) {
		if n == 1 {
			many = one
		}
		if n > 0 {
			all = append(all, need{strconv.Itoa(n) + " " + many, path, grave})
		}
	}
	if !d.Ready {
		all = append(all, need{"No calls are served", servers, true})
	}
	if d.Subject == "" {
		add(d.Held, page.ApprovalsPath, false, "call waits for a decision", "calls wait for a decision")
	} else {
		add(d.Awaiting, page.ApprovalsPath, false, "call waits for your decision", "calls wait for your decision")
		add(d.Held-d.Awaiting, page.ApprovalsPath+"?view=team", false, "call waits for others", "calls wait for others")
	}
	var failed, quarantined int
	for _, u := range d.Upstreams {
		quarantined += u.Quarantined
		if u.failed() {
			failed++
		}
	}
	add(failed, servers, true, "server has failed", "servers have failed")
	add(quarantined, tools, false, "tool is quarantined", "tools are quarantined")
	add(len(d.Degraded), warnings, true, "part is missing", "parts are missing")
	add(len(d.Warnings), warnings, false, "warning", "warnings")
	return all
}

// failed reports whether no call reaches u.
func (u *Upstream) failed() bool { return u.State == "failed" || u.State == "stopped" }

// A bar is one rectangle of a chart.
type bar struct{ x, y, width, height, look, title string }

const (
	chartHeight = 96
	barWidth    = 10 // with the gap
)

// chart draws buckets as bars, denied calls above held ones above those that were allowed.
func chart(all []Bucket) (drawn []bar) {
	most := 1
	for _, b := range all {
		most = max(most, b.total())
	}
	for i, b := range all {
		top := float64(chartHeight)
		title := fmt.Sprintf("%s: %d allowed, %d held, %d denied", b.From.UTC().Format("2 Jan 15:04 UTC"), b.Allowed, b.Held, b.Denied)
		for _, part := range []struct {
			look  string
			count int
		}{{"allowed", b.Allowed}, {"held", b.Held}, {"denied", b.Denied}} {
			if part.count == 0 {
				continue
			}
			height := max(1, float64(part.count)*chartHeight/float64(most))
			top -= height
			drawn = append(drawn, bar{strconv.Itoa(i*barWidth + 1), fmt.Sprintf("%.1f", max(0, top)), strconv.Itoa(barWidth - 2), fmt.Sprintf("%.1f", height), part.look, title})
		}
	}
	return drawn
}

// chartView returns the view box of a chart of n bars.
func chartView(n int) string { return fmt.Sprintf("0 0 %d %d", n*barWidth, chartHeight) }

// countTools says how many tools a server has.
func countTools(u *Upstream) string {
	if u.Quarantined > 0 {
		return fmt.Sprintf("%s, %d quarantined", text.Count(u.Tools, "tool"), u.Quarantined)
	}
	return text.Count(u.Tools, "tool")
}

// shortRevision returns the beginning of the revision of a policy, which tells it from others.
func shortRevision(revision string) string {
	return text.ShortDigest(page.Visible(revision))
}
