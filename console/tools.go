package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/workbench"
)

// Tools are the tools of all servers, and which of their definitions are accepted. Implementations
// are safe for concurrent use.
type Tools interface {
	// List returns one Tool for each definition that a server offers.
	List(ctx context.Context) ([]Tool, error)
	// Show returns what is known of a definition. The errors are ErrNoTool and, for a person who is
	// not known, ErrNobody.
	Show(ctx context.Context, q ToolQuery) (ToolDetail, error)
	// Judge accepts an offered definition, or keeps that it is refused, after v.Record has returned
	// nil. The errors are ErrNoTool, ErrOtherDefinition, ErrJudged, ErrLocked and that of v.Record.
	Judge(ctx context.Context, v Verdict) error
}

// Errors of [Tools], which are refusals.
var (
	ErrNoTool = page.Problem{Status: http.StatusNotFound, Code: "NO_TOOL", Detail: "no server offers such a tool",
		Hint: "GET /v1/tools lists them; a tool goes by its server and the name there"}
	ErrNobody = page.Problem{Status: http.StatusBadRequest, Code: "BAD_REQUEST", Detail: "the roles of this principal are not known",
		Hint: "roles=… names them, with commas: no configured token has this subject"}
	ErrOtherDefinition = page.Problem{Status: http.StatusConflict, Code: "STALE_DIGEST", Detail: "the server offers another definition by now",
		Hint: "look at the tool again, and judge the definition that it has now"}
	ErrJudged = page.Problem{Status: http.StatusConflict, Code: "NOT_PENDING", Detail: "no definition of this tool waits to be accepted",
		Hint: "look at the tool again"}
	ErrLocked = page.Problem{Status: http.StatusConflict, Code: "LOCKED", Detail: "the definitions of this server are those of a lock file",
		Hint: "toolgate lock accepts what the server lists"}
)

// The states of a [Tool].
const (
	ToolServed      = "served"
	ToolWithheld    = "withheld"    // until somebody accepts its definition
	ToolQuarantined = "quarantined" // it cannot serve as it is
)

// unserved stands for both states of tools that do not serve.
const unserved = "unserved"

// toolStates are the states that a list of tools may be asked for.
var toolStates = []string{ToolServed, unserved, ToolWithheld, ToolQuarantined}

// A Tool is one definition of a tool that a server offers.
type Tool struct {
	Server  string `json:"server"`
	Name    string `json:"name"`          // of the server
	For     string `json:"for,omitempty"` // which clients the definition is for, "" = all
	Exposed string `json:"exposed"`       // what agents call it
	Title   string `json:"title,omitempty"`
	State   string `json:"state"`            // one of the constants
	Reason  string `json:"reason,omitempty"` // why it is not served
	Risk    string `json:"risk,omitempty"`   // of the server, as configured
	Digest  string `json:"digest"`           // of the definition
	Pin     *Pin   `json:"pin,omitempty"`    // nil = the server's definitions are not pinned, or nothing is known
}

// A Pin says which definition of a tool is accepted.
type Pin struct {
	Digest  string    `json:"digest,omitempty"` // "" = none is
	Since   time.Time `json:"since,omitzero"`
	By      string    `json:"by,omitempty"` // who accepted it, "" = it was in the first list of the server, or in the lock
	Refused *Refusal  `json:"refused,omitempty"`
}

// A Refusal is a person's word that the offered definition is not accepted.
type Refusal struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// A ToolQuery names a definition, and a person who may ask why it is not listed.
type ToolQuery struct {
	Server, Name string
	Digest       string   // "" = the definition for all clients
	Principal    string   // a subject, "" = nobody asks
	Roles        []string // of Principal, nil = those of the configured token
}

