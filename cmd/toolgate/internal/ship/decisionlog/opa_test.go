package decisionlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/plugins"
	"github.com/open-policy-agent/opa/v1/plugins/logs"
	"github.com/open-policy-agent/opa/v1/server"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// asOPA reads an event as OPA's own type, strictly, numbers exact.
func asOPA(t testing.TB, told []byte) logs.EventV1 {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(told))
	d.DisallowUnknownFields()
	d.UseNumber()
	var e logs.EventV1
	if err := d.Decode(&e); err != nil {
		t.Fatalf("OPA cannot read %s: %v", told, err)
	}
	return e
}

func unmasked(context.Context, json.RawMessage) (policy.Mask, error) { return policy.Mask{}, nil }

// Each member of an event is one of OPA's, of the same form.
func TestEventIsOPAs(t *testing.T) {
	theirs := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[logs.EventV1]()) {
		theirs[f.Tag.Get("json")] = f
	}
	ours := reflect.VisibleFields(reflect.TypeFor[decisionlog.Event]())
	if len(ours) == 0 {
		t.Fatal("no members")
	}
	for _, f := range ours {
		if _, ok := theirs[f.Tag.Get("json")]; !ok {
			t.Errorf("OPA has no %s", f.Tag.Get("json"))
		}
	}
}

// A decision is told whole, as OPA would have: input and result are what the
// policy saw and answered.
func TestEvent(t *testing.T) {
	e, err := decisionlog.EventOf(record(3, "d3"), map[string]string{"app": "toolgate", "version": "1"})
	if err != nil {
		t.Fatal(err)
	}
	told, err := decisionlog.MaskedEvent(t.Context(), unmasked, e)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.ContainsAny(told, "\n") {
		t.Errorf("more than a line: %q", told)
	}
	got := asOPA(t, told)
	n := func(s string) json.Number { return json.Number(s) }
	want := logs.EventV1{
		Labels: map[string]string{"app": "toolgate", "version": "1", "id": "chain"}, DecisionID: "d3", TraceID: "trc_1",
		Bundles: map[string]logs.BundleInfoV1{"toolgate": {Revision: "sha256:r"}}, Path: "toolgate/decision", RequestedBy: "ann",
		Timestamp: noon, RuleLabels: []map[string]any{{"rule": "large"}},
		Input: new(any(map[string]any{
			"action": "tools/call", "principal": map[string]any{"subject": "ann", "roles": []any{"payer"}, "client": "c/1", "scopes": []any{}},
			"tool":      map[string]any{"server": "bank", "name": "pay", "exposed": "bank__pay", "risk": "high", "fingerprint": "sha256:f"},
			"arguments": map[string]any{"amount": n("10000000000000000000001"), "card": "4111 < 5"},
			"request":   map[string]any{"id": "7", "transport": "http", "era": "2025-06-18", "trace_id": "trc_1", "time": "2026-01-02T03:04:04Z"},
			"usage":     map[string]any{"day": map[string]any{"calls": n("2"), "sum": n("0.3")}},
		})),
		Result: new(any(map[string]any{
			"effect": "hold", "rule": "large", "reason": "an amount above 100", "remedy": "wait",
			"approval": map[string]any{"roles": []any{"cfo"}, "ttl": "15m0s"}, "redact": []any{"/iban"},
		})),
	}
	if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".inputAST" }, cmp.Ignore())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What cannot be judged again is told without its input, and without who asked:
