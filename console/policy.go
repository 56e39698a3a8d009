package console

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/policy/workbench"
)

// A PolicyReader says what the policy that serves is. Implementations are safe for concurrent use.
type PolicyReader interface {
	State(ctx context.Context) (PolicyState, error)
	// Files returns the texts of the policy by their paths in it; none for one that lies in an archive.
	Files(ctx context.Context) (map[string][]byte, error)
	Matrix(ctx context.Context, q MatrixQuery) (PolicyMatrix, error)
}

// A PolicyJudge judges calls that nobody makes. Nothing that it does changes what serves.
// Implementations are safe for concurrent use, and return ErrBadCall for a call that cannot be judged.
type PolicyJudge interface {
	CanI(ctx context.Context, call SupposedCall) (PolicyAnswer, error)
	Explain(ctx context.Context, call SupposedCall) (PolicyExplanation, error)
	// Try tries a policy that does not serve.
	Try(ctx context.Context, c Candidate, report func(Progress)) (PolicyTrial, error)
}

// ErrBadCall is wrapped by errors about a call that cannot be judged.
var ErrBadCall = errors.New("this call cannot be judged")

// PolicyState is the policy that serves.
type PolicyState struct {
	Revision string    `json:"revision"` // "sha256:<hex>"
	Roles    []string  `json:"roles"`
	Findings []Finding `json:"findings"` // of what lies at the path of the policy now
	Shadow   string    `json:"shadow,omitempty"`
	// Revisions are the last policies that served this state, the latest first.
	Revisions []ServedPolicy `json:"revisions"`
}

// A ServedPolicy is a policy that serves or served.
type ServedPolicy struct {
	Revision string    `json:"revision"`
	Since    time.Time `json:"since"`
}

