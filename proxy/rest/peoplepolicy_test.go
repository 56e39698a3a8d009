package rest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/workbench"
)

// adviser answers about a policy; it fails for the revision or the tool broken.
type adviser struct{ broken bool }

func (a *adviser) State(context.Context) (console.PolicyState, error) {
	if a.broken {
		return console.PolicyState{}, errors.New("planted")
	}
	return console.PolicyState{Revision: "sha256:0", Roles: []string{"r"}, Findings: []console.Finding{{Level: "note", Message: "m"}}, Shadow: "none", Revisions: []console.ServedPolicy{{Revision: "sha256:0", Since: time.Unix(1e9, 0)}}}, nil
}

func (a *adviser) Files(context.Context) (map[string][]byte, error) { return nil, nil }

func (a *adviser) Matrix(_ context.Context, q console.MatrixQuery) (console.PolicyMatrix, error) {
	if q.Subject == "broken" {
		return console.PolicyMatrix{}, errors.New("planted")
	}
	return console.PolicyMatrix{Revision: "sha256:0", Cells: []workbench.Cell{{Role: "r", Tool: "t", May: workbench.Sometimes, Clauses: []workbench.Clause{{Effect: policy.Allow}}}}, Next: "t", Rules: map[string]console.RuleText{"r": {Where: "p.rego:1", Text: "r if true"}}}, nil
}

func (a *adviser) called(c console.SupposedCall) error {
	switch c.Tool {
	case "broken":
		return errors.New("planted")
	case "absent":
		return fmt.Errorf("%w: no such tool", console.ErrBadCall)
	}
	return nil
}

func (a *adviser) CanI(_ context.Context, c console.SupposedCall) (console.PolicyAnswer, error) {
	return console.PolicyAnswer{Answer: "yes", May: []string{"allowed"}}, a.called(c)
}

func (a *adviser) Explain(_ context.Context, c console.SupposedCall) (console.PolicyExplanation, error) {
	return console.PolicyExplanation{Revision: "sha256:0", Input: &policy.Input{Request: policy.Request{Time: time.Unix(1e9, 0)}}}, a.called(c)
}

func (a *adviser) Try(ctx context.Context, _ console.Candidate, report func(console.Progress)) (console.PolicyTrial, error) {
	report(console.Progress{Doing: "waiting", Done: 1, All: 2})
	<-ctx.Done()
	return console.PolicyTrial{}, ctx.Err()
}

func (a *adviser) shadow(_ context.Context, q console.ShadowQuery) (r shadow.Report, err error) {
	if q.Candidate == "absent" {
		return r, shadow.ErrNoCandidate
	}
	r.Candidates = []shadow.Total{{Candidate: "sha256:1"}}
	r.Disagreements = []shadow.Disagreement{{Candidate: "sha256:1", DecisionID: "dec_1", Was: judgement.Verdict{Effect: policy.Allow}, Now: judgement.Verdict{Effect: policy.Deny, Rule: "r"}}}
	r.Disagreements = slices.Repeat(r.Disagreements, min(q.Limit, 2))
	return r, nil
}

func anchorsNow() ([]notary.AnchorState, error) {
	return []notary.AnchorState{{Kind: "directory", Name: "/mnt/anchor", Seq: 7, Last: time.Unix(1e9, 0)}, {Kind: "webhook", Name: "webhook", Fault: "no answer"}}, errors.New("disk full")
}

func verifyUntilCancelled(ctx context.Context, _ func(console.Progress)) (notary.Verified, error) {
	<-ctx.Done()
	return notary.Verified{}, ctx.Err()
}

func exportOne(_ context.Context, q console.ExportQuery) (iter.Seq2[[]byte, error], error) {
	if q.Tool == "[" {
		return nil, errors.New("no pattern")
	}
	return func(yield func([]byte, error) bool) { yield([]byte(`{"v":1}`), nil) }, nil
}

