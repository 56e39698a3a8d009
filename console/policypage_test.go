package console_test

import (
	"bytes"
	"mime/multipart"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
)

// machineValue is what a page holds for programs, or to be edited.
var machineValue = regexp.MustCompile(`(?s) (value|name)="[^"]*"|<textarea.*?</textarea>`)

// multipartForm is a form with texts and, unless nil, a file in the field archive.
func (b *browser) multipartForm(path string, fields map[string]string, file []byte) *httptest.ResponseRecorder {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for name, value := range fields {
		_ = w.WriteField(name, value)
	}
	if file != nil {
		part, _ := w.CreateFormFile("archive", "p.tar.gz")
		_, _ = part.Write(file)
	}
	_ = w.Close()
	pairs := []string{"Host", b.host, "Content-Type", w.FormDataContentType()}
	for name, value := range b.cookies {
		pairs = append(pairs, "Cookie", name+"="+value)
	}
	return b.ask("POST", path, body.String(), pairs...)
}

// No text that data chooses leaves its place on the pages of policy and trail, or hides.
func TestHostilePolicies(t *testing.T) {
	l, _ := advisedBy(t, func(o *console.Options) {
		h := talker{new(adviser), hostile}
		o.Policy, o.Judge = h, h
		o.Verify, o.Calls = h.verify, h
		o.Tools = h
		o.Sessions, o.Limits, o.Tokens = guests{h}, h.limits, pouch{h}
		o.Clients, o.Shadow, o.Anchors = h.clients, h.shadow, h.anchors
	})
	oda := newBrowser(l).signIn("t-oda")
	csrf := oda.form("/console/policy/try").Get("csrf")
	trial := oda.multipartForm("/console/policy/try", map[string]string{"csrf": csrf, "since": "24h", "file:p.rego": "package toolgate"}, nil).Header().Get("Location")
	verified := oda.do("POST", "/console/audit/verify", oda.form("/console/audit")).Header().Get("Location")
	for _, path := range []string{"/console/policy", "/console/policy/matrix", "/console/policy/ask?tool=t&role=r", "/console/policy/try", "/console/policy/shadow", trial, "/console/audit", verified, "/console/calls", "/console/calls/dec_1", "/console/tools", "/console/tools/payments/transfer?principal=p", "/console/sessions", "/console/limits", "/console/access", "/console/connect"} {
		page := ""
		for page == "" || strings.Contains(page, `http-equiv="refresh"`) {
			w := oda.do("GET", path, nil)
			if page = w.Body.String(); w.Code != 200 {
				t.Fatalf("%s: %d %s", path, w.Code, page)
			}
		}
		if strings.Contains(page, "<script>document") {
			t.Errorf("%s has markup of data: %s", path, page)
		}
		shown := machineValue.ReplaceAllString(page, "") // which nobody reads, or which is edited as it is
		if strings.ContainsAny(shown, "\u202e\u200b") {
			t.Errorf("%s hides text: %s", path, page)
		}
		if !strings.Contains(page, "script&gt;document.title") {
			t.Errorf("%s does not show its data: %s", path, page)
		}
	}
}

// Whoever has no right finds no page, and no form does anything; other sessions' forms are refused.
func TestPagesOfPolicyAndTrail(t *testing.T) {
	l, a := advised(t)
	oda, ann := newBrowser(l).signIn("t-oda"), newBrowser(l).signIn("t-ann")
	for _, path := range []string{"/console/policy", "/console/policy/matrix", "/console/policy/ask", "/console/policy/try", "/console/audit"} {
		if w := ann.do("GET", path, nil); w.Code != 403 {
			t.Errorf("%s: %d", path, w.Code)
		}
		if w := oda.do("GET", path, nil); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	foreign := ann.form("/console/approvals")
	for path, form := range map[string]map[string]string{"/console/policy/try": {"since": "24h", "file:p.rego": "package toolgate"}} {
		for who, csrf := range map[*browser]string{ann: foreign.Get("csrf"), oda: foreign.Get("csrf")} {
			form["csrf"] = csrf
			if w := who.multipartForm(path, form, nil); w.Code != 403 {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
	}
	for _, path := range []string{"/console/audit/verify", "/console/audit/export"} {
		foreign.Set("format", "csv")
		for _, who := range []*browser{ann, oda} {
			if w := who.do("POST", path, foreign); w.Code != 403 {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
	}
	if len(a.begun) > 0 {
		t.Fatal("work has begun")
	}
	w := oda.do("POST", "/console/audit/export", oda.form("/console/audit", "format", "csv", "since", "24h", "principal", "ann"))
	if w.Code != 200 || w.Body.String() != "line\n" || !strings.Contains(w.Header().Get("Content-Disposition"), "toolgate-trail.csv") ||
		!cmp.Equal(a.export, console.ExportQuery{Format: "csv", Since: l.Now().Add(-24 * time.Hour), Principal: "ann"}) {
		t.Errorf("%d %v %s, %+v", w.Code, w.Header(), w.Body, a.export)
	}
}

// The texts of a form are tried, or the archive in their place; the page follows the trial to its end.
func TestTryingOnAPage(t *testing.T) {
	l, a := advised(t)
	oda := newBrowser(l).signIn("t-oda")
	csrf := oda.form("/console/policy/try").Get("csrf")
	texts := map[string]string{"csrf": csrf, "since": "1h", "file:p/q.rego": "package toolgate\r\n"}
	begin := func(fields map[string]string, file []byte) string {
		t.Helper()
		w := oda.multipartForm("/console/policy/try", fields, file)
		if w.Code != 303 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		<-a.begun
		return w.Header().Get("Location")
	}
	at := begin(texts, nil)
	if diff := cmp.Diff(console.Candidate{Files: map[string][]byte{"p/q.rego": []byte("package toolgate\n")}, Since: l.Now().Add(-time.Hour), Arguments: true}, a.candidate); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	page := oda.do("GET", at, nil).Body.String()
	for _, want := range []string{`http-equiv="refresh"`, `value="25"`, "judging", "/cancel"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q: %s", want, page)
		}
	}
	if w := newBrowser(l).signIn("t-bob").do("GET", at, nil); w.Code != 404 {
		t.Errorf("somebody else's trial: %d", w.Code)
	}
	if w := oda.do("POST", at+"/cancel", oda.form("/console/audit")); w.Code != 303 {
		t.Errorf("cancelling: %d", w.Code)
	}
	for page = ""; !strings.Contains(page, "cancelled"); page = oda.do("GET", at, nil).Body.String() {
	}
	begin(texts, []byte(archive(t, map[string]string{"packed.rego": "x"}, nil)))
	if diff := cmp.Diff(map[string][]byte{"packed.rego": []byte("x")}, a.candidate.Files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	a.release <- nil
	for name, tc := range map[string]struct {
		change func(map[string]string)
		file   []byte
		status int
	}{
		"no files":   {func(f map[string]string) { delete(f, "file:p/q.rego") }, nil, 400},
		"outside":    {func(f map[string]string) { f["file:../q.rego"] = "x" }, nil, 400},
		"no archive": {func(map[string]string) {}, []byte("x"), 400},
		"a bad time": {func(f map[string]string) { f["since"] = "soon" }, nil, 400},
		"too large":  {func(f map[string]string) { f["file:p/q.rego"] = strings.Repeat(" ", 9<<20) }, nil, 413},
	} {
		fields := map[string]string{}
		for k, v := range texts {
			fields[k] = v
		}
		tc.change(fields)
		if w := oda.multipartForm("/console/policy/try", fields, tc.file); w.Code != tc.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}
