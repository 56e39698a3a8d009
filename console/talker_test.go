package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/workbench"
)

// A talker answers about a policy at once. Its answers have a text wherever data can choose one; "" = texts
// of a real policy.
type talker struct {
	*adviser
	text string
}

// or returns the talker's text, or else another.
func (k talker) or(usual string) string {
	if k.text != "" {
		return k.text
	}
	return usual
}

func (k talker) State(context.Context) (console.PolicyState, error) {
	s := console.PolicyState{Revision: "sha256:4f2a9c03b7d14c7c8f60b3c7d0e1a5f2", Roles: []string{k.or("researcher"), k.or("treasurer")}, Shadow: k.or("3 of 812 decisions differ"),
		Revisions: []console.ServedPolicy{{Revision: k.or("sha256:4f2a9c03b7d14c7c8f60b3c7d0e1a5f2"), Since: time.Unix(1772359200, 0)}, {Revision: "sha256:1c81c83b7d14c7c8f60b3c7d0e1a5f24", Since: time.Unix(1771359200, 0)}}}
	if k.text != "" || k.adviser != nil {
		s.Findings = []console.Finding{{Level: "warning", Code: "useless-tool", Where: k.or("tool search__old"), Message: k.or("researcher can see it, and every call is denied"), Hint: k.or("let visible be false for callers who are always denied")},
			{Level: "note", Where: k.or("toolgate.rego:12"), Message: k.or("a rule that decides has no METADATA with labels.rule")}}
	}
	return s, nil
}

func (k talker) Files(context.Context) (map[string][]byte, error) {
	return map[string][]byte{"toolgate.rego": []byte("package toolgate\n\nimport rego.v2\n\ndecision := {\"effect\": \"deny\"}\n"), k.or("data.json"): []byte("</textarea>" + k.text)}, nil
}

func (k talker) Matrix(_ context.Context, q console.MatrixQuery) (console.PolicyMatrix, error) {
	m := console.PolicyMatrix{Revision: "sha256:1", Cells: []workbench.Cell{}, Next: k.or("wallet__zap"), Roles: []string{k.or("researcher"), k.or("treasurer")}, Rules: map[string]console.RuleText{k.or("transfer_over_threshold"): {Where: k.or("toolgate.rego:88"), Text: k.or("hold contains {\n\tsome asset\n\tinput.arguments.amount > 100\n}")}}}
	hold := workbench.Clause{Effect: policy.Hold, Rule: k.or("transfer_over_threshold"), Roles: []string{k.or("approver")}, Conditions: []string{k.or("amount > 100 USD")}}
	allow := workbench.Clause{Effect: policy.Allow, Rule: k.or("transfer"), Conditions: []string{k.or("amount ≤ 100 USD")}}
	for i := range q.Limit {
		for _, role := range []string{"researcher", "treasurer"} {
			c := workbench.Cell{Role: k.or(role), Tool: k.or("wallet__manage_wallet_" + strconv.Itoa(i)), May: []workbench.May{workbench.Always, workbench.Never, workbench.Sometimes, workbench.Depends}[(i+len(role))%4]}
			switch c.May {
			case workbench.Sometimes:
				c.Clauses = []workbench.Clause{allow, hold}
			case workbench.Depends:
				c.Why, c.Others = k.or("on the subject"), k.or("never")
			}
			m.Cells = append(m.Cells, c)
		}
	}
	return m, nil
}

func (k talker) Explain(context.Context, console.SupposedCall) (console.PolicyExplanation, error) {
	d := policy.Decision{Effect: policy.Hold, Rule: k.or("transfer_over_threshold"), Reason: k.or("transfers above 100 USD are for a person to decide")}
	return console.PolicyExplanation{Explanation: workbench.Explanation{Decision: d, Failure: k.text, Title: k.or("Transfers above the threshold wait for a person"), Where: k.or("toolgate.rego:88"),
		Facts: []workbench.Fact{{Path: k.or("input.arguments.amount"), Value: json.RawMessage(k.or("450"))}, {Path: k.or("data.thresholds.manage_wallet")}},
		Ways:  []workbench.Way{{Decision: policy.Decision{Effect: policy.Allow, Rule: k.or("transfer")}, Lacking: []string{k.or("input.arguments.amount <= 100")}}}},
		Roles: []workbench.RoleAnswer{{Role: k.or("treasurer"), May: k.or("held for approver when amount > 100 USD")}}}, nil
}