// no mask about the input could hide that.
func TestEventWithoutInput(t *testing.T) {
	r := record(3, "d3")
	r.Arguments = json.RawMessage(`"no { JSON"`)
	e, err := decisionlog.EventOf(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	told, err := decisionlog.MaskedEvent(t.Context(), unmasked, e)
	if err != nil {
		t.Fatal(err)
	}
	got := asOPA(t, told)
	if got.Input != nil || got.RequestedBy != "" || got.Result == nil || got.Custom["input"] == nil {
		t.Errorf("%s", told)
	}
}

// masks are such as OPA's documentation has them.
var masks = map[string]string{
	"a path":    `mask contains "/input/arguments/card"`,
	"an object": `mask contains {"op": "remove", "path": "/input/principal/client"}`,
	"a value":   `mask contains {"op": "upsert", "path": "/input/arguments/card", "value": "**REDACTED**"}`,
	"deep":      `mask contains {"op": "upsert", "path": "/input/arguments/new/deep", "value": [{"a": 1.50}]}`,
	"on a condition": `mask contains "/input/arguments/card" if input.input.tool.exposed == "bank__pay"
mask contains "/input/arguments/amount" if input.input.tool.exposed == "bank__look"
mask contains {"op": "upsert", "path": "/input/arguments/card", "value": x} if { input.result.effect == "deny"; x := "" }`,
	"computed":          `mask contains {"op": "upsert", "path": "/input/arguments/card", "value": x} if x := concat("", ["…", substring(input.input.arguments.card, 0, 2)])`,
	"of lists":          `mask contains "/input/principal/roles/0"` + "\n" + `mask contains "/result/approval/roles/0"` + "\n" + `mask contains "/result/redact/7"`,
	"of the result":     `mask contains "/result/reason"` + "\n" + `mask contains {"op": "upsert", "path": "/result/rule", "value": null}`,
	"everything":        `mask contains "/input"` + "\n" + `mask contains "/result"`,
	"what is not there": `mask contains "/input/arguments/none"` + "\n" + `mask contains "/nd_builtin_cache/none"`,
	"nothing":           `mask contains "/input" if input.path == "elsewhere"`,
	"a list":            `mask := ["/input/arguments", {"op": "upsert", "path": "/input/arguments", "value": {}}] if false else := ["/input/tool"]`,
	"dropped":           `drop if input.result.rule == "large"`,
	"not dropped":       `drop if input.result.rule == "small"` + "\n" + `mask contains "/input"`,
}

// A policy's masks mean what they mean to OPA.
func TestMasksMeanWhatTheyMeanToOPA(t *testing.T) {
	for name, rules := range masks {
		t.Run(name, func(t *testing.T) {
			module := "package system.log\nimport rego.v1\n" + rules + "\n"
			e, err := decisionlog.EventOf(record(3, "d3"), nil)
			if err != nil {
				t.Fatal(err)
			}
			raw := *e
			told, err := decisionlog.MaskedEvent(t.Context(), engine(t, module).Mask, e)
			if err != nil {
				t.Fatal(err)
			}
			theirs := maskedByOPA(t, module, raw)
			if (told == nil) != (theirs == nil) {
				t.Fatalf("told %s, OPA %v", told, theirs)
			}
			if told == nil {
				return
			}
			ours := asOPA(t, told)
			want := []any{value(t, theirs.Input), value(t, theirs.Result), theirs.Erased, theirs.Masked}
			if diff := cmp.Diff(want, []any{value(t, ours.Input), value(t, ours.Result), ours.Erased, ours.Masked}); diff != "" {
				t.Errorf("(-OPA +ours):\n%s", diff)
			}
		})
	}
}

func value(t testing.TB, v *any) any {
	t.Helper()
	if v == nil {
		return "gone"
	}
	text, err := json.Marshal(*v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// engine is a policy with a module beside the decision.
func engine(t testing.TB, module string) *rego.Engine {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"policy.rego": "package toolgate\nimport rego.v2\ndecision := {\"effect\": \"deny\"}\n", "log.rego": module,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := rego.Load(t.Context(), rego.Options{Path: dir, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// kept keeps what OPA's plugin tells.
type kept struct{ events []logs.EventV1 }

func (*kept) Start(context.Context) error      { return nil }
func (*kept) Stop(context.Context)             {}
func (*kept) Reconfigure(context.Context, any) {}
func (k *kept) Log(_ context.Context, e logs.EventV1) error {
	k.events = append(k.events, e)
	return nil
}

// maskedByOPA gives what OPA's own plugin tells of an event, nil when nothing.
func maskedByOPA(t testing.TB, module string, e decisionlog.Event) *logs.EventV1 {
	t.Helper()
	ctx, db := t.Context(), inmem.New()
	err := storage.Txn(ctx, db, storage.WriteParams, func(txn storage.Transaction) error {
		return db.UpsertPolicy(ctx, txn, "log.rego", []byte(module))
	})
	if err != nil {
		t.Fatal(err)
	}
	manager, err := plugins.New(nil, "test", db)
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Stop(ctx)
	to := &kept{}
	manager.Register("kept", to)
	config, err := logs.ParseConfig([]byte(`{"plugin": "kept"}`), nil, []string{"kept"})
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Init(ctx); err != nil {
		t.Fatal(err)
	}
	var input, result any
	for raw, v := range map[*json.RawMessage]*any{&e.Input: &input, &e.Result: &result} {
		d := json.NewDecoder(strings.NewReader(string(*raw)))
		d.UseNumber()
		if err := d.Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	err = storage.Txn(ctx, db, storage.TransactionParams{}, func(txn storage.Transaction) error {
		return logs.New(config, manager).Log(ctx, &server.Info{Txn: txn, DecisionID: e.DecisionID, Path: e.Path, Timestamp: e.Timestamp, Input: &input, Results: &result})
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(to.events) == 0 {
		return nil
	}
	return &to.events[0]
}

// The masks in the documentation are masks.
func TestDocumentedMasks(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```rego\npackage system.log\n")
	body, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there are none")
	}
	module := "package system.log\n" + body
	e, err := decisionlog.EventOf(record(3, "d3"), nil)
	if err != nil {
		t.Fatal(err)
	}
	told, err := decisionlog.MaskedEvent(t.Context(), engine(t, module).Mask, e)
	if err != nil {
		t.Fatal(err)
	}
	if got := asOPA(t, told); !slices.Equal(got.Erased, []string{"/input/arguments/card"}) || got.Masked != nil {
		t.Errorf("%s", told)
	}
}