// policyProbes are requests about the policy and the trail. tom operates servers and reads the trail,
// una's acts cannot be recorded.
func policyProbes() (probes []probe) {
	gets := func(path string, codes map[int]string) {
		for status, who := range codes {
			probes = append(probes, probe{status, who, "GET", path, "", nil})
		}
	}
	gets("/v1/policy", map[int]string{200: "oda", 401: "", 403: "ann"})
	gets("/v1/policy/matrix?role=r&tool=t&limit=2&cursor=a", map[int]string{200: "oda", 401: "", 403: "ann"})
	gets("/v1/policy/matrix?limit=0", map[int]string{400: "oda"})
	gets("/v1/policy/matrix?subject=broken", map[int]string{500: "oda"})
	gets("/v1/audit/export?format=csv&since=24h", map[int]string{200: "oda", 401: "", 403: "ann", 503: "una"})
	gets("/v1/audit/export?format=xml", map[int]string{400: "oda"})
	gets("/v1/policy/shadow?candidate=1&since=24h&limit=2", map[int]string{200: "tom", 401: "", 403: "oda", 503: "una"})
	gets("/v1/policy/shadow?limit=1&cursor=c2hhMjU2OjEgZGVjXzE", map[int]string{200: "tom"})
	gets("/v1/policy/shadow?cursor=!", map[int]string{400: "tom"})
	gets("/v1/policy/shadow?candidate=absent", map[int]string{404: "tom"})
	gets("/v1/policy/shadow?x=1", map[int]string{400: "tom"})
	gets("/v1/audit/anchors", map[int]string{200: "tom", 401: "", 403: "oda"})
	gets("/v1/audit/anchors?x=1", map[int]string{400: "tom"})
	gets("/v1/audit/seen", map[int]string{200: "tom", 401: "", 403: "oda", 503: "una"})
	gets("/v1/audit/seen?x=1", map[int]string{400: "tom"})
	for _, path := range []string{"/v1/audit/verify", "/v1/policy/try"} {
		gets(path, map[int]string{200: "tom", 401: ""})
		gets(path+"/absent", map[int]string{404: "tom", 401: ""})
		probes = append(probes, probe{404, "tom", "DELETE", path + "/absent", "", nil}, probe{401, "", "DELETE", path + "/absent", "", nil})
	}
	for _, path := range []string{"/v1/policy/can-i", "/v1/policy/explain"} {
		good := `{"tool":"t","roles":["r"],"arguments":{}}`
		probes = append(probes, probe{200, "oda", "POST", path, good, nil}, probe{401, "", "POST", path, good, nil}, probe{403, "ann", "POST", path, good, nil},
			probe{400, "oda", "POST", path, `{"tool":"t"}`, nil}, probe{400, "oda", "POST", path, `{"tool":"absent","subject":"s"}`, nil}, probe{500, "oda", "POST", path, `{"tool":"broken","subject":"s"}`, nil},
			probe{413, "oda", "POST", path, `{"tool":"` + strings.Repeat("x", 70_000) + `"}`, nil}, probe{415, "oda", "POST", path, good, []string{"Content-Type: text/plain"}})
	}
	good := `{"files":{"p.rego":"package toolgate"}}`
	return append(probes, probe{401, "", "POST", "/v1/audit/verify", "", nil}, probe{403, "oda", "POST", "/v1/audit/verify", "", nil}, probe{503, "una", "POST", "/v1/audit/verify", "", nil},
		probe{401, "", "POST", "/v1/policy/try", good, nil}, probe{403, "oda", "POST", "/v1/policy/try", good, nil}, probe{403, "ann", "POST", "/v1/policy/try", good, nil}, probe{503, "una", "POST", "/v1/policy/try", good, nil},
		probe{400, "tom", "POST", "/v1/policy/try?since=x", good, nil}, probe{400, "tom", "POST", "/v1/policy/try", `{}`, nil}, probe{415, "tom", "POST", "/v1/policy/try", good, []string{"Content-Type: text/plain"}},
		probe{413, "tom", "POST", "/v1/policy/try", strings.Repeat("x", 5<<20), nil})
}

// checkJobs begins a job at each path, looks at it and cancels it.
func checkJobs(t *testing.T, d *door, doc *document) {
	for path, body := range map[string]string{"/v1/audit/verify": "", "/v1/policy/try": `{"files":{"p.rego":"package toolgate"}}`} {
		location := ""
		for _, p := range []probe{{202, "tom", "POST", "", body, nil}, {409, "tom", "POST", "", body, nil}, {200, "tom", "GET", "at", "", nil}, {200, "tom", "GET", "", "", nil}, {200, "tom", "DELETE", "at", "", nil}} {
			at := path
			if p.path == "at" {
				at = location
			}
			got := d.do(p.who, p.method, at, p.body, p.headers...)
			if err := doc.check(p.method, at, got); err != nil || got.status != p.status {
				t.Errorf("%s %s: status %d, want %d: %v: %s", p.method, at, got.status, p.status, err, got.body)
			}
			if p.status == 202 {
				location = got.head.Get("Location")
				if path == "/v1/policy/try" {
					early := d.do("tom", "GET", location, "", "Accept: text/markdown")
					if err := doc.check("GET", location, early); err != nil || early.status != 409 {
						t.Errorf("Markdown of a trial that goes on: status %d, want 409: %v", early.status, err)
					}
				}
			}
		}
	}
}