func (k talker) Try(context.Context, console.Candidate, func(console.Progress)) (console.PolicyTrial, error) {
	turn := replay.Turn{Was: judgement.Verdict{Effect: policy.Allow, Rule: k.or("transfer")}, Now: judgement.Verdict{Effect: policy.Hold, Rule: k.or("transfer_over_threshold")}, Count: 41,
		Examples: []replay.Example{{DecisionID: k.or("dec_01M8MDDY6SZVKW3C6JEN40SF87"), Time: time.Unix(1772359200, 0), Principal: k.or("payroll-agent"), Tool: k.or("wallet__manage_wallet"), Arguments: k.or(`{"action": "transfer", "amount": 75, "asset": "USD"}`), Was: k.text, Now: k.text}}}
	return console.PolicyTrial{Revision: "sha256:2", Findings: []console.Finding{{Level: "note", Message: k.or("a rule that decides has no METADATA with labels.rule")}},
		Tests:  &workbench.TestReport{Cases: []workbench.TestCase{{Name: k.or("data.toolgate.test_little"), File: k.or("toolgate_test.rego"), Row: 7, Outcome: workbench.Failed, Message: k.or("want allow, got hold")}}},
		Matrix: []workbench.CellChange{{Caller: k.or("treasurer"), Tool: k.or("wallet__manage_wallet"), Was: []string{k.or("held for approver when amount > 100 USD")}, Now: []string{k.or("held for approver when amount > 50 USD")}}},
		Replay: &replay.Report{Judged: 1204, Changed: replay.Changes{Count: 41, Rules: []replay.Turn{turn}}, Unjudged: []replay.Cause{{Cause: k.or("its arguments were masked"), Count: 12}}}}, nil
}

func (k talker) shadow(_ context.Context, q console.ShadowQuery) (shadow.Report, error) {
	if q.Candidate == "none" {
		return shadow.Report{}, shadow.ErrNoCandidate
	}
	at := time.Unix(1772359200, 0)
	all := []shadow.Total{{Candidate: k.or("sha256:7777f2a9c03b7d14c7c8f60b3c7d0e1a"), First: at.Add(-time.Hour), Last: at, Counts: shadow.Counts{Same: 809, Changed: 3}}, {Candidate: "sha256:1111f2a9c03b7d14c7c8f60b3c7d0e1a", First: at, Last: at}}
	return shadow.Report{Candidates: all, Asked: &all[0], Disagreements: []shadow.Disagreement{
		{Candidate: all[0].Candidate, DecisionID: "dec_01M8MDDY6SZVKW3C6JEN40SF87", At: at, Serving: "sha256:4f2a", Principal: k.or("payroll-agent"), Tool: k.or("wallet__manage_wallet"), Difference: judgement.ByEffect,
			Was: judgement.Verdict{Effect: policy.Allow, Rule: k.or("transfer")}, Now: judgement.Verdict{Effect: policy.Hold, Rule: k.or("transfer_over_threshold")}, Reason: k.or("above 50 USD")}}}, nil
}

func (k talker) anchors() ([]notary.AnchorState, error) {
	var unsigned error
	if k.text != "" {
		unsigned = errors.New(k.text)
	}
	at := time.Unix(1772359200, 0)
	return []notary.AnchorState{{Kind: "witness", Name: k.or("/srv/witness"), Seq: 48211, Last: at, Fault: k.text}, {Kind: "webhook", Name: "webhook", Seq: 48100, Last: at, Fault: k.or("posting checkpoint: no answer")}, {Kind: "directory", Name: "/mnt/anchor"}}, unsigned
}

