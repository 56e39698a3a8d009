package index_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
)

func TestFilters(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	plain := w.call(l, nil)
	denied := w.call(l, func(r *audit.Record) {
		r.Principal, r.Outcome, r.Code, r.Policy.Rule, r.Policy.Effect = audit.Principal{Subject: "agent-8"}, audit.Denied, "POLICY_DENIED", "no-money", "deny"
		r.Arguments = []byte(`{"to":"Bob","amount":50.10,"memo":{"lines":["Invoice 17","paid"]}}`)
	})
	held := w.call(l, func(r *audit.Record) {
		r.Outcome, r.Ticket, r.Server, r.Exposed = audit.Held, "apr_1", "bank", "bank__pay"
	})
	listed := w.call(l, func(r *audit.Record) { r.Method, r.Exposed, r.Arguments = "resources/read", "", nil })
	large := w.call(l, func(r *audit.Record) {
		r.Outcome, r.Arguments, r.ArgumentsBytes, r.ArgumentsExcerpt = audit.Limited, nil, 100_000, `{"blob":"beginning of it`
	})
	masked := w.call(l, func(r *audit.Record) { r.Arguments = []byte(`{"token":"[masked]","note":"visible"}`) })
	odd := w.call(l, func(r *audit.Record) { r.Arguments = []byte(`"{\"a\":"`) })
	all := []string{odd, masked, large, listed, held, denied, plain}
	x, _ := w.begin()
	w.caughtUp(x)
	for name, c := range map[string]struct {
		q    index.Query
		want []string
	}{
		"everything":                    {index.Query{}, all},
		"principal":                     {index.Query{Principal: "agent-8"}, []string{denied}},
		"principal is whole":            {index.Query{Principal: "agent"}, nil},
		"person":                        {index.Query{Person: "ann", Outcome: "held"}, []string{held}},
		"server":                        {index.Query{Server: "bank"}, []string{held}},
		"tool":                          {index.Query{Tool: "bank__pay"}, []string{held}},
		"method":                        {index.Query{Tool: "resources/read"}, []string{listed}},
		"outcome":                       {index.Query{Outcome: "denied"}, []string{denied}},
		"rule":                          {index.Query{Rule: "no-money"}, []string{denied}},
		"code":                          {index.Query{Code: "POLICY_DENIED"}, []string{denied}},
		"ticket":                        {index.Query{Ticket: "apr_1"}, []string{held}},
		"decision":                      {index.Query{ID: denied}, []string{denied}},
		"call":                          {index.Query{ID: "sig_1"}, []string{plain}},
		"trace":                         {index.Query{ID: "trc_1"}, []string{held, denied}},
		"request":                       {index.Query{ID: "17"}, all},
		"a number":                      {index.Query{Argument: "/amount=50.10"}, []string{denied}},
		"a number as it is written":     {index.Query{Argument: "/amount=50.1"}, nil},
		"a string":                      {index.Query{Argument: "/to=Bob"}, []string{denied}},
		"a string has its case":         {index.Query{Argument: "/to=bob"}, nil},
		"deep":                          {index.Query{Argument: "/memo/lines/0=Invoice 17"}, []string{denied}},
		"no object":                     {index.Query{Argument: `={"a":`}, []string{odd}},
		"word":                          {index.Query{Text: "invoice"}, []string{denied}},
		"every word":                    {index.Query{Text: "PAID invoice, 17"}, []string{denied}},
		"a word is missing":             {index.Query{Text: "paid invoice 18"}, nil},
		"words of names":                {index.Query{Text: "memo"}, []string{denied}},
		"excerpt":                       {index.Query{Text: "beginning"}, []string{large}},
		"masked":                        {index.Query{Text: "visible"}, []string{masked}},
		"several":                       {index.Query{Principal: "agent-7", Server: "standard", Outcome: "allowed", Text: "go"}, []string{plain}},
		"never together":                {index.Query{Principal: "agent-8", Server: "bank"}, nil},
		"since":                         {index.Query{Since: epoch.Add(6 * time.Second)}, []string{odd, masked}},
		"until":                         {index.Query{Until: epoch.Add(2 * time.Second)}, []string{denied, plain}},
		"since and until and principal": {index.Query{Since: epoch.Add(2 * time.Second), Until: epoch.Add(3 * time.Second), Principal: "agent-7"}, []string{held}},
		"decidable":                     {index.Query{Decidable: func(ticket string) bool { return ticket == "apr_1" }}, []string{held}},
		"not decidable":                 {index.Query{Decidable: func(string) bool { return false }}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c.q.Limit = range []int{0, 1, 2} {
				if diff := cmp.Diff(c.want, w.found(x, c.q)); diff != "" {
					t.Errorf("limit %d (-want +got):\n%s", c.q.Limit, diff)
				}
			}
		})
	}
	for name, q := range map[string]index.Query{
		"no value": {Argument: "/amount"}, "no pointer": {Argument: "amount=1"}, "a cursor of others": {Cursor: "eA"}, "bytes": {Cursor: "!"}, "limit": {Limit: 1001},
	} {
		if _, err := x.Search(t.Context(), q); !errors.Is(err, index.ErrQuery) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatAListShows(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{Instance: "a"})
	w.call(l, func(r *audit.Record) {
		r.Ticket, r.Code, r.Outcome, r.Credential = "apr_1", "UPSTREAM_ERROR", audit.Failed, &audit.Credential{ID: "con_1", Account: "ann@example.org"}
	})
	write(t, l, audit.KindTicket, &audit.Record{Ticket: "apr_1", DecisionID: "dec_000001", Time: epoch, Change: &audit.Change{To: "proposed"}})
	write(t, l, audit.KindTicket, &audit.Record{Ticket: "apr_1", DecisionID: "dec_000001", Time: epoch, Change: &audit.Change{From: "proposed", To: "approved"}})
	write(t, l, audit.KindTicket, &audit.Record{Ticket: "apr_2", DecisionID: "dec_000001", Time: epoch, Change: &audit.Change{To: "proposed"}})
	x, _ := w.begin()
	w.caughtUp(x)
	want := index.Call{
		ID: "dec_000001", Time: epoch.Add(time.Second), Instance: "a", DecisionSeq: 2, OutcomeSeq: 3, Principal: "agent-7", Person: "ann", Roles: []string{"researcher", "creator"},
		Tool: "standard__search", Server: "standard", Effect: "allow", Rule: "role", Outcome: "failed", Code: "UPSTREAM_ERROR", Stage: "close", Ticket: "apr_1",
		Account: "ann@example.org", DurationMS: 12.345,
	}
	page, err := x.Search(t.Context(), index.Query{})
	if diff := cmp.Diff([]index.Call{want}, page.Calls); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err := x.Call(t.Context(), "dec_000001")
	if diff := cmp.Diff(want, got.Call); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	var kinds []string
	for _, line := range append([]json.RawMessage{got.Decision, got.Outcome}, got.Changes...) {
		r, err := audit.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, fmt.Sprint(r.Seq, " ", r.Kind))
	}
	if diff := cmp.Diff([]string{"2 decision", "3 outcome", "4 ticket", "5 ticket"}, kinds); diff != "" || got.Missing > 0 {
		t.Errorf("%d missing (-want +got):\n%s", got.Missing, diff)
	}
	if err := os.Remove(filepath.Join(w.root(), "a", "000001.jsonl")); err != nil {
		t.Fatal(err)
	}
	if got, err = x.Call(t.Context(), "dec_000001"); err != nil || got.Missing != 4 || got.Decision != nil || len(got.Changes) > 0 {
		t.Errorf("without the records: %+v, %v", got, err)
	}
	for _, id := range []string{"dec_000002", "sig_1", "17"} { // a call is known by its decision
		if _, err := x.Call(t.Context(), id); !errors.Is(err, index.ErrNotFound) {
			t.Errorf("call %s: %v", id, err)
		}
	}
}