// A Finding is something that an operator or the author of a policy should look at.
type Finding struct {
	Level   string `json:"level"`          // error, warning or note
	Code    string `json:"code,omitempty"` // its kind, by which a warning is accepted
	Where   string `json:"where"`          // file:line:column and key of the configuration, or the part that it is about
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`

	File string `json:"-"` // of Where; "" = unknown
	Row  int    `json:"-"` // in File, from 1; 0 = unknown
}

// A MatrixQuery selects cells: all roles, or one subject with its roles, and tools in the order of
// their exposed names.
type MatrixQuery struct {
	Roles   []string
	Subject string
	Tools   []string
	After   string // only tools after this one
	Limit   int    // of tools
}

// PolicyMatrix is who may call what.
type PolicyMatrix struct {
	Revision string           `json:"revision"`
	Cells    []workbench.Cell `json:"cells"`
	Next     string           `json:"next,omitempty"` // cursor of more tools
	Roles    []string         `json:"-"`              // that can be asked for
	// Rules are the texts of the rules that cells name, by their ids.
	Rules map[string]RuleText `json:"rules"`
}

// RuleText is a rule of a policy.
type RuleText struct {
	Where string `json:"where"` // file:row
	Text  string `json:"text"`
}

// A SupposedCall is a call that nobody makes.
type SupposedCall struct {
	Subject   string          `json:"subject,omitempty"`
	Roles     []string        `json:"roles,omitempty"` // none = those of the subject's token
	Client    string          `json:"client,omitempty"`
	Tenant    string          `json:"tenant,omitempty"`
	Tool      string          `json:"tool"`                // exposed name
	Arguments json.RawMessage `json:"arguments,omitempty"` // an object; nil = {}
	Time      time.Time       `json:"time,omitzero"`       // zero = now
}

// A PolicyAnswer says whether a call would be allowed.
type PolicyAnswer struct {
	Answer   string          `json:"answer"` // yes, held or no
	Decision policy.Decision `json:"decision"`
	May      []string        `json:"may,omitempty"`     // verdicts of other arguments, where the call has none and they decide
	Failure  string          `json:"failure,omitempty"` // of the policy
}

// A PolicyExplanation says why a call would be decided so.
type PolicyExplanation struct {
	Revision string        `json:"revision"`
	Input    *policy.Input `json:"input"`
	workbench.Explanation
	Roles []workbench.RoleAnswer `json:"roles,omitempty"` // that may call the tool, when the caller may not
}

// A Candidate is a policy to be tried on recorded calls.
type Candidate struct {
	Files     map[string][]byte // by their paths in the policy
	Since     time.Time         // of the calls
	Arguments bool              // examples show them
}

// A PolicyTrial is what a candidate would change.
type PolicyTrial struct {
	Revision string                 `json:"revision,omitempty"` // "" = it could not serve: Findings say why
	Findings []Finding              `json:"findings"`
	Tests    *workbench.TestReport  `json:"tests,omitempty"`
	Matrix   []workbench.CellChange `json:"matrix,omitempty"`
	Replay   *replay.Report         `json:"replay,omitempty"`
}

const (
	policyTryPath = "/v1/policy/try"
	tryKind       = "try"
	// candidateBytes and candidateFiles bound a candidate, packed and unpacked.
	candidateBytes = 4 << 20
	candidateFiles = 1000
	matrixTools    = 50
	mostTools      = 500
)

// advice are the pages about the policy that serves, and about others.
type advice struct {
	*people.Site
	policy    PolicyReader
	judge     PolicyJudge
	shadow    func(ctx context.Context, q ShadowQuery) (shadow.Report, error) // Options.Shadow
	trialText func(t PolicyTrial) string                                      // Options.TrialText
	jobs      *jobs
}

// Routes are the routes and pages of the policy.
func (a *advice) Routes(g *people.Guard) page.Routes {
	routes := page.Routes{
		policyPath:                  {http.MethodGet: g.Visit(people.Shows(a.page))},
		matrixPath:                  {http.MethodGet: g.Visit(people.Shows(a.matrixPage))},
		askPath:                     {http.MethodGet: g.Visit(people.Shows(a.askPage))},
		trialsPath:                  {http.MethodGet: g.Visit(people.Shows(a.tryPage)), http.MethodPost: g.SubmitAs(g.Visitor, readFiles, people.Leads(a.submitTry))},
		trialsPath + "/{id}":        {http.MethodGet: g.Visit(people.Shows(a.trialPage))},
		trialsPath + "/{id}/cancel": {http.MethodPost: g.Submit(a.jobs.cancels(tryKind, trialsPath))},
		"/v1/policy":                {http.MethodGet: g.As(page.Answers(a.state))},
		"/v1/policy/matrix":         {http.MethodGet: g.As(page.Answers(a.matrix))},
		"/v1/policy/can-i":          {http.MethodPost: g.As(judging(a, a.judge.CanI))},
		"/v1/policy/explain":        {http.MethodPost: g.As(judging(a, a.judge.Explain))},
	}
	maps.Copy(routes, a.jobs.routes(g, policyTryPath, tryKind, a.beginTrial))
	routes[policyTryPath+"/{id}"][http.MethodGet] = g.As(a.showTrial)
	if a.shadow != nil {
		routes[shadowPath] = map[string]page.Handler{http.MethodGet: g.Visit(people.Shows(a.shadowPage))}
		routes["/v1/policy/shadow"] = map[string]page.Handler{http.MethodGet: g.As(page.Answers(a.shadowFor))}
	}
	return routes
}

func (a *advice) state(r *http.Request, p policy.Principal) (any, error) {
	if !a.May(r.Context(), p, policy.Operates) {
		return nil, people.NotOperator
	}
	return a.policy.State(r.Context())
}

func (a *advice) matrix(r *http.Request, p policy.Principal) (any, error) {
	if !a.May(r.Context(), p, policy.Operates) {
		return nil, people.NotOperator
	}
	q := MatrixQuery{Limit: matrixTools}
	if err := page.ReadQuery(r.URL, map[string]func(string) error{
		"role":    func(value string) error { q.Roles = []string{value}; return nil },
		"subject": page.String(&q.Subject),
		"tool":    func(value string) error { q.Tools = []string{value}; return nil },
		"cursor":  page.String(&q.After),
		"limit":   page.Number(&q.Limit, 1, mostTools, fmt.Sprintf("limit is a number of tools from 1 to %d", mostTools)),
	}); err != nil {
		return nil, err
	}
	return a.policy.Matrix(r.Context(), q)
}

// supposed reads the call that the body of r describes.
func (a *advice) supposed(w http.ResponseWriter, r *http.Request, p policy.Principal) (call SupposedCall, err error) {
	if !a.May(r.Context(), p, policy.Operates) {
		return call, people.NotOperator
	}
	err = page.ReadBody(w, r, &call, "an object with tool, subject or roles, and arguments", `{"tool": "search__query", "roles": ["researcher"], "arguments": {}}`)
	if err == nil && (call.Tool == "" || call.Subject == "" && len(call.Roles) == 0) {
		err = page.BadRequest("name a tool, and the subject or the roles that call it", "")
	}
	return call, err
}

// judged turns an error about a call into a refusal.
func judged(err error) error {
	if errors.Is(err, ErrBadCall) {
		return page.BadRequest(page.Visible(err.Error()), "")
	}
	return err
}

// judging returns what answers with what judge says of the call that the body describes.
func judging[T any](a *advice, judge func(context.Context, SupposedCall) (T, error)) page.CallerHandler {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		call, err := a.supposed(w, r, p)
		if err != nil {
			return err
		}
		said, err := judge(r.Context(), call)
		if err != nil {
			return judged(err)
		}
		return page.Answer(w, said)
	}
}

// beginTrial begins to try the policy in the body.
func (a *advice) beginTrial(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	candidate := Candidate{Since: a.Now().Add(-24 * time.Hour)}
	if err := page.ReadQuery(r.URL, map[string]func(string) error{"since": a.Moment(&candidate.Since)}); err != nil {
		return err
	}
	if err := a.admitTry(r, p); err != nil {
		return err
	}
	var err error
	if candidate.Files, err = readCandidate(w, r); err != nil {
		return err
	}
	job, err := a.try(r, p, candidate)
	return begun(w, policyTryPath, job, err)
}

// admitTry is mayTry for somebody who tries one: that p was refused to is recorded.
func (a *advice) admitTry(r *http.Request, p policy.Principal) error {
	if err := mayTry(a.Site, r, p); err != nil {
		return a.RecordRefusal(r, people.Act{Name: audit.EventTried, Principal: p}, err)
	}
	return nil
}

// try begins to try a candidate for p. It is recorded first.
func (a *advice) try(r *http.Request, p policy.Principal, candidate Candidate) (Job, error) {
	if err := a.Record(r, people.Act{Name: audit.EventTried, Principal: p}); err != nil {
		return Job{}, err
	}
	candidate.Arguments = a.May(r.Context(), p, policy.ReadsArguments)
	return a.jobs.start(tryKind, personOf(p), func(ctx context.Context, report func(Progress)) (any, error) {
		return a.judge.Try(ctx, candidate, report)
	})
}

var notTried = page.Problem{Status: http.StatusConflict, Code: "NOT_DONE", Detail: "the trial has no result", Hint: "ask for application/json: it says how far the trial is"}

// showTrial shows a trial as a job, or to those who accept that first, its result as Markdown.
func (a *advice) showTrial(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	job, err := a.jobs.find(tryKind, r.PathValue("id"), personOf(p), false)
	if err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	if kind, _, _ := mime.ParseMediaType(first); kind != "text/markdown" || a.trialText == nil {
		return page.Answer(w, job)
	}
	trial, done := job.Result.(PolicyTrial)
	if !done {
		return notTried
	}
	w.Header().Set("Content-Type", "text/markdown; charset=utf-8")
	_, _ = io.WriteString(w, a.trialText(trial)) // a reader that went away needs no answer
	return nil
}

var tooLargePolicy = page.Problem{Status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Detail: fmt.Sprintf("a policy may have %d MiB", candidateBytes>>20)}

var badCandidate = page.Problem{Status: http.StatusBadRequest, Code: "BAD_REQUEST", Detail: "the body is no policy",
	Hint: `send a .tar.gz as application/gzip, or {"files": {"policy.rego": "…", "data.json": "…"}} as application/json`}

// readCandidate reads the files of a policy.
func readCandidate(w http.ResponseWriter, r *http.Request) (map[string][]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, candidateBytes))
	if err != nil {
		return nil, tooLargePolicy
	}
	files := map[string][]byte{}
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case "application/gzip":
		err = unpack(files, bytes.NewReader(text))
	case "application/json":
		var body struct{ Files map[string]string }
		err = json.Unmarshal(text, &body)
		for name, text := range body.Files {
			files[name] = []byte(text)
		}
	default:
		return nil, page.Problem{Status: http.StatusUnsupportedMediaType, Code: "NOT_JSON", Detail: badCandidate.Detail, Hint: badCandidate.Hint}
	}
	if err != nil {
		return nil, badCandidate
	}
	return files, checkCandidate(files)
}

// checkCandidate refuses files that are none of a policy: none, too many, or outside of its directory.
func checkCandidate(files map[string][]byte) error {
	for name := range files {
		if !filepath.IsLocal(name) || strings.ContainsAny(name, `\:`) {
			return page.BadRequest(fmt.Sprintf("%q is no path in a policy", page.Visible(name)), "")
		}
	}
	if len(files) == 0 || len(files) > candidateFiles {
		return badCandidate
	}
	return nil
}

// unpack adds the files of a .tar.gz, which may not be larger than candidateBytes in all.
func unpack(files map[string][]byte, archive io.Reader) error {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	bounded := &io.LimitedReader{R: unzipped, N: candidateBytes + 1}
	for t := tar.NewReader(bounded); ; {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case h.Typeflag == tar.TypeDir || slices.Contains([]string{".manifest", ".signatures.json"}, filepath.Base(h.Name)):
			continue
		case h.Typeflag != tar.TypeReg:
			return fmt.Errorf("%s is no file", h.Name)
		}
		if files[strings.TrimPrefix(h.Name, "/")], err = io.ReadAll(t); err != nil {
			return err
		}
	}
}

// mayTry returns why p may not try policies, nil where it may: whoever does sees recorded calls.
func mayTry(s *people.Site, r *http.Request, p policy.Principal) error {
	if !s.May(r.Context(), p, policy.Operates) {
		return people.NotOperator
	}
	if s.TrailRight(r.Context(), p) != policy.TrailAll {
		return people.NotAuditor
	}
	return nil
}
