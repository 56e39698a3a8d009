package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/policy"
)

const (
	callsPath   = "/console/calls"
	listedCalls = 50
)

// callPages are the pages of the index of calls.
func (c *Console) callPages() map[string]map[string]handler {
	return map[string]map[string]handler{
		callsPath:           {http.MethodGet: c.visit(c.callsPage)},
		callsPath + "/{id}": {http.MethodGet: c.visit(c.callPage)},
	}
}

type callsPageData struct {
	shell
	index.Page
	Filters []searchField
	Narrow  bool   // a filter is set that is not always shown
	Reads   bool   // the visitor may search in arguments
	Older   string // address of the next page, "" = there is none
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

// callsPage lists calls that the address selects, the newest first.
func (c *Console) callsPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	given := r.URL.Query()
	for name, values := range given {
		if strings.Join(values, "") == "" { // as forms send empty fields
			delete(given, name)
		}
	}
	q, follow, err := c.callQuery(&url.URL{RawQuery: given.Encode()})
	if err == nil && follow {
		err = badRequest("a page does not follow calls", "load it again, or GET /v1/calls?follow=true")
	}
	if err != nil {
		return err
	}
	q.Limit = listedCalls
	if err := c.searching(r, v.Principal, "session", &q); err != nil {
		return err
	}
	d := callsPageData{Reads: c.may(r.Context(), v.Principal, policy.ReadsArguments)}
	if d.shell, err = c.shell(r.Context(), v, "Calls", callsPath, ""); err != nil {
		return err
	}
	if d.Page, err = c.opts.Calls.Search(r.Context(), q); err != nil {
		return ofIndex(err)
	}
	shown := len(callFilters)
	if !d.Reads {
		shown -= ofArguments
	}
	for _, f := range callFilters[:shown] {
		d.Filters = append(d.Filters, searchField{f.Name, f.Label, given.Get(f.Name)})
		d.Narrow = d.Narrow || len(d.Filters) > usualFilters && given.Get(f.Name) != ""
	}
	if d.Next != "" {
		given.Set("cursor", d.Next)
		d.Older = callsPath + "?" + given.Encode()
	}
	return render(w, appCSP, http.StatusOK, callListView(d))
}

type callPageData struct {
	shell
	WholeCall
	Decided, Ended audit.Record // as far as the trail at hand has them
	Operates       bool         // the visitor may ask the policy
}

// callPage shows one call whole: who, what, why, as whom, and what came of it.
func (c *Console) callPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	whole, err := c.wholeCall(r, v.Principal, "session", r.PathValue("id"))
	if err != nil {
		return err
	}
	d := callPageData{WholeCall: whole, Operates: c.opts.Policy != nil && c.may(r.Context(), v.Principal, policy.Operates)}
	for record, into := range map[*json.RawMessage]*audit.Record{&d.Decision: &d.Decided, &d.Outcome: &d.Ended} {
		if len(*record) > 0 {
			if err := json.Unmarshal(*record, into); err != nil {
				return err
			}
		}
	}
	if d.shell, err = c.shell(r.Context(), v, "Call of "+Visible(d.Call.Tool), callsPath, ""); err != nil {
		return err
	}
	return render(w, appCSP, http.StatusOK, callView(d))
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
		return indented(d.Decided.Arguments)
	}
	return indented(d.Ended.Arguments)
}

// indented is the visible form of JSON, a member on each line.
func indented(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return visibleLines(string(text))
	}
	return visibleLines(out.String())
}

// about asks the policy about the same call.
func (d *callPageData) about() string {
	query := url.Values{"tool": {d.Call.Tool}, "subject": {d.Call.Principal}}
	if len(d.Call.Roles) > 0 {
		query.Set("role", d.Call.Roles[0])
	}
	if text := d.judgedBy().Arguments; len(text) > 0 {
		query.Set("arguments", string(text))
	}
	return askPath + "?" + query.Encode()
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
	return strconv.FormatFloat(k.DurationMS, 'f', 1, 64) + " ms"
}

// behindText says how far the index is behind.
func behindText(ms int64) string {
	if ms < 1000 {
		return "It has all records."
	}
	return "It is " + (time.Duration(ms) * time.Millisecond).Round(time.Second).String() + " behind."
}
