package tickets

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// A Briefing is what helps to decide on a held call and is not in its ticket.
type Briefing struct {
	Offered     bool     `json:"offered"`               // the server offers the definition that was judged
	Description string   `json:"description,omitempty"` // of that definition, in the words of the server
	Risk        string   `json:"risk,omitempty"`        // of the server, as configured
	Notice      string   `json:"notice,omitempty"`      // likewise
	Waiting     bool     `json:"waiting"`               // a call waits for the decision in this process; false = of others it is not known
	Budgets     []Budget `json:"budgets,omitempty"`     // while the call may still run
}

// A Budget is what one meter of the policy reads for a held call. A sum of amounts whose decimals are
// known is in whole units of their asset.
type Budget struct {
	Meter  string          `json:"meter"`
	Window string          `json:"window"`
	Adds   string          `json:"adds,omitempty"` // pointer to the argument that is added up, or the name of the fact; "" = calls are counted
	Asset  string          `json:"asset,omitempty"`
	Per    json.RawMessage `json:"per,omitempty"` // array of the values that are counted apart
	Before policy.Reading  `json:"before"`
	With   policy.Reading  `json:"with"` // this call too
}

// A Result is the beginning of what an approved call came to.
type Result struct {
	Text     string `json:"text,omitempty"`     // visible, with real line breaks
	Cut      int    `json:"cut,omitempty"`      // bytes of the whole that Text leaves out at the end
	Withheld bool   `json:"withheld,omitempty"` // the policy does not let the reader read arguments and results of others
}

// wholeTicket returns k as p sees it, with its briefing and its result. Reading the result of
// somebody else's call is recorded first.
func (a *Area) wholeTicket(r *http.Request, k approval.Ticket, p policy.Principal) (t Ticket, err error) {
	t = view(k, p)
	if a.Brief != nil {
		b, err := a.Brief(r.Context(), k)
		if err != nil {
			return t, err
		}
		t.Briefing = new(b.shown())
	}
	switch {
	case k.Result == nil:
		return t, nil
	case p.Subject != k.Principal.Subject && !a.May(r.Context(), p, policy.ReadsArguments):
		t.Result = &Result{Withheld: true}
		return t, nil
	case p.Subject != k.Principal.Subject:
		err = a.Record(r, people.Act{Name: people.ActArgumentsRead, Principal: p, Call: page.Visible(k.DecisionID), Ticket: page.Visible(k.ID)})
	}
	t.Result = new(resultOf(k.Result))
	return t, err
}

// shown returns b with its texts in their visible form.
func (b Briefing) shown() Briefing {
	b.Description, b.Risk, b.Notice = page.VisibleLines(b.Description), page.Visible(b.Risk), page.VisibleLines(b.Notice)
	for i := range b.Budgets {
		one := &b.Budgets[i]
		one.Meter, one.Adds, one.Asset = page.Visible(one.Meter), page.Visible(one.Adds), page.Visible(one.Asset)
	}
	return b
}

const (
	// resultBytes and resultLines bound what is shown of a result.
	resultBytes = 4 << 10
	resultLines = 40
)

// resultOf returns the beginning of a stored result: the texts of its content blocks, with the type
// and size of a block without text. A result without content is returned as stored.
func resultOf(stored json.RawMessage) (r Result) {
	var said []string
	if content, _ := jsonrpc.Get(stored, "content"); len(content) > 0 && content[0] == '[' {
		for block := range jsonrpc.Elements(content) {
			words, ok := jsonrpc.TextAt(block, "text")
			if !ok {
				kind, _ := jsonrpc.TextAt(block, "type")
				words = fmt.Sprintf("(%s, %s)", cmp.Or(kind, "something"), text.Count(len(block), "byte"))
			}
			said = append(said, words)
		}
	}
	whole := cmp.Or(strings.Join(said, "\n"), string(stored))
	lines := strings.SplitAfterN(page.Start(whole, resultBytes), "\n", resultLines+1)
	start := strings.Join(lines[:min(len(lines), resultLines)], "")
	return Result{Text: page.VisibleLines(start), Cut: len(whole) - len(start)}
}

// String says in words what b reads.
func (b Budget) String() string {
	return b.Meter + page.Prefixed(" of ", b.apart()) + " in " + b.Window + ": " + b.used(b.Before) + " before this call, " + b.used(b.With) + " with it"
}

// used says what a budget reads, in words.
func (b *Budget) used(r policy.Reading) string {
	calls := text.Count(int(r.Calls), "call")
	if b.Adds == "" {
		return calls
	}
	return r.Sum.String() + page.Prefixed(" ", b.Asset) + " in " + calls
}

// apart names the values that a budget counts apart, "" for none.
func (b *Budget) apart() string {
	var values []json.RawMessage
	_ = json.Unmarshal(b.Per, &values) // a budget of all calls together has no values
	var said []string
	for _, v := range values {
		said = append(said, page.Visible(unquote(string(v))))
	}
	return strings.Join(said, ", ")
}

// startOf returns the beginning of a long text, and a short text whole.
func startOf(s string) string {
	start, _, _ := strings.Cut(s, "\n")
	if utf8.RuneCountInString(s) > foldRunes || start != s && strings.Count(s, "\n") > 3 {
		return text.Clip(start, foldRunes, "")
	}
	return s
}
