package signal_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/signal"
)

// made holds a signal of here and trc_1 against what its factory is to make.
func made(t *testing.T, s signal.Signal, kind signal.Kind, body string) {
	t.Helper()
	if err := signal.ValidateSignal(s); err != nil {
		t.Error(err)
	}
	if s.Kind() != kind || s.Origin() != here || s.TraceID() != "trc_1" {
		t.Errorf("got %s %v %s", s.Kind(), s.Origin(), s.TraceID())
	}
	if !regexp.MustCompile(`^sig_[0-7][0-9A-HJKMNP-TV-Z]{25}$`).MatchString(s.ID()) {
		t.Errorf("id %s", s.ID())
	}
	if got, _ := member(t, s, "body"); got != body {
		t.Errorf("body\n got %s\nwant %s", got, body)
	}
	if s.CreatedAt().Location() != time.UTC || time.Since(s.CreatedAt()) > time.Minute {
		t.Errorf("created at %v", s.CreatedAt())
	}
}

// create_signal: any kind, with the tags of the origin and the parent.
func TestCreateSignal(t *testing.T) {
	target := map[string]any{"tier": 4, "module": "m", "function": "f"}
	tests := []struct {
		kind signal.Kind
		body map[string]any
		want string
	}{
		{signal.Text, map[string]any{"text": "x"}, `{"text":"x"}`},
		{signal.Data, map[string]any{"data": []int{1}, "schema": "list[int]"}, `{"data":[1],"schema":"list[int]"}`},
		{signal.File, map[string]any{"file_id": "a", "file_type": "b", "path": nil}, `{"file_id":"a","file_type":"b","path":null}`},
		{signal.Command, map[string]any{"action": "sleep", "target": target}, `{"action":"sleep","target":{"function":"f","module":"m","tier":4}}`},
		{signal.Stream, map[string]any{"chunk": "hi", "sequence": 0, "final": false}, `{"chunk":"hi","final":false,"sequence":0}`},
		{signal.Stream, map[string]any{"chunk": []byte("hi"), "sequence": 1, "final": true}, `{"chunk":"aGk=","final":true,"sequence":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			s := must(signal.Create(tt.kind, tt.body, here, "trc_1", map[string]string{"urgency": "low"}, "sig_parent"))(t)
			made(t, s, tt.kind, tt.want)
			if s.ParentID() != "sig_parent" || s.Tag("urgency") != "low" || s.Tag("tier") != "4" || s.Tag("module") != "gate" {
				t.Errorf("parent %q, tags %v", s.ParentID(), s.Tags())
			}
		})
	}
}

func TestCreateTextSignal(t *testing.T) {
	s := must(signal.CreateText("a \"b\"\n<ü>", here, "trc_1", map[string]string{"domain": "code"}))(t)
	made(t, s, signal.Text, `{"text":"a \"b\"\n<ü>"}`)
	if s.Tag("domain") != "code" {
		t.Errorf("tags %v", s.Tags())
	}
}

// create_data_signal: count is there when data is a list, and only then.
func TestCreateDataSignal(t *testing.T) {
	tests := []struct {
		name string
		data any
		want string
	}{
		{"an object", map[string]any{"n": 1}, `{"data":{"n":1},"schema":"s"}`},
		{"nothing", nil, `{"data":null,"schema":"s"}`},
		{"a list", []int{1, 2, 3}, `{"data":[1,2,3],"schema":"s","count":3}`},
		{"an empty list", []int{}, `{"data":[],"schema":"s","count":0}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			made(t, must(signal.CreateData(tt.data, "s", here, "trc_1", nil))(t), signal.Data, tt.want)
		})
	}
}