// ToolDetail is a tool with what people decide by.
type ToolDetail struct {
	Tool
	Definition   json.RawMessage `json:"definition,omitempty"` // nil when it is no JSON
	InputSchema  json.RawMessage `json:"input_schema,omitempty"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  json.RawMessage `json:"annotations,omitempty"`
	Accepted     json.RawMessage `json:"accepted,omitempty"`   // the accepted definition, where the offered one is another
	Difference   string          `json:"difference,omitempty"` // of the two, in lines
	Others       []Tool          `json:"others,omitempty"`     // further definitions, for some clients only
	Access       []Access        `json:"access"`               // each role, then each configured token
	Unasked      int             `json:"unasked,omitempty"`    // roles and tokens that are left out, because there are many
	Principal    *Access         `json:"principal,omitempty"`  // who was asked for
}

// Access is what the policy says about a caller and a tool, as the matrix of the policy has it.
type Access struct {
	workbench.Cell
	Listed bool   `json:"listed"`           // the tool is in the caller's list
	Reason string `json:"reason,omitempty"` // why it is not, for one who was asked for
	Hint   string `json:"hint,omitempty"`   // what says more
}

// A Verdict is what a person says of an offered definition.
type Verdict struct {
	Server, Name, Digest string
	By                   string
	Refuse               bool
	Reason               string // of a refusal
	// Record records the verdict, with the definitions that it brings and takes away.
	Record func(added, removed []string) error
}

// tools are the pages about tools and their definitions.
type tools struct {
	*people.Site
	offered Tools
	status  func() Status
}

// Routes are the routes and pages of tools.
func (ts *tools) Routes(g *people.Guard) page.Routes {
	one := toolsPath + "/{server}/{name}"
	return page.Routes{
		toolsPath:                          {http.MethodGet: g.Visit(people.Shows(ts.listPage))},
		one:                                {http.MethodGet: g.Visit(people.Shows(ts.page))},
		one + "/accept":                    {http.MethodPost: g.Submit(ts.submitJudgement(false))},
		one + "/refuse":                    {http.MethodPost: g.Submit(ts.submitJudgement(true))},
		"/v1/tools":                        {http.MethodGet: g.As(page.Parts("tools", ts.ask))},
		"/v1/tools/{server}/{name}":        {http.MethodGet: g.As(page.Answers(ts.show))},
		"/v1/tools/{server}/{name}/accept": {http.MethodPost: g.As(ts.answerJudgement(false))},
		"/v1/tools/{server}/{name}/refuse": {http.MethodPost: g.As(ts.answerJudgement(true))},
	}
}

var mayNotAccept = page.Problem{Status: http.StatusForbidden, Code: "NOT_ACCEPTER", Detail: "the policy does not let you accept or refuse definitions of tools",
	Hint: "see data.definitions of the policy"}

// toolChoice chooses among tools; "" = all.
type toolChoice struct{ Server, State, Text string } // Text is in a name or the title

// inState reports whether t is in a state that a list was asked for, "" = any.
func (t Tool) inState(state string) bool {
	return state == "" || t.State == state || state == unserved && slices.Contains(toolStates[2:], t.State)
}

// ask returns the tools for which r asks, and p may see.
func (ts *tools) ask(r *http.Request, p policy.Principal) (d toolsPage, err error) {
	var part page.Paging
	if err := page.ReadQuery(r.URL, part.Parameters(map[string]func(string) error{
		"server": page.String(&d.Choice.Server), "text": page.String(&d.Choice.Text),
		"state": page.OneOf(&d.Choice.State, toolStates, "state is served, unserved, withheld or quarantined"),
	})); err != nil {
		return d, err
	}
	if !ts.looks(r.Context(), p) {
		return d, people.NotOperator
	}
	all, err := ts.offered.List(r.Context())
	text := strings.ToLower(d.Choice.Text)
	found := slices.DeleteFunc(all, func(t Tool) bool {
		return d.Choice.Server != "" && t.Server != d.Choice.Server || !t.inState(d.Choice.State) ||
			!strings.Contains(strings.ToLower(t.Name+"\n"+t.Exposed+"\n"+t.Title), text)
	})
	for i := range found {
		found[i] = found[i].shown()
	}
	d.List = page.PartOf(r.URL, part, found, Tool.order)
	return d, err
}

// order returns a key that sorts tools by server and name.
func (t Tool) order() string {
	return strings.Join([]string{t.Server, t.Name, t.For, t.Digest}, "\x00")
}

// toolFor returns what p may know of a tool.
func (ts *tools) toolFor(ctx context.Context, p policy.Principal, q ToolQuery) (ToolDetail, error) {
	if !ts.looks(ctx, p) {
		return ToolDetail{}, people.NotOperator
	}
	t, err := ts.offered.Show(ctx, q)
	if err != nil {
		return t, err
	}
	t.Tool, t.Difference = t.shown(), page.VisibleLines(t.Difference)
	for i := range t.Others {
		t.Others[i] = t.Others[i].shown()
	}
	if t.Principal != nil {
		t.Principal.Subject, t.Principal.Reason = page.Visible(t.Principal.Subject), page.Visible(t.Principal.Reason)
	}
	return t, nil
}

// readTool reads a query for the tool that the path of r names.
func readTool(r *http.Request) (ToolQuery, error) {
	q := toolAt(r)
	err := page.ReadQuery(r.URL, map[string]func(string) error{
		"digest": page.String(&q.Digest), "principal": page.String(&q.Principal),
		"roles": func(value string) error {
			if value != "" {
				q.Roles = strings.Split(value, ",")
			}
			return nil
		},
	})
	return q, err
}

func (ts *tools) show(r *http.Request, p policy.Principal) (any, error) {
	q, err := readTool(r)
	if err != nil {
		return nil, err
	}
	return ts.toolFor(r.Context(), p, q)
}

// toolAt returns the tool that the path of r names, as toolPath does for pages.
func toolAt(r *http.Request) ToolQuery {
	q := ToolQuery{Server: r.PathValue("server"), Name: r.PathValue("name")}
	if strings.HasPrefix(r.URL.Path, toolsPath) {
		q.Name = strings.TrimPrefix(q.Name, dotMark)
	}
	return q
}

// answerJudgement returns what accepts or refuses the definition of the tool that the path names, and answers
// with the tool.
func (ts *tools) answerJudgement(refuse bool) page.CallerHandler {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		var body struct {
			Digest string `json:"digest"`
			Reason string `json:"reason"`
		}
		if err := page.ReadBody(w, r, &body, "an object with the text digest and, to refuse, reason", `{"digest": "sha256:…", "reason": "…"}`); err != nil {
			return err
		}
		q := toolAt(r)
		q.Digest = body.Digest
		if err := ts.judge(r, p, Verdict{Server: q.Server, Name: q.Name, Digest: body.Digest, Refuse: refuse, Reason: body.Reason}); err != nil {
			return err
		}
		t, err := ts.toolFor(r.Context(), p, q)
		if err != nil {
			return err
		}
		return page.Answer(w, t)
	}
}

// maxReasonBytes bounds the reason of a refusal.
const maxReasonBytes = 1000

// judge accepts or refuses a definition for p. It is recorded first, and so is that p was refused to.
func (ts *tools) judge(r *http.Request, p policy.Principal, v Verdict) error {
	act := people.Act{Name: audit.EventAccepted, Principal: p, Server: page.Visible(v.Server), Tool: page.Visible(v.Name), Why: "accept"}
	if v.Refuse {
		act.Name, act.Why = audit.EventNotAccepted, page.Visible(v.Reason)
	}
	var err error
	switch {
	case !ts.May(r.Context(), p, policy.Definitions):
		err = mayNotAccept
	case v.Digest == "":
		err = page.BadRequest("digest names the definition that was looked at", "GET the tool: it is the member digest")
	case !v.Refuse && v.Reason != "":
		err = page.BadRequest("a definition is accepted without a reason", "POST …/refuse says why it is not")
	case v.Refuse && (strings.TrimSpace(v.Reason) == "" || len(v.Reason) > maxReasonBytes):
		err = page.Problem{Status: http.StatusUnprocessableEntity, Code: "REASON_REQUIRED", Detail: "a reason of 1 to 1000 bytes is needed", Hint: "it is shown until the server offers another definition"}
	default:
		v.By = p.Subject
		v.Record = func(added, removed []string) error {
			done := act
			done.Added, done.Removed = added, removed
			return ts.Record(r, done)
		}
		err = ts.offered.Judge(r.Context(), v)
	}
	if err != nil {
		act.Why = ""
		return ts.RecordRefusal(r, act, err)
	}
	return err
}

// shown returns t with the texts that others wrote in their visible form.
func (t Tool) shown() Tool {
	t.Title, t.Reason = page.Visible(t.Title), page.Visible(page.OneLine(t.Reason))
	if t.Pin != nil && t.Pin.Refused != nil {
		pin, refused := *t.Pin, *t.Pin.Refused
		refused.By, refused.Reason = page.Visible(refused.By), page.Visible(refused.Reason)
		pin.By, pin.Refused = page.Visible(pin.By), &refused
		t.Pin = &pin
	}
	return t
}

// looks reports whether p may look at tools: to operate servers, or to judge definitions.
func (ts *tools) looks(ctx context.Context, p policy.Principal) bool {
	return ts.May(ctx, p, policy.Operates) || ts.May(ctx, p, policy.Definitions)
}

const (
	toolsPath = "/console/tools"
	dotMark   = "~"
)

// toolPath returns the path of the page of a tool. A name that is no segment of a path gets a mark, for which a name
// that begins with the mark gets another one.
func toolPath(server, name string) string {
	if name == "." || name == ".." || strings.HasPrefix(name, dotMark) {
		name = dotMark + name
	}
	return toolsPath + "/" + url.PathEscape(server) + "/" + url.PathEscape(name)
}

// toolsAt returns the address of the list of tools of a server in a state, where these are not "".
func toolsAt(server, state string) string {
	return toolsPath + "?" + url.Values{"server": {server}, "state": {state}}.Encode()
}

// address is that of the page of t, and of this definition where it is for some clients only.
func (t Tool) address() string {
	if t.For == "" {
		return toolPath(t.Server, t.Name)
	}
	return toolPath(t.Server, t.Name) + "?" + url.Values{"digest": {t.Digest}}.Encode()
}

// waits reports whether somebody has to accept or refuse the definition that t has now.
func (t Tool) waits() bool { return t.Pin != nil && t.Pin.Digest != t.Digest }

type toolsPage struct {
	page.Shell
	page.List[Tool]
	Choice  toolChoice
	Servers []string
}

// listPage lists tools.
func (ts *tools) listPage(r *http.Request, v people.Visitor) (templ.Component, error) {
	d, err := ts.ask(r, v.Principal)
	if err != nil {
		return nil, err
	}
	for _, u := range ts.status().Upstreams {
		d.Servers = append(d.Servers, u.Name)
	}
	d.Shell, err = ts.Shell(r.Context(), v, "Tools", toolsPath, "")
	return toolsView(d), err
}

type toolPageData struct {
	page.Shell
	Tool    ToolDetail
	Lines   []twoLines // of the accepted and the offered definition
	Asked   ToolQuery
	Refused *page.Problem // why nothing is known of who was asked for
	Judges  bool
}

// page shows the tool that the path names.
func (ts *tools) page(r *http.Request, v people.Visitor) (templ.Component, error) {
	q, err := readTool(r)
	if err != nil {
		return nil, err
	}
	d := toolPageData{Asked: q, Judges: ts.May(r.Context(), v.Principal, policy.Definitions)}
	d.Tool, err = ts.toolFor(r.Context(), v.Principal, q)
	if p := page.ProblemOf(err); err != nil && p.Status == http.StatusBadRequest {
		d.Refused, q.Principal = &p, ""
		d.Tool, err = ts.toolFor(r.Context(), v.Principal, q)
	}
	if err != nil {
		return nil, err
	}
	d.Lines = sideBySide(d.Tool.Difference)
	d.Shell, err = ts.Shell(r.Context(), v, page.Visible(d.Tool.Exposed), toolsPath, "") // what the visitor types stays
	return toolView(d), err
}

// submitJudgement returns what accepts or refuses the definition that a form shows.
func (ts *tools) submitJudgement(refuse bool) people.VisitorHandler {
	return people.Leads(func(r *http.Request, v people.Visitor) (string, error) {
		q := toolAt(r)
		verdict := Verdict{Server: q.Server, Name: q.Name, Digest: r.PostForm.Get("digest"), Refuse: refuse, Reason: r.PostForm.Get("reason")}
		return toolPath(q.Server, q.Name) + "?digest=" + url.QueryEscape(verdict.Digest), ts.judge(r, v.Principal, verdict)
	})
}

// twoLines are a line of one text beside that of another. The first of a part that is left out is a Gap.
type twoLines struct {
	Was, Now     *sideLine // nil = there is none
	Changed, Gap bool
}

// sideLine is a line in three parts, of which the middle is the one that differs.
type sideLine struct{ Before, Middle, After page.Text }

// sideBySide lays out a difference in the unified form, of visible texts.
func sideBySide(unified string) (all []twoLines) {
	var was, now []string
	flush := func() {
		for i := range max(len(was), len(now)) {
			line := twoLines{Changed: true}
			switch {
			case i >= len(now):
				line.Was = &sideLine{Before: page.TextOf(was[i])}
			case i >= len(was):
				line.Now = &sideLine{Before: page.TextOf(now[i])}
			default:
				line.Was, line.Now = apart(was[i], now[i]), apart(now[i], was[i])
			}
			all = append(all, line)
		}
		was, now = nil, nil
	}
	_, body, _ := strings.Cut(unified, "\n@@ ")
	for _, text := range strings.Split(strings.TrimSuffix(body, "\n"), "\n")[1:] {
		switch {
		case strings.HasPrefix(text, "-"):
			was = append(was, text[1:])
		case strings.HasPrefix(text, "+"):
			now = append(now, text[1:])
		case strings.HasPrefix(text, "@@ "):
			flush()
			all = append(all, twoLines{Gap: true})
		default:
			flush()
			same := &sideLine{Before: page.TextOf(strings.TrimPrefix(text, " "))}
			all = append(all, twoLines{Was: same, Now: same})
		}
	}
	flush()
	return all
}

// apart splits a line where another begins and ceases to differ from it, between words.
func apart(line, other string) *sideLine {
	a, b := strings.SplitAfter(line, " "), strings.SplitAfter(other, " ")
	start, end := 0, 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	join := func(words []string) page.Text { return page.TextOf(strings.Join(words, "")) }
	return &sideLine{join(a[:start]), join(a[start : len(a)-end]), join(a[len(a)-end:])}
}
