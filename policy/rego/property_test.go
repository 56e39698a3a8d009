package rego_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	oparego "github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/util"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestSameAsFullEvaluation holds, over generated policies and calls, that what
// is worked out before the call changes no decision, that a hidden tool never
// gets anything but a denial, and that OPA's plain evaluation of the JSON input
// agrees. Every second call has the principal and the tool of the one before, so
// that constant verdicts meet other arguments, requests and usage. Every core tries
// a part of the policies: -rapid.checks of them, with TOOLGATE_SOAK 20,000.
func TestSameAsFullEvaluation(t *testing.T) {
	policies, parts := flag.Lookup("rapid.checks").Value.(flag.Getter).Get().(int), runtime.GOMAXPROCS(0)
	if os.Getenv("TOOLGATE_SOAK") != "" {
		policies = 20_000
	}
	t.Cleanup(setFlag(t, "rapid.checks", strconv.Itoa((policies+parts-1)/parts)))
	var total propertyCounts
	t.Run("parts", func(t *testing.T) {
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "data.json"), []byte(propertyData), 0o600); err != nil {
					t.Fatal(err)
				}
				rapid.Check(t, func(t *rapid.T) { tryPolicy(t, dir, &total) })
			})
		}
	})
	calls := total.calls.Load()
	t.Logf("%d policies, %d calls, %d constant, %d hidden, %d failed", total.policies.Load(), calls, total.constant.Load(), total.hidden.Load(), total.failed.Load())
	if calls > 300 && (total.constant.Load() < calls/20 || total.constant.Load() > calls/2 || total.hidden.Load() < calls/100 || total.failed.Load() < calls/50) {
		t.Errorf("the generated policies exercise too little")
	}
}

// propertyCounts counts what the generated policies exercise.
type propertyCounts struct{ policies, calls, constant, hidden, failed atomic.Int64 }

// tryPolicy generates a policy and six calls of it.
func tryPolicy(t *rapid.T, dir string, n *propertyCounts) {
	source := generatePolicy(t)
	if err := os.WriteFile(filepath.Join(dir, "p.rego"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := rego.LoadUntried(context.Background(), rego.Options{Path: dir, Timeout: testTimeout})
	if err != nil {
		t.Skip(err) // not every text is a policy
	}
	plain, err := preparePlain(source)
	if err != nil {
		t.Fatalf("policy:\n%s\nplain OPA does not prepare it: %v", source, err)
	}
	n.policies.Add(1)
	var before *policy.Input
	for i := range 6 {
		in := generateInput(t)
		if i%2 == 1 {
			in.Principal, in.Tool = before.Principal, before.Tool
		}
		before = in
		tryCall(t, e, plain, source, in, n)
	}
}

// tryCall compares every way there is to a verdict of one call.
func tryCall(t *rapid.T, e *rego.Engine, plain plainPolicy, source string, in *policy.Input, n *propertyCounts) {
	full, fullErr := e.DecideFully(context.Background(), in)
	got, err := e.Decide(context.Background(), in)
	if diff := gocmp.Diff(full, got); diff != "" || (err == nil) != (fullErr == nil) {
		t.Fatalf("policy:\n%s\ninput: %s\nfull evaluation %v, got %v (-full +got):\n%s", source, asJSON(in), fullErr, err, diff)
	}
	n.calls.Add(1)
	if e.Constant(context.Background(), in.Principal, in.Tool) {
		n.constant.Add(1)
	}
	if again, _ := e.Decide(context.Background(), in); !gocmp.Equal(got, again) {
		t.Fatalf("policy:\n%s\ninput: %s\nthe first call and the second (-first +second):\n%s", source, asJSON(in), gocmp.Diff(got, again))
	}
	shown, err := e.Visible(context.Background(), in.Principal, in.Tool)
	if err != nil {
		t.Fatal(err)
	}
	if !shown {
		n.hidden.Add(1)
	}
	if !shown && full.Effect != policy.Deny {
		t.Fatalf("policy:\n%s\ninput: %s\nhidden, but %s", source, asJSON(in), full.Effect)
	}
	if fullErr != nil {
		n.failed.Add(1)
	}
	if want := plain.verdict(in); want != (verdict{got.Effect, got.Rule, got.Reason}) && fullErr == nil && got.Rule != rego.RuleUndefined || want.Effect != got.Effect {
		t.Fatalf("policy:\n%s\ninput: %s\ngot %+v, OPA says %+v", source, asJSON(in), got, want)
	}
}

// setFlag sets a flag of the test program and returns what sets it back.
func setFlag(t testing.TB, name, value string) func() {
	t.Helper()
	f := flag.Lookup(name)
	was := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Value.Set(was) } // it was valid
}

func asJSON(in *policy.Input) []byte {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	return raw
}

// verdict is the part of a decision that is compared with OPA's plain answer.
type verdict struct {
	Effect       policy.Effect
	Rule, Reason string
}

// plainPolicy is a policy that OPA alone has prepared: nothing of the engine takes
// part in its verdicts.
type plainPolicy struct{ oparego.PreparedEvalQuery }

func preparePlain(source string) (plainPolicy, error) {
	var data map[string]any
	if err := util.UnmarshalJSON([]byte(propertyData), &data); err != nil {
		return plainPolicy{}, err
	}
	q, err := oparego.New(oparego.Query("data.toolgate.decision"), oparego.Module("p.rego", source), oparego.StrictBuiltinErrors(true),
		oparego.Store(inmem.NewFromObject(data))).PrepareForEval(context.Background())
	return plainPolicy{q}, err
}

// verdict is the verdict by the shortest way there is through OPA.
func (p plainPolicy) verdict(in *policy.Input) verdict {
	denied := verdict{Effect: policy.Deny}
	decision, err := p.decide(in)
	if err != nil {
		return denied
	}
	var out verdict
	for name, to := range map[string]*string{"effect": (*string)(&out.Effect), "rule": &out.Rule, "reason": &out.Reason} {
		if s, ok := decision[name].(string); ok || decision[name] == nil {
			*to = s
		} else {
			return denied
		}
	}
	if _, approval := decision["approval"]; out.Effect == policy.Allow || out.Effect == policy.Deny || out.Effect == policy.Hold && approval {
		return out
	}
	return denied
}

func (p plainPolicy) decide(in *policy.Input) (map[string]any, error) {
	var document map[string]any
	if err := util.UnmarshalJSON(asJSON(in), &document); err != nil {
		return nil, err
	}
	rs, err := p.Eval(context.Background(), oparego.EvalInput(document))
	if err != nil || len(rs) == 0 {
		return nil, cmp.Or(err, errors.New("undefined"))
	}
	decision, ok := rs[0].Expressions[0].Value.(map[string]any)
	if !ok {
		return nil, errors.New("no object")
	}
	return decision, nil
}

// TestCacheSize holds that no more pairs are remembered than asked for.
func TestCacheSize(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{CacheSize: 4, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		in := input("observer", fmt.Sprintf("tool-%d", i%7), `{}`)
		if d, err := e.Decide(t.Context(), in); err != nil || d.Effect != policy.Deny {
			t.Fatalf("got %+v, %v", d, err)
		}
	}
	if n := e.Remembered(); n < 2 || n > 4 {
		t.Errorf("remembers %d pairs, want at most 4", n)
	}
}
