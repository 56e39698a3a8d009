package console_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"iter"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
)

// adviser answers about a policy, and keeps what it is asked.
type adviser struct {
	matrix    console.MatrixQuery
	call      console.SupposedCall
	candidate console.Candidate
	export    console.ExportQuery
	release   chan error // ends a job
	begun     chan struct{}
}

func (a *adviser) State(context.Context) (console.PolicyState, error) {
	return console.PolicyState{Revision: "sha256:1"}, nil
}

func (a *adviser) Files(context.Context) (map[string][]byte, error) {
	return map[string][]byte{"p.rego": []byte("package toolgate\n\nx := \"<b>\u202e\"\n")}, nil
}

func (a *adviser) Matrix(_ context.Context, q console.MatrixQuery) (console.PolicyMatrix, error) {
	a.matrix = q
	return console.PolicyMatrix{Revision: "sha256:1"}, nil
}

func (a *adviser) CanI(_ context.Context, c console.SupposedCall) (console.PolicyAnswer, error) {
	a.call = c
	return console.PolicyAnswer{Answer: "yes"}, nil
}

func (a *adviser) Explain(_ context.Context, c console.SupposedCall) (console.PolicyExplanation, error) {
	a.call = c
	return console.PolicyExplanation{}, fmt.Errorf("%w: no server lists it", console.ErrBadCall)
}

func (a *adviser) Try(ctx context.Context, c console.Candidate, report func(console.Progress)) (console.PolicyTrial, error) {
	a.candidate = c
	report(console.Progress{Doing: "judging", Done: 1, All: 4})
	a.begun <- struct{}{}
	select {
	case err := <-a.release:
		return console.PolicyTrial{Revision: "sha256:2"}, err
	case <-ctx.Done():
		return console.PolicyTrial{}, ctx.Err()
	}
}

// advised is a listener with an adviser. May gives operators each right but those that the test withholds.
func advised(t *testing.T, withheld ...policy.Right) (*listener, *adviser) {
	return advisedBy(t, nil, withheld...)
}

// advisedBy is advised with other options.
func advisedBy(t *testing.T, change func(*console.Options), withheld ...policy.Right) (*listener, *adviser) {
	a := &adviser{release: make(chan error), begun: make(chan struct{}, 1)}
	l := newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			for _, w := range withheld {
				if w == right {
					return false, nil
				}
			}
			return p.Has("operator") || p.Subject == "bob", nil // who reads no trail
		}
		o.TrailRight = func(_ context.Context, p policy.Principal) (policy.TrailRight, error) {
			if p.Subject == "oda" || p.Has("auditor") {
				return policy.TrailAll, nil
			}
			return policy.TrailDecides, nil
		}
		o.Policy, o.Judge, o.Shadow, o.Anchors = a, a, talker{}.shadow, talker{}.anchors
		o.Verify = func(ctx context.Context, report func(console.Progress)) (notary.Verified, error) {
			_, err := a.Try(ctx, console.Candidate{}, report)
			return notary.Verified{OK: true}, err
		}
		o.Export = func(_ context.Context, q console.ExportQuery) (iter.Seq2[[]byte, error], error) {
			a.export = q
			if q.Tool == "[" {
				return nil, errors.New("reading the pattern")
			}
			return func(yield func([]byte, error) bool) { yield([]byte("line"), nil) }, nil
		}
		if change != nil {
			change(o)
		}
	})
	return l, a
}

const (
	someCall   = `{"tool":"t","roles":["r"],"arguments":{"n":1}}`
	someFiles  = `{"files":{"p/q.rego":"package toolgate"}}`
	tryPath    = "/v1/policy/try"
	verifyPath = "/v1/audit/verify"
)

