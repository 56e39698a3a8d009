package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
)

const (
	callsPath   = "/console/calls"
	callEvents  = callsPath + "/events"
	listedCalls = 50
	// liveEvery is how often an open list of calls shows what has come.
	liveEvery = time.Second
)

type callsPageData struct {
	page.Shell
	index.Page
	Filters []searchField
	Narrow  bool   // a filter is set that is not always shown
	Reads   bool   // the visitor may search in arguments
	Older   string // address of the next page, "" = there is none
	Events  string // address of the calls that come, "" = they are not shown
	Now     string // address that shows them, of a list that was to stay as it is
}

// A searchField is a field that narrows a list.
type searchField struct{ Name, Label, Value string }

// callFilters are the filters of calls; the last two are of arguments.
var callFilters = []searchField{{"principal", "Principal", ""}, {"tool", "Tool", ""}, {"outcome", "Outcome", ""}, {"since", "Since, such as 24h", ""}, {"server", "Server", ""},
	{"code", "Code", ""}, {"rule", "Rule", ""}, {"text", "Words in arguments", ""}, {"argument", "Argument, as /to=bob", ""}}

const (
	usualFilters = 4 // the first of callFilters, which are always shown
	ofArguments  = 2 // the last of them
)

// pageQuery reads the address of a list of calls: what it asks for, as it is given, and whether calls that come
// are to be shown, which they are unless the address says no.
func (c *calls) pageQuery(u *url.URL) (q index.Query, given url.Values, live bool, err error) {
	given = u.Query()
	for name, values := range given {
		if strings.Join(values, "") == "" { // as forms send empty fields
			delete(given, name)
		}
	}
	q, live, err = c.query(&url.URL{RawQuery: given.Encode()})
	q.Limit = listedCalls
	return q, given, live || !given.Has("follow"), err
}

// listPage lists calls that the address selects, the newest first.
func (c *calls) listPage(r *http.Request, v people.Visitor) (templ.Component, error) {
	q, given, live, err := c.pageQuery(r.URL)
	if err != nil {
		return nil, err
	}
	if err := c.searching(r, v.Principal, &q); err != nil {
		return nil, err
	}
	d := callsPageData{Reads: c.May(r.Context(), v.Principal, policy.ReadsArguments)}
	if d.Shell, err = c.Shell(r.Context(), v, "Calls", callsPath, ""); err != nil {
		return nil, err
	}
	if d.Page, err = c.index.Search(r.Context(), q); err != nil {
		return nil, ofIndex(err)
	}
	shown := len(callFilters)
	if !d.Reads {
		shown -= ofArguments
	}
	for _, f := range callFilters[:shown] {
		d.Filters = append(d.Filters, searchField{f.Name, f.Label, given.Get(f.Name)})
		d.Narrow = d.Narrow || len(d.Filters) > usualFilters && given.Get(f.Name) != ""
	}
	given.Del("follow")
	if first := q.Cursor == "" && q.Until.IsZero(); first && live {
		d.Events, d.Follows = callEvents+"?"+given.Encode(), true
	} else if first {
		d.Now = callsPath + "?" + given.Encode()
	}
	if d.Next != "" {
		d.Older = callsAt(given, "cursor", d.Next)
	}
	return callListView(d), nil
}

// callsAt is the address of a list of calls with one more parameter.
func callsAt(given url.Values, name, value string) string {
	query := maps.Clone(given)
	query.Set(name, value)
	return callsPath + "?" + query.Encode()
}

// followPage sends the list of calls as server-sent events, again whenever calls have come. It begins with
// a search, so that nothing is missed that came after the page did or while the browser was away.
// The visitor is identified, and asked for rights, before each list. A reader that falls behind is dropped, and
// its browser comes again.
func (c *calls) followPage(w http.ResponseWriter, r *http.Request, v people.Visitor) error {
	q, given, _, err := c.pageQuery(r.URL)
	if err == nil && (q.Cursor != "" || !q.Until.IsZero()) {
		err = page.BadRequest("a list that has an end does not follow calls", "leave out cursor and until")
	}
	if err == nil {
		err = c.searching(r, v.Principal, &q)
	}
	if err != nil {
		return err
	}
	ctx, stop := c.UntilClosed(r.Context())
	calls, wait := page.Feed(ctx, c.Log, c.index.Follow(ctx, q)) // from here on nothing is missed
	defer wait()
	defer stop()
	if err := c.narrow(ctx, v.Principal, &q); err != nil { // what is asked of tickets is not for two goroutines
		return err
	}
	found, err := c.index.Search(ctx, q)
	if err != nil {
		return ofIndex(err)
	}
	given.Del("follow")
	list := openList{c: c, v: v, query: q, given: given, calls: found.Calls, more: found.Next != ""}
	list.send(ctx, w, calls)
	return nil
}

