package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

const toolsPath = "/console/tools"

// toolPath returns the path of the page of a tool.
func toolPath(server, name string) string {
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

// laidOut returns the visible form of JSON in lines.
func laidOut(text json.RawMessage) page.Text {
	return page.TextOf(page.Shorten(page.Indented(text)))
}