// Who may ask what about the policy and the trail, and what is recorded.
func TestWhoAsksAboutThePolicy(t *testing.T) {
	for _, tc := range []struct {
		method, path, body, token string
		withheld                  policy.Right
		unrecorded                error
		status                    int
		code, act                 string
	}{
		{"GET", "/v1/policy", "", "t-oda", "", nil, 200, "", ""},
		{"GET", "/v1/policy", "", "t-ann", "", nil, 403, "NOT_OPERATOR", ""},
		{"GET", "/v1/policy/matrix", "", "t-ann", "", nil, 403, "NOT_OPERATOR", ""},
		{"POST", "/v1/policy/can-i", someCall, "t-oda", "", nil, 200, "", ""},
		{"POST", "/v1/policy/can-i", someCall, "t-ann", "", nil, 403, "NOT_OPERATOR", ""},
		{"POST", "/v1/policy/explain", someCall, "t-ann", "", nil, 403, "NOT_OPERATOR", ""},
		{"POST", tryPath, someFiles, "t-oda", "", nil, 202, "", audit.EventTried},
		{"POST", tryPath, someFiles, "t-oda", policy.Operates, nil, 403, "NOT_OPERATOR", audit.EventTried},
		{"POST", tryPath, someFiles, "t-bob", "", nil, 403, "NOT_AUDITOR", audit.EventTried},
		{"POST", tryPath, someFiles, "t-audit", "", nil, 403, "NOT_OPERATOR", audit.EventTried},
		{"POST", tryPath, someFiles, "t-oda", "", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", audit.EventTried},
		{"GET", "/v1/policy/shadow", "", "t-oda", "", nil, 200, "", audit.EventTrailRead},
		{"GET", "/v1/policy/shadow?candidate=none", "", "t-oda", "", nil, 404, "NOT_FOUND", audit.EventTrailRead},
		{"GET", "/v1/policy/shadow", "", "t-oda", policy.Operates, nil, 403, "NOT_OPERATOR", audit.EventTrailRead},
		{"GET", "/v1/policy/shadow", "", "t-bob", "", nil, 403, "NOT_AUDITOR", audit.EventTrailRead},
		{"GET", "/v1/policy/shadow", "", "t-oda", "", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", audit.EventTrailRead},
		{"GET", "/v1/audit/anchors", "", "t-audit", "", nil, 200, "", ""},
		{"GET", "/v1/audit/anchors", "", "t-ann", "", nil, 403, "NOT_AUDITOR", ""},
		{"POST", verifyPath, "", "t-audit", "", nil, 202, "", audit.EventVerified},
		{"POST", verifyPath, "", "t-ann", "", nil, 403, "NOT_AUDITOR", audit.EventVerified},
		{"POST", verifyPath, "", "t-audit", "", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", audit.EventVerified},
		{"GET", "/v1/audit/export", "", "t-oda", "", nil, 200, "", audit.EventExported},
		{"GET", "/v1/audit/export", "", "t-oda", policy.Exports, nil, 403, "NOT_EXPORTER", audit.EventExported},
		{"GET", "/v1/audit/export", "", "t-audit", "", nil, 403, "NOT_EXPORTER", audit.EventExported},
		{"GET", "/v1/audit/export", "", "t-oda", "", errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", audit.EventExported},
	} {
		t.Run(tc.method+" "+tc.path+" "+tc.token+" "+tc.code, func(t *testing.T) {
			l, a := advised(t, tc.withheld)
			l.unrecorded = tc.unrecorded
			w := l.ask(tc.method, tc.path, tc.body, as(tc.token)...)
			if tc.code != "" {
				refused(t, w, tc.status, tc.code)
			} else if w.Code != tc.status {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if tc.act != "" != (len(l.acts) == 1) || tc.act != "" && (l.acts[0].Name != tc.act || (l.acts[0].Reason != "") != (tc.status == 403)) {
				t.Errorf("recorded %+v", l.acts)
			}
			if tc.status != 202 && len(a.begun) > 0 {
				t.Error("work has begun")
			}
		})
	}
}

// What is asked arrives as it was asked, and nothing that is not known.
func TestQuestions(t *testing.T) {
	l, a := advised(t)
	get := func(path string) int { return l.ask("GET", path, "", as("t-oda")...).Code }
	if code := get("/v1/policy/matrix?role=r&tool=t&limit=7&cursor=s&subject=ann"); code != 200 ||
		!cmp.Equal(a.matrix, console.MatrixQuery{Roles: []string{"r"}, Subject: "ann", Tools: []string{"t"}, After: "s", Limit: 7}) {
		t.Errorf("%d, %+v", code, a.matrix)
	}
	if code := get("/v1/audit/export?format=csv&since=24h&until=2026-03-01T00:00:00Z&kind=k&outcome=o&principal=p&tool=w*&ticket=x"); code != 200 ||
		!cmp.Equal(a.export, console.ExportQuery{Format: "csv", Since: l.Now().Add(-24 * time.Hour), Until: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), Kind: "k", Outcome: "o", Principal: "p", Tool: "w*", Ticket: "x"}) {
		t.Errorf("%d, %+v", code, a.export)
	}
	for _, path := range []string{"/v1/policy/matrix?x=1", "/v1/policy/matrix?limit=501", "/v1/policy/shadow?x=1", "/v1/policy/shadow?limit=1001", "/v1/audit/export?x=1", "/v1/audit/export?format=xml", "/v1/audit/export?since=-1h", "/v1/audit/export?tool=["} {
		refused(t, l.ask("GET", path, "", as("t-oda")...), 400, "BAD_REQUEST")
	}
	for _, body := range []string{`{"tool":"t"}`, `{"roles":["r"]}`, `{"tool":"t","roles":["r"],"x":1}`, `{"tool":"t","tool":"u","roles":["r"]}`} {
		refused(t, l.ask("POST", "/v1/policy/can-i", body, as("t-oda")...), 400, "BAD_REQUEST")
	}
	if p := refused(t, l.ask("POST", "/v1/policy/explain", someCall, as("t-oda")...), 400, "BAD_REQUEST"); !strings.Contains(p.Detail, "no server lists it") || string(a.call.Arguments) != `{"n":1}` {
		t.Errorf("%+v of %+v", p, a.call)
	}
}

// Disagreements come page by page, those of one candidate, on the page and from the interface.
func TestShadowPages(t *testing.T) {
	var asked []console.ShadowQuery
	l, _ := advisedBy(t, func(o *console.Options) {
		o.Shadow = func(_ context.Context, q console.ShadowQuery) (r shadow.Report, _ error) {
			asked = append(asked, q)
			first, _ := strconv.Atoi(strings.TrimPrefix(q.After, "dec_"))
			for i := first + 1; i <= min(3, first+q.Limit); i++ {
				id := fmt.Sprintf("dec_%d", i)
				r.Disagreements = append(r.Disagreements, shadow.Disagreement{Candidate: "sha256:1", DecisionID: id, Tool: "tool of " + id})
			}
			r.Asked = &shadow.Total{Candidate: "sha256:1"}
			return r, nil
		}
	})
	query, seen := "limit=2", []string{}
	for range 2 {
		var page struct {
			Disagreements []shadow.Disagreement
			Next          string
		}
		if err := json.Unmarshal(l.ask("GET", "/v1/policy/shadow?"+query, "", as("t-oda")...).Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Disagreements {
			seen = append(seen, d.DecisionID)
		}
		query = "limit=2&cursor=" + page.Next
	}
	if want := []string{"dec_1", "dec_2", "dec_3"}; !cmp.Equal(seen, want) || query != "limit=2&cursor=" {
		t.Errorf("%q and then %q", seen, query)
	}
	if second := (console.ShadowQuery{Candidate: "sha256:1", After: "dec_2", Limit: 3}); !cmp.Equal(asked[1], second) {
		t.Errorf("the second page asks for %+v", asked[1])
	}
	oda := newBrowser(l).signIn("t-oda")
	page := oda.do("GET", "/console/policy/shadow?limit=2", nil).Body.String()
	more := regexp.MustCompile(`href="(/console/policy/shadow[^"]*cursor=[^"]*)"`).FindStringSubmatch(page)
	if more == nil {
		t.Fatalf("no more: %s", page)
	}
	if last := oda.do("GET", html.UnescapeString(more[1]), nil).Body.String(); !strings.Contains(last, "tool of dec_3") || strings.Contains(last, "cursor=") {
		t.Errorf("the last page: %s", last)
	}
	refused(t, l.ask("GET", "/v1/policy/shadow?cursor=%21", "", as("t-oda")...), 400, "BAD_REQUEST")
}

// archive packs files as .tar.gz.
func archive(t *testing.T, files map[string]string, change func(*tar.Header)) string {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	packed := tar.NewWriter(zipped)
	for name, text := range files {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}
		if change != nil {
			change(h)
		}
		if err := packed.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = packed.Write([]byte(text))
		}
	}
	if err := errors.Join(packed.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A candidate is files within bounds, below its own directory.
func TestCandidates(t *testing.T) {
	one := map[string][]byte{"p/q.rego": []byte("package toolgate")}
	packed := map[string]string{"p/q.rego": "package toolgate"}
	for name, tc := range map[string]struct {
		kind, body string
		want       map[string][]byte // nil = refused
	}{
		"texts":                {"application/json", someFiles, one},
		"an archive":           {"application/gzip", archive(t, packed, nil), one},
		"an archive from root": {"application/gzip", archive(t, map[string]string{"/p/q.rego": "package toolgate"}, nil), one},
		"no files":             {"application/json", `{"files":{}}`, nil},
		"no JSON":              {"application/json", `{"files"`, nil},
		"no archive":           {"application/gzip", someFiles, nil},
		"another type":         {"text/plain", someFiles, nil},
		"above it":             {"application/json", `{"files":{"../q.rego":"package toolgate"}}`, nil},
		"an absolute path":     {"application/json", `{"files":{"/etc/q.rego":"package toolgate"}}`, nil},
		"an archive above it":  {"application/gzip", archive(t, map[string]string{"../q.rego": "x"}, nil), nil},
		"a link":               {"application/gzip", archive(t, packed, func(h *tar.Header) { h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, "/etc/passwd", 0 }), nil},
		"a bomb":               {"application/gzip", archive(t, map[string]string{"q.rego": strings.Repeat(" ", 5<<20)}, nil), nil},
		"too large":            {"application/json", `{"files":{"q.rego":"` + strings.Repeat(" ", 5<<20) + `"}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l, a := advised(t)
			w := l.ask("POST", tryPath, tc.body, "Authorization", "Bearer t-oda", "Content-Type", tc.kind)
			if tc.want == nil {
				if w.Code < 400 || w.Code >= 500 || len(l.acts) > 0 {
					t.Errorf("%d %s, recorded %v", w.Code, w.Body, l.acts)
				}
				return
			}
			<-a.begun
			if diff := cmp.Diff(console.Candidate{Files: tc.want, Since: l.Now().Add(-24 * time.Hour), Arguments: true}, a.candidate); diff != "" || w.Code != 202 {
				t.Errorf("%d (-want +got):\n%s", w.Code, diff)
			}
		})
	}
	l, a := advised(t, policy.ReadsArguments)
	l.ask("POST", tryPath, someFiles, as("t-oda")...)
	if <-a.begun; a.candidate.Arguments {
		t.Error("examples show arguments to somebody without the right")
	}
}

// A trial is Markdown for those who accept that first, once it is done, and only for whoever began it.
func TestTrialAsMarkdown(t *testing.T) {
	l, a := advisedBy(t, func(o *console.Options) {
		o.TrialText = func(t console.PolicyTrial) string { return "### " + t.Revision + "</textarea>" }
	})
	at := l.ask("POST", tryPath, someFiles, as("t-oda")...).Header().Get("Location")
	<-a.begun
	get := func(accept string) *httptest.ResponseRecorder {
		return l.ask("GET", at, "", append(as("t-oda"), "Accept", accept)...)
	}
	refused(t, get("text/markdown"), 409, "NOT_DONE")
	a.release <- nil
	for accepted(t, get("*/*"))["state"] != console.JobDone { // the job ends by itself
	}
	for accept, want := range map[string]string{
		"text/markdown": "### sha256:2</textarea>", "text/markdown;q=0.9, */*": "### sha256:2</textarea>", "application/json, text/markdown": `"state":"done"`, "": `"state":"done"`,
	} {
		if w := get(accept); w.Code != 200 || !strings.Contains(w.Body.String(), want) || strings.HasPrefix(want, "#") != (w.Header().Get("Content-Type") == "text/markdown; charset=utf-8") {
			t.Errorf("%q: %d %v %s", accept, w.Code, w.Header(), w.Body)
		}
	}
	refused(t, l.ask("GET", at, "", append(as("t-audit"), "Accept", "text/markdown")...), 404, "NO_JOB")
	page := newBrowser(l).signIn("t-oda").do("GET", strings.Replace(at, "/v1/", "/console/", 1), nil).Body.String()
	if !strings.Contains(page, "### sha256:2&lt;/textarea&gt;</textarea>") {
		t.Error("the page has no Markdown: " + page)
	}
}

// A job goes on without its request. Whoever began it, and nobody else, sees and cancels it.
func TestJobs(t *testing.T) {
	l, a := advised(t)
	begin := func() string {
		t.Helper()
		w := l.ask("POST", verifyPath, "", as("t-audit")...)
		if w.Code != http.StatusAccepted {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		<-a.begun
		return w.Header().Get("Location")
	}
	show := func(path string) map[string]any { return accepted(t, l.ask("GET", path, "", as("t-audit")...)) }
	ended := func(path string) map[string]any {
		for {
			if job := show(path); job["state"] != "running" {
				return job
			}
		}
	}
	at := begin()
	if job := show(at); job["state"] != "running" || job["doing"] != "judging" || job["done"] != 1.0 || job["all"] != 4.0 {
		t.Errorf("%v", job)
	}
	for _, method := range []string{"GET", "DELETE"} {
		refused(t, l.ask(method, at, "", as("t-oda")...), 404, "NO_JOB")
		refused(t, l.ask(method, strings.Replace(at, verifyPath, tryPath, 1), "", as("t-audit")...), 404, "NO_JOB")
	}
	refused(t, l.ask("POST", verifyPath, "", as("t-oda")...), 409, "BUSY")
	if list := accepted(t, l.ask("GET", verifyPath, "", as("t-oda")...)); len(list["jobs"].([]any)) != 0 {
		t.Errorf("somebody else sees %v", list)
	}
	a.release <- nil
	if job := ended(at); job["state"] != "done" || job["result"].(map[string]any)["ok"] != true {
		t.Errorf("%v", job)
	}
	failing := begin()
	a.release <- errors.New("a file\u202e cannot be read")
	if job := ended(failing); job["state"] != "failed" || job["error"] != `a file\u202e cannot be read` {
		t.Errorf("%v", job)
	}
	cancelled := begin()
	l.ask("DELETE", cancelled, "", as("t-audit")...)
	if job := ended(cancelled); job["state"] != "cancelled" || job["error"] != nil {
		t.Errorf("%v", job)
	}
	for range 10 {
		last := begin()
		a.release <- nil
		ended(last)
	}
	if list := accepted(t, l.ask("GET", verifyPath, "", as("t-audit")...))["jobs"].([]any); len(list) != 8 {
		t.Errorf("%d jobs are kept", len(list))
	}
	begin()
	l.Console.Close() // ends it, and waits
}