// Every filter selects what it selects in the trail.
func TestFiltersAgreeWithTheTrail(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	x, _ := w.begin()
	for range 4 { // chains, each read in several blocks
		l := w.chain(audit.Options{SegmentBytes: 50_000})
		for range 5 {
			for range 1 + r.IntN(shortOrSoak(60, 150)) {
				w.any(r, l)
			}
			w.caughtUp(x)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var calls []*readCall
	for _, c := range merged(t, w.root()) {
		calls = append(calls, newReadCall(c))
	}
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	for range shortOrSoak(50, 200) {
		q := index.Query{
			Principal: pick("", "", "a", "ä \"c\""), Person: pick("", "", "ann"), Server: pick("", "web"), Tool: pick("", "", "web__read", "files__write"), Outcome: pick("", "", "held", "allowed"),
			Rule: pick("", "", "r1"), Code: pick("", "", "X"), ID: pick("", "", "", "trc_0", "trc_7", "dec_000003"), Ticket: pick("", "", "", "apr_1"),
			Argument: pick("", "", "/n=2", "/s=hello", `/s=a "quoted" \ text`, "/deep/0/a~1b=1.50", "/deep/0/a~1b=ß", "/deep/0/a~1b=null"), Text: pick("", "", "HELLO", "welt grüße", "two one", "quoted TEXT"),
			Limit: 1 + r.IntN(100),
		}
		if r.IntN(3) == 0 {
			q.Since = epoch.Add(time.Duration(r.IntN(w.n)) * time.Second)
		}
		if r.IntN(3) == 0 {
			q.Until = epoch.Add(time.Duration(r.IntN(w.n)) * time.Second)
		}
		var want []string
		for _, c := range calls {
			if selects(q, c) {
				want = append(want, c.DecisionID)
			}
		}
		if diff := cmp.Diff(want, w.found(x, q)); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", q, diff)
		}
	}
}

// A readCall is a call of the trail, whose arguments are read once for all queries.
type readCall struct {
	*audit.Record
	leaves, words []string
}

func newReadCall(r *audit.Record) *readCall {
	c := &readCall{Record: r}
	var arguments any
	d := json.NewDecoder(strings.NewReader(string(r.Arguments)))
	d.UseNumber()
	_ = d.Decode(&arguments)
	flatten("", arguments, &c.leaves, &c.words)
	return c
}

// selects is what a filter means.
func selects(q index.Query, c *readCall) bool {
	f := audit.Filter{ID: q.ID, Argument: q.Argument}
	for list, value := range map[*[]string]string{&f.Principals: q.Principal, &f.Tools: q.Tool, &f.Outcomes: q.Outcome, &f.Tickets: q.Ticket} {
		if value != "" {
			*list = []string{value}
		}
	}
	is := func(wanted, has string) bool { return wanted == "" || wanted == has }
	return f.Match(c.Record) && is(q.Person, c.Principal.Person) && is(q.Server, c.Server) && is(q.Rule, c.Policy.Rule) && is(q.Code, c.Code) &&
		!c.Time.Before(q.Since) && (q.Until.IsZero() || !c.Time.After(q.Until)) && (q.Argument == "" || slices.Contains(c.leaves, q.Argument)) &&
		!slices.ContainsFunc(split(q.Text), func(word string) bool { return !slices.Contains(c.words, word) })
}

func split(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) })
}

func flatten(pointer string, value any, leaves, words *[]string) {
	scalar := func(text string) {
		*leaves, *words = append(*leaves, pointer+"="+text), append(*words, split(text)...)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, value := range v {
			*words = append(*words, split(name)...)
			flatten(pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), value, leaves, words)
		}
	case []any:
		for i, value := range v {
			flatten(pointer+"/"+strconv.Itoa(i), value, leaves, words)
		}
	case string:
		scalar(v)
	case json.Number:
		scalar(v.String())
	case bool:
		scalar(strconv.FormatBool(v))
	default:
		scalar("null")
	}
}

// Pages do not repeat or miss a call while calls arrive.
func TestPagesWhileCallsArrive(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{})
	var want []string
	for range 100 {
		want = append([]string{w.call(l, nil)}, want...)
	}
	x, _ := w.begin()
	w.caughtUp(x)
	var got []string
	q := index.Query{Limit: 7}
	for {
		page, err := x.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Calls {
			got = append(got, c.ID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
		w.call(l, nil)
		w.caughtUp(x)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