func TestCreateFileSignal(t *testing.T) {
	tests := []struct{ name, path, want string }{
		{"with a path", "/tmp/report.pdf", `{"file_id":"report.pdf","file_type":"pdf","path":"/tmp/report.pdf"}`},
		{"without", "", `{"file_id":"report.pdf","file_type":"pdf","path":null}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			made(t, must(signal.CreateFile("report.pdf", "pdf", tt.path, here, "trc_1"))(t), signal.File, tt.want)
		})
	}
}

// create_command_signal: action and target win over the payload.
func TestCreateCommandSignal(t *testing.T) {
	const target = `"target":{"tier":1,"module":"classification","function":"classify"}`
	for _, action := range []string{"activate", "sleep", "retry", "abort", "pivot"} {
		s := must(signal.CreateCommand(action, there, here, "trc_1", nil))(t)
		made(t, s, signal.Command, `{"action":"`+action+`",`+target+`}`)
	}
	payload := map[string]any{"action": "sleep", "target": 1, "why": "x"}
	made(t, must(signal.CreateCommand("retry", there, here, "trc_1", payload))(t), signal.Command, `{"action":"retry",`+target+`,"why":"x"}`)
}

func TestCreateErrorSignal(t *testing.T) {
	broken := signal.InputError("bad body", there, nil)
	s := must(signal.CreateErrorSignal(broken, here, "trc_1"))(t)
	made(t, s, signal.Data, `{"data":{"code":"T1_CLASSIFICATION_INPUT","category":"input","severity":"transient","message":"bad body",`+
		`"source":{"tier":1,"module":"classification","function":"classify"},"retry_eligible":false,"detail":{},"cause":null},"schema":"KernelError"}`)
	back, ok := signal.ErrorOf(s)
	if diff := cmp.Diff(broken, back); !ok || diff != "" {
		t.Error(ok, diff)
	}
}

// The result factories: what each has, and that the validator takes it.
func TestOK(t *testing.T) { factory(t, signal.OK(some(t), timing), "ok", 1, false, "") }
func TestPartial(t *testing.T) {
	factory(t, signal.Partial(some(t), fault, timing), "partial", 1, true, "")
}
func TestFail(t *testing.T) { factory(t, signal.Fail(fault, timing), "error", 0, true, "") }
func TestSkip(t *testing.T) { factory(t, signal.Skip("dormant", timing), "skip", 0, false, "dormant") }

var fault = signal.PolicyError("no", here, nil)

func some(t *testing.T) []signal.Signal {
	return []signal.Signal{must(signal.CreateText("x", here, "trc_1", nil))(t)}
}

func factory(t *testing.T, r signal.Result, status signal.Status, signals int, failed bool, reason string) {
	t.Helper()
	if r.Status != status || len(r.Signals) != signals || (r.Error != nil) != failed || r.Reason != reason || r.Metrics != timing {
		t.Errorf("got %+v", r)
	}
	if err := signal.ValidateResult(r); err != nil {
		t.Error(err)
	}
}

// The words of the four enums, and no others.
func TestEnums(t *testing.T) {
	enums := []struct {
		name  string
		words []string
		valid func(string) bool
	}{
		{"SignalKind", []string{"text", "data", "file", "command", "stream"}, func(s string) bool { return signal.Kind(s).Valid() }},
		{"ResultStatus", []string{"ok", "partial", "error", "skip"}, func(s string) bool { return signal.Status(s).Valid() }},
		{"ErrorCategory", []string{"input", "processing", "external", "resource", "policy"}, func(s string) bool { return signal.Category(s).Valid() }},
		{"Severity", []string{"transient", "degraded", "fatal"}, func(s string) bool { return signal.Severity(s).Valid() }},
	}
	for _, e := range enums {
		for _, word := range e.words {
			if !e.valid(word) {
				t.Errorf("%s refuses %q", e.name, word)
			}
		}
		for _, word := range []string{"", "TEXT", "Ok", "other", e.words[0] + " "} {
			if e.valid(word) {
				t.Errorf("%s takes %q", e.name, word)
			}
		}
	}
}

// ModuleRef: tier 0 to 7, module and function.
func TestModuleRef(t *testing.T) {
	for tier := -1; tier <= 8; tier++ {
		err := signal.ModuleRef{Tier: tier, Module: "m", Function: "f"}.Validate()
		if (err == nil) != (tier >= 0 && tier <= 7) {
			t.Errorf("tier %d: %v", tier, err)
		}
	}
}
