package policies

import (
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
)

// Callers choose names and arguments: none of them may end a cell, speak HTML or
// mention anybody in a comment that others read, nor command a terminal.
func TestAReplayReportTellsTextFromMarkup(t *testing.T) {
	evil := "x`|``<img src=x>@everyone\n\x1b[2J[a](javascript:b)"
	const code = "```x`\\|``<img src=x>@everyone \\u001b[2J[a](javascript:b)```"
	const plain = "x\\`\\|\\`\\`\\<img src=x\\>\\@everyone \\\\u001b\\[2J\\[a\\]\\(javascript:b\\)"
	asText := func(rep *replay.Report) string {
		return report.Of(replayPage{Report: rep}, replayText).Text(report.Table)
	}
	asMarkdown := func(rep *replay.Report) string {
		return report.Of(replayPage{Report: rep}, replayText).Text("markdown")
	}
	page := asMarkdown(named(evil))
	rest := strings.NewReplacer(code, "", plain, "").Replace(page)
	for _, bad := range []string{"<img", "@everyone", "javascript", "\x1b"} {
		if strings.Contains(rest, bad) {
			t.Errorf("%q stands unquoted in\n%s", bad, rest)
		}
	}
	for _, print := range []func(*replay.Report) string{asText, asMarkdown} {
		bad, good := print(named(evil)), print(named("x"))
		if strings.Contains(bad, "\x1b") || strings.Count(bad, "\n") != strings.Count(good, "\n") {
			t.Errorf("a name commands a terminal or begins a line:\n%q", bad)
		}
		if got, want := strings.Count(strings.ReplaceAll(rest, `\|`, ""), "|"), strings.Count(asMarkdown(named("x")), "|"); got != want {
			t.Errorf("%d bars end cells, want %d", got, want)
		}
	}
}

// named is a report in which everybody and everything has one name.
func named(name string) *replay.Report {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	verdict := judgement.Verdict{Effect: "allow", Rule: name}
	changes := replay.Changes{
		Count: 1, Principals: []replay.Share{{Name: name, Count: 1}}, Tools: []replay.Share{{Name: name, Count: 1}},
		Rules: []replay.Turn{{Was: verdict, Now: verdict, Count: 1, Examples: []replay.Example{
			{DecisionID: name, Time: at, Principal: name, Tool: name, Arguments: name, Was: name, Now: name}}}},
	}
	return &replay.Report{
		Candidate: "sha256:x", First: at, Last: at, Judged: 1, Changed: changes, Adjusted: changes, Failed: changes,
		Effects: []replay.Move{{Was: "allow", Now: "deny", Count: 1}}, Errors: []replay.Cause{{Cause: name, Count: 1, DecisionID: name}},
		Unjudged: []replay.Cause{{Cause: name, Count: 1}},
	}
}