func (k talker) verify(context.Context, func(console.Progress)) (notary.Verified, error) {
	v := notary.Verified{OK: k.text == "", Report: notary.Report{Verdicts: notary.Verdicts{Chain: notary.OK, Content: notary.OK, Independence: notary.Unproven},
		Chains: []notary.Chain{{Instance: "01M8MDDY6SZVKW3C6JEN40SF87", Records: 48211, Signed: 48200, Seen: 48100, Last: time.Unix(1772359200, 0)}}}}
	if k.text != "" {
		v.State, v.Problems = []string{k.text}, []notary.Problem{{What: k.text}}
	}
	return v, nil
}

func (k talker) call() index.Call {
	return index.Call{ID: "dec_01M8MDDY6SZVKW3C6JEN40SF87", Time: time.Unix(1772359200, 0), Principal: k.or("payroll-agent"), Person: k.or("Ada"), Roles: []string{k.or("treasurer")}, Tool: k.or("wallet__manage_wallet"), Server: k.or("wallet"),
		Effect: "deny", Rule: k.or("transfer_over_threshold"), Outcome: k.or("denied"), Code: k.or("T5_POLICY_DENIED"), Ticket: k.or("apr_01M8MDDY6SZVKW3C6JEN40SF88"), Account: k.or("ada@bank.example"), DurationMS: 3.25}
}

func (k talker) Search(context.Context, index.Query) (index.Page, error) {
	p := index.Page{Calls: []index.Call{}, Next: "n", BehindMS: 4000}
	for i := range 12 {
		c := k.call()
		if c.Outcome == "denied" && i%3 == 0 {
			c.Outcome, c.Code = []string{"allowed", "held", "", "allowed"}[i/3], ""
		}
		p.Calls = append(p.Calls, c)
	}
	return p, nil
}

func (k talker) Call(context.Context, string) (index.Whole, error) {
	w := index.Whole{Call: k.call(), Missing: 1}
	var err error
	r := audit.Record{Kind: audit.KindDecision, DecisionID: w.Call.ID, TraceID: k.or("4bf92f3577b34da6a3ce929d0e0e4736"), Principal: audit.Principal{Subject: k.or("payroll-agent"), Client: k.or("claude-code/2.4.1")},
		Policy: audit.Policy{Effect: "hold", Rule: k.or("transfer_over_threshold"), Reason: k.or("transfers above 100 USD are for a person to decide"), Revision: k.or("sha256:4f2a")}}
	if r.Arguments, err = json.Marshal(map[string]string{k.or("amount"): k.or("450")}); err != nil {
		return w, err
	}
	r.CallID, r.ParentID, r.Policy.Remedy, r.Time = "sig_01M8MDDY6SZVKW3C6JEN40SF80", k.or("sig_01M8MDDY6SZVKW3C6JEN40SF79"), k.or("ask ada, or send less than 100 USD"), w.Call.Time
	if w.Decision, err = json.Marshal(r); err != nil {
		return w, err
	}
	for i, to := range []string{"proposed", "denied"} {
		c := audit.Record{Kind: audit.KindTicket, Time: r.Time.Add(time.Duration(i+1) * 1500 * time.Millisecond), Change: &audit.Change{To: to, Who: k.or("ada")}}
		line, err := json.Marshal(c)
		if err != nil {
			return w, err
		}
		w.Changes = append(w.Changes, line)
	}
	r.Time, r.ResultBytes, r.ResultTokens, r.Warnings, r.Hidden = r.Time.Add(4*time.Second), 1234, 309, []string{k.or("the result breaks the schema of the tool")}, []string{"bidi"}
	w.Call.DurationMS, r.UpstreamMS, r.Signals = 4003.25, 12.34, []string{k.or("sig_01M8MDDY6SZVKW3C6JEN40SF82")}
	r.Kind, r.Outcome, r.Stage, r.Error = audit.KindOutcome, audit.Denied, k.or("approve"), k.or("a person said no: not the account of Northwind")
	w.Outcome, err = json.Marshal(r)
	return w, err
}

func (k talker) Follow(ctx context.Context, _ index.Query) iter.Seq2[index.Call, error] {
	return func(func(index.Call, error) bool) { <-ctx.Done() }
}
