package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/workbench"
)

// shelf has the tools a, which is withheld, and b of server web. It implements console.Tools.
type shelf struct {
	judged []console.Verdict
	fault  error // of Judge
}

func (s *shelf) List(context.Context) ([]console.Tool, error) {
	return []console.Tool{
		{Server: "web", Name: "b", Exposed: "web__b", State: console.ToolServed, Digest: "sha256:b"},
		{Server: "web", Name: "a", Exposed: "web__a", Title: "Ad\u202eds", State: console.ToolWithheld, Reason: "it changed\nhint: look", Digest: "sha256:2", Pin: &console.Pin{Digest: "sha256:1"}},
		{Server: "pay", Name: "a", Exposed: "pay__a", State: console.ToolQuarantined, Reason: "it is no JSON", Digest: "sha256:p"},
	}, nil
}

func (s *shelf) Show(ctx context.Context, q console.ToolQuery) (console.ToolDetail, error) {
	all, err := s.List(ctx)
	for _, t := range all {
		if t.Server == q.Server && t.Name == q.Name && q.Principal != "stranger" {
			return console.ToolDetail{Tool: t, Difference: "-old\n+n\u200bew\n", Access: []console.Access{}, Principal: &console.Access{Cell: workbench.Cell{Subject: q.Principal, Role: strings.Join(q.Roles, ", "), Tool: t.Exposed, May: workbench.Never}}}, err
		}
	}
	if q.Principal == "stranger" {
		return console.ToolDetail{}, console.ErrNobody
	}
	return console.ToolDetail{}, console.ErrNoTool
}

func (s *shelf) Judge(_ context.Context, v console.Verdict) error {
	if s.fault != nil {
		return s.fault
	}
	if err := v.Record([]string{v.Name + " " + v.Digest}, nil); err != nil {
		return err
	}
	v.Record = nil
	s.judged = append(s.judged, v)
	return nil
}

// shelved is a listener where operators see tools and approvers judge definitions.
func shelved(t *testing.T, change func(*console.Options)) (*listener, *shelf) {
	t.Helper()
	s := new(shelf)
	return newListener(t, func(o *console.Options) {
		o.May = func(_ context.Context, p policy.Principal, right policy.Right) (bool, error) {
			return right == policy.Operates && p.Has("operator") || right == policy.Definitions && p.Has("approver"), nil
		}
		o.Tools = s
		if change != nil {
			change(o)
		}
	}), s
}