// An openList is a list of calls that a page shows while calls come.
type openList struct {
	c     *calls
	v     people.Visitor
	query index.Query
	given url.Values
	calls []index.Call
	more  bool // there are older ones
}

// send sends the list, and again after calls have come, until ctx or the feed ends or the visitor may not see it.
func (l *openList) send(ctx context.Context, w http.ResponseWriter, coming <-chan index.Call) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	beat := time.NewTicker(page.Heartbeat)
	defer beat.Stop()
	for due := time.After(0); ; {
		text := []byte(": still here\n")
		select {
		case <-ctx.Done():
			return
		case k, ok := <-coming:
			if !ok {
				return
			}
			if l.add(k); due == nil {
				due = time.After(liveEvery)
			}
			continue
		case <-beat.C:
		case <-due:
			text, due = nil, nil
		}
		if !l.mayGo(ctx) {
			return
		}
		if text == nil {
			text = l.event(ctx)
		}
		if page.WriteLine(w, out, text) != nil {
			return
		}
	}
}

// mayGo reports whether the visitor may still see the list, of which it leaves what the visitor may see.
func (l *openList) mayGo(ctx context.Context) bool {
	var err error
	if l.v, err = l.c.IdentifyAgain(ctx, l.v); err != nil || l.c.narrow(ctx, l.v.Principal, &l.query) != nil {
		return false
	}
	if may := l.query.Decidable; may != nil {
		l.calls = slices.DeleteFunc(l.calls, func(k index.Call) bool { return !may(k.Ticket) })
	}
	return true
}

// add puts a call into the list, or replaces its earlier state there. The oldest call leaves a full list.
func (l *openList) add(k index.Call) {
	i := slices.IndexFunc(l.calls, func(o index.Call) bool { return o.ID == k.ID })
	switch {
	case i >= 0 && l.calls[i].Outcome == "":
		l.calls[i] = k
	case i < 0:
		i, _ = slices.BinarySearchFunc(l.calls, k, func(a, b index.Call) int { return b.Time.Compare(a.Time) })
		l.calls = slices.Insert(l.calls, i, k)
		if len(l.calls) > listedCalls {
			l.calls, l.more = l.calls[:listedCalls], true
		}
	}
}

// event is the list as a server-sent event.
func (l *openList) event(ctx context.Context) []byte {
	var body bytes.Buffer
	older := ""
	if l.more && len(l.calls) > 0 {
		older = callsAt(l.given, "cursor", index.CursorAfter(l.calls[len(l.calls)-1]))
	}
	_ = comingCalls(l.calls, callsAt(l.given, "follow", "false"), older).Render(ctx, &body) // a buffer takes all
	return []byte("data: " + strings.NewReplacer("\r", " ", "\n", "\ndata: ").Replace(body.String()) + "\n")
}

type callPageData struct {
	page.Shell
	WholeCall
	Decided, Ended audit.Record // as far as the trail at hand has them
	Steps          []callStep
	Tries          bool   // the visitor may try another policy
	Viewer         string // page of the trace; "" = none
}

// A callStep is something that a record has the time of.
type callStep struct {
	Name, Who string
	At        time.Time
	After     time.Duration // since the step before
}

// page shows one call whole: who, what, why, as whom, and what came of it.
func (c *calls) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	whole, err := c.whole(r, v.Principal)
	if err != nil {
		return nil, err
	}
	d := callPageData{WholeCall: whole}
	for record, into := range map[*json.RawMessage]*audit.Record{&d.Decision: &d.Decided, &d.Outcome: &d.Ended} {
		if len(*record) > 0 {
			if err := json.Unmarshal(*record, into); err != nil {
				return nil, err
			}
		}
	}
	if d.Steps, err = d.steps(); err != nil {
		return nil, err
	}
	d.Tries, d.Viewer = mayTry(c.Site, r, v.Principal) == nil, c.viewerURL(d.judgedBy().TraceID)
	d.Shell, err = c.Shell(r.Context(), v, "Call of "+page.Visible(d.Call.Tool), callsPath, "")
	return callView(d), err
}

// callPath is the path of the page of a call.
func callPath(id string) string { return callsPath + "/" + url.PathEscape(id) }

// judgedBy returns the record that has what the policy said.
func (d *callPageData) judgedBy() *audit.Record {
	if d.Decided.Policy.Effect != "" {
		return &d.Decided
	}
	return &d.Ended
}

// arguments are those that were judged, indented; "" = they are not shown.
func (d *callPageData) arguments() string {
	if len(d.Decided.Arguments) > 0 {
		return page.Indented(d.Decided.Arguments)
	}
	return page.Indented(d.Ended.Arguments)
}

// steps returns what the records have the times of, the oldest first.
func (d *callPageData) steps() (all []callStep, err error) {
	add := func(name, who string, at time.Time) {
		if !at.IsZero() {
			all = append(all, callStep{Name: name, Who: who, At: at})
		}
	}
	if !d.Ended.Time.IsZero() {
		add("arrived", "", d.Ended.Time.Add(-time.Duration(d.Call.DurationMS*float64(time.Millisecond))))
	}
	add(strings.TrimSpace("judged "+d.Decided.Policy.Effect), "", d.Decided.Time)
	for _, line := range d.Changes {
		var change audit.Record
		if err := json.Unmarshal(line, &change); err != nil {
			return nil, err
		}
		if k := change.Change; k != nil && k.From == k.To {
			add("vote", k.Who, change.Time)
		} else if k != nil {
			add("ticket "+k.To, k.Who, change.Time)
		}
	}
	word, _ := verdictOf(d.Call)
	add("answered: "+word, "", d.Ended.Time)
	slices.SortStableFunc(all, func(a, b callStep) int { return a.At.Compare(b.At) })
	for i := 1; i < len(all); i++ {
		all[i].After = all[i].At.Sub(all[i-1].At).Round(time.Microsecond)
	}
	return all, nil
}

// maxAsked bounds the arguments in an address that asks about a call, in bytes.
const maxAsked = 4096

// about asks the policy about the same call: why, and what would be allowed.
func (d *callPageData) about() (why, allowed string) {
	call, cell := url.Values{"tool": {d.Call.Tool}, "subject": {d.Call.Principal}}, url.Values{"tool": {d.Call.Tool}}
	if len(d.Call.Roles) > 0 {
		call.Set("role", d.Call.Roles[0])
		cell.Set("role", d.Call.Roles[0])
	} else {
		cell.Set("subject", d.Call.Principal)
	}
	if text := cmp.Or(string(d.Decided.Arguments), string(d.Ended.Arguments)); text != "" && len(text) <= maxAsked {
		call.Set("arguments", text)
	}
	return askPath + "?" + call.Encode(), matrixPath + "?" + cell.Encode()
}

// whyText asks why the policy decided so on a call.
func whyText(k index.Call) string {
	word := map[string]string{string(policy.Allow): "allowed", string(policy.Hold): "held", string(policy.Deny): "refused"}[k.Effect]
	if word == "" {
		return "Ask the policy about this"
	}
	return "Why was this " + word + "?"
}

// ofID is the address of the calls with an ID: of a signal, a trace or a request.
func ofID(id string) string { return callsPath + "?" + url.Values{"id": {id}}.Encode() }

// resultText says what the result was, as far as the record has it.
func resultText(r audit.Record) string {
	said := []string{text.Count(r.ResultBytes, "byte"), "about " + text.Count(r.ResultTokens, "token")}
	if r.Replayed {
		said = append(said, "stored by an earlier run")
	}
	if len(r.Hidden) > 0 {
		said = append(said, "with hidden characters: "+strings.Join(r.Hidden, ", "))
	}
	return strings.Join(said, ", ")
}

// verdictOf says in a word what became of a call, and how it looks.
func verdictOf(k index.Call) (word, look string) {
	switch {
	case k.Outcome == "":
		return "under way", ""
	case k.Outcome == string(audit.Allowed):
		return "allowed", "done"
	case k.Outcome == string(audit.Held):
		return "held", "soon"
	}
	return k.Outcome, "failed"
}

// tookText says how long a call took.
func tookText(k index.Call) string {
	if k.Outcome == "" {
		return ""
	}
	return milliseconds(k.DurationMS)
}

// atServer says how long the server took; "" = it was not called.
func atServer(r audit.Record) string {
	if r.UpstreamMS == 0 {
		return ""
	}
	return milliseconds(r.UpstreamMS) + " at the server"
}

func milliseconds(ms float64) string { return strconv.FormatFloat(ms, 'f', 1, 64) + " ms" }

// traceForm is that of the ids that tracing gives traces (W3C Trace Context §3.2.2.3).
var traceForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// viewerURL is the page of a trace in the viewer; "" = there is none.
func (c *calls) viewerURL(traceID string) string {
	if c.traceURL == "" || !traceForm.MatchString(traceID) {
		return ""
	}
	return strings.ReplaceAll(c.traceURL, "{trace_id}", traceID)
}

// behindText says how far the index is behind.
func behindText(ms int64) string {
	if ms < 1000 {
		return "It has all records."
	}
	return "It is " + (time.Duration(ms) * time.Millisecond).Round(time.Second).String() + " behind."
}