// names lists what an answer has under a name: server/name of each.
func names(t *testing.T, text string) (found []string, next string) {
	t.Helper()
	var page struct {
		Tools []console.Tool
		Next  string
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, one := range page.Tools {
		found = append(found, one.Server+"/"+one.Name)
	}
	return found, page.Next
}

// The list is sorted, and each parameter chooses from it.
func TestTools(t *testing.T) {
	l, _ := shelved(t, nil)
	for query, want := range map[string][]string{
		"": {"pay/a", "web/a", "web/b"}, "?server=web": {"web/a", "web/b"}, "?state=withheld": {"web/a"}, "?state=served": {"web/b"}, "?text=AD": {"web/a"}, "?text=pay__": {"pay/a"},
		"?server=none": nil, "?server=web&text=b&state=served": {"web/b"},
	} {
		w := l.ask("GET", "/v1/tools"+query, "", as("t-oda")...)
		if found, next := names(t, w.Body.String()); w.Code != 200 || !cmp.Equal(found, want, cmpopts.EquateEmpty()) || next != "" {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	var all []string
	for query := "?limit=1"; ; {
		found, next := names(t, l.ask("GET", "/v1/tools"+query, "", as("t-oda")...).Body.String())
		if all = append(all, found...); next == "" {
			break
		}
		query = "?limit=1&cursor=" + url.QueryEscape(next)
	}
	if want := []string{"pay/a", "web/a", "web/b"}; !cmp.Equal(all, want) {
		t.Errorf("page by page: %v", all)
	}
	if body := l.ask("GET", "/v1/tools", "", as("t-oda")...).Body.String(); strings.Contains(body, "\u202e") || !strings.Contains(body, "it changed; hint: look") {
		t.Error(body)
	}
}

// A tool is shown whole, in visible form.
func TestTool(t *testing.T) {
	l, _ := shelved(t, nil)
	w := l.ask("GET", "/v1/tools/web/a?principal=eve&roles=x,y", "", as("t-oda")...)
	got := accepted(t, w)
	if got["difference"] != "-old\n+n\\u200bew\n" || fmt.Sprint(got["principal"]) != "map[listed:false may:never role:x, y subject:eve tool:web__a]" {
		t.Errorf("%v", got)
	}
	if w := l.ask("GET", "/v1/tools/web/a", "", as("t-ann")...); w.Code != 200 {
		t.Errorf("who judges does not see it: %d %s", w.Code, w.Body)
	}
	for path, tc := range map[string]struct {
		token  string
		status int
		code   string
	}{
		"/v1/tools?page=1":                      {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools?limit=1001":                  {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools?limit=0":                     {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools?cursor=!":                    {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools?state=lost":                  {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools":                             {"t-eve", 403, "NOT_OPERATOR"},
		"/v1/tools/web/a":                       {"t-eve", 403, "NOT_OPERATOR"},
		"/v1/tools/web/a?x=1":                   {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools/web/z":                       {"t-oda", 404, "NO_TOOL"},
		"/v1/tools/web/a?principal=stranger":    {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools/web/b?digest=a&digest=b":     {"t-oda", 400, "BAD_REQUEST"},
		"/v1/tools/web/a?principal=x&cursor=aa": {"t-nobody", 401, "UNAUTHENTICATED"},
	} {
		refused(t, l.ask("GET", path, "", as(tc.token)...), tc.status, tc.code)
	}
}

// A definition is judged by its digest, after the record.
func TestJudge(t *testing.T) {
	l, s := shelved(t, nil)
	for path, body := range map[string]string{"accept": `{"digest":"sha256:2"}`, "refuse": `{"digest":"sha256:2","reason":"too much"}`} {
		s.judged, l.acts = nil, nil
		if w := l.ask("POST", "/v1/tools/web/a/"+path, body, as("t-ann")...); w.Code != 200 || !strings.Contains(w.Body.String(), `"digest":"sha256:2"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		verdict := console.Verdict{Server: "web", Name: "a", Digest: "sha256:2", By: "ann"}
		act := people.Act{Name: audit.EventAccepted, Principal: staff["t-ann"], Source: "192.0.2.1", Credential: "bearer", Server: "web", Tool: "a", Why: "accept", Added: []string{"a sha256:2"}}
		if path == "refuse" {
			verdict.Refuse, verdict.Reason, act.Name, act.Why = true, "too much", audit.EventNotAccepted, "too much"
		}
		if diff := cmp.Diff([]console.Verdict{verdict}, s.judged); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if diff := cmp.Diff([]people.Act{act}, l.acts); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// Nobody judges a definition without the right, without a record, or that is not the offered one;
// and each refusal is recorded.
func TestNoJudge(t *testing.T) {
	failing := func(o *console.Options) {
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) {
			return true, errors.New("it fails")
		}
	}
	good := `{"digest":"sha256:2","reason":"r"}`
	for name, tc := range map[string]struct {
		token, action, body string
		change              func(*console.Options)
		fault, unrecorded   error
		status              int
		code                string
		recorded            bool
	}{
		"an operator":        {"t-oda", "accept", `{"digest":"x"}`, nil, nil, nil, 403, "NOT_ACCEPTER", true},
		"an operator again":  {"t-oda", "refuse", good, nil, nil, nil, 403, "NOT_ACCEPTER", true},
		"the policy fails":   {"t-ann", "refuse", good, failing, nil, nil, 403, "NOT_ACCEPTER", true},
		"no policy":          {"t-ann", "refuse", good, func(o *console.Options) { o.May = nil }, nil, nil, 403, "NOT_ACCEPTER", true},
		"nobody":             {"t-nobody", "refuse", good, nil, nil, nil, 401, "UNAUTHENTICATED", false},
		"no digest":          {"t-ann", "accept", `{}`, nil, nil, nil, 400, "BAD_REQUEST", true},
		"a reason":           {"t-ann", "accept", good, nil, nil, nil, 400, "BAD_REQUEST", true},
		"an unknown member":  {"t-ann", "accept", `{"why":"r"}`, nil, nil, nil, 400, "BAD_REQUEST", false},
		"no reason":          {"t-ann", "refuse", `{"digest":"x","reason":" "}`, nil, nil, nil, 422, "REASON_REQUIRED", true},
		"a long reason":      {"t-ann", "refuse", `{"digest":"x","reason":"` + strings.Repeat("x", 1001) + `"}`, nil, nil, nil, 422, "REASON_REQUIRED", true},
		"no such tool":       {"t-ann", "refuse", good, nil, console.ErrNoTool, nil, 404, "NO_TOOL", true},
		"another definition": {"t-ann", "refuse", good, nil, fmt.Errorf("judging: %w", console.ErrOtherDefinition), nil, 409, "STALE_DIGEST", true},
		"nothing waits":      {"t-ann", "refuse", good, nil, console.ErrJudged, nil, 409, "NOT_PENDING", true},
		"a lock":             {"t-ann", "accept", `{"digest":"x"}`, nil, console.ErrLocked, nil, 409, "LOCKED", true},
		"it fails":           {"t-ann", "refuse", good, nil, errors.New("planted"), nil, 500, "INTERNAL_ERROR", true},
		"it is not recorded": {"t-ann", "refuse", good, nil, nil, errors.New("disk full"), 503, "AUDIT_UNAVAILABLE", false},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := shelved(t, tc.change)
			s.fault, l.unrecorded = tc.fault, tc.unrecorded
			refused(t, l.ask("POST", "/v1/tools/web/a/"+tc.action, tc.body, as(tc.token)...), tc.status, tc.code)
			if len(s.judged) > 0 {
				t.Errorf("judged %+v", s.judged)
			}
			if tc.recorded && (len(l.acts) != 1 || l.acts[0].Reason != tc.code || l.acts[0].Tool != "a" || l.acts[0].Added != nil || l.acts[0].Why != "") {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}

// dotted has tools whose names are no segments of a path, or look like what stands for one.
type dotted struct{ shelf }

func (d *dotted) List(context.Context) (all []console.Tool, err error) {
	for _, name := range []string{".", "..", "~", "~.", "~~"} {
		all = append(all, console.Tool{Server: "web", Name: name, Exposed: "web__" + name, State: console.ToolWithheld, Digest: "sha256:2", Pin: &console.Pin{Digest: "sha256:1"}})
	}
	return all, nil
}

func (d *dotted) Show(ctx context.Context, q console.ToolQuery) (console.ToolDetail, error) {
	all, err := d.List(ctx)
	for _, t := range all {
		if t.Name == q.Name {
			return console.ToolDetail{Tool: t}, err
		}
	}
	return console.ToolDetail{}, console.ErrNoTool
}

func TestEveryToolHasAPage(t *testing.T) {
	d := new(dotted)
	l, _ := shelved(t, func(o *console.Options) {
		o.Tools = d
		o.May = func(context.Context, policy.Principal, policy.Right) (bool, error) { return true, nil }
	})
	b := newBrowser(l).signIn("t-oda")
	all, _ := d.List(t.Context())
	for path, name := range map[string]string{"%2E": ".", "%2e%2E": "..", "~": "~", "%7E.": "~."} {
		w := l.ask("GET", "/v1/tools/web/"+path, "", as("t-oda")...)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"exposed":"web__`+name+`"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	links := regexp.MustCompile(`<a href="(/console/tools/[^"]+)"`).FindAllStringSubmatch(b.do("GET", "/console/tools", nil).Body.String(), -1)
	if len(links) != len(all) {
		t.Fatalf("%d links: %v", len(links), links)
	}
	for i, link := range links {
		if w := b.do("GET", link[1], nil); w.Code != 200 || !strings.Contains(w.Body.String(), "<h1>"+all[i].Exposed+"</h1>") {
			t.Errorf("%s: %d", link[1], w.Code)
		}
		form := b.form(link[1])
		form.Set("digest", "sha256:2")
		if w := b.do("POST", link[1]+"/accept", form); w.Code != 303 || len(d.judged) != i+1 || d.judged[i].Name != all[i].Name {
			t.Errorf("%s: %d, %v", link[1], w.Code, d.judged)
		}
	}
}
