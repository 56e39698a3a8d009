package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/policy"
)

var update = flag.Bool("update", false, "write testdata/reports.golden")

// TestReports holds what every report prints of a value in which every text is the name of its
// field, every number is not zero, and every list has two members.
func TestReports(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	time.Local = time.UTC // reports print some times in it
	var b strings.Builder
	for _, r := range []struct {
		name   string
		report *report.Report
		forms  []report.Form // in addition to table and wide
	}{
		{"tickets", sample(ticketsText), nil}, {"ticket", sample(ticketText), nil}, {"decided", sample(decidedText), nil}, {"change", sample(changeText), nil},
		{"connections", sample(connectionsText), nil}, {"connection", sample(connectionText), nil}, {"connection revoked", sample(connectionRevokedText), nil},
		{"connection page", sample(connectionPageText), nil}, {"sessions", sample(sessionsText), nil}, {"session ended", sample(sessionEndedText), nil},
		{"limits", sample(limitsText), nil}, {"stops", sample(stopsText), nil}, {"stopped", sample(stoppedText), nil}, {"resumed", sample(resumedText), nil},
		{"token", sample(tokenText), nil}, {"tokens", sample(tokensText), nil}, {"inspection", sample(inspectionText), nil}, {"rotated", sample(rotatedText), nil},
		{"tools", sample(toolsText), nil}, {"offered tools", sample(offeredToolsText), nil}, {"tool", sample(toolText), nil}, {"contracts", sample(contractsText), nil},
		{"servers", sample(serversText), nil}, {"server", sample(serverText), nil}, {"pins", sample(pinsText), nil}, {"lock", sample(lockText), nil},
		{"verified", sample(verifiedText), nil}, {"records", sample(recordsText), nil}, {"calls", sample(callsText), nil}, {"indexed", sample(indexedText), nil},
		{"archived", sample(archivedText), nil}, {"replicas", sample(replicasText), nil}, {"retired", sample(retiredText), nil},
		{"store moved", sample(storeMovedText), nil}, {"support bundle", sample(supportBundleText), nil}, {"check", sample(checkText), nil}, {"doctor", sample(doctorText), nil},
		{"policy check", sample(policyCheckText), []report.Form{"github"}}, {"policy written", sample(policyWrittenText), nil},
		{"tests", sample(testsText), []report.Form{"github", "junit"}}, {"answer", sample(answerText), nil}, {"shadow", sample(shadowText), nil},
		{"verified decisions", sample(verifiedDecisionsText), nil}, {"replay", sample(replayText), []report.Form{"markdown"}}, {"tried", sample(triedText), []report.Form{"markdown"}},
		{"client plan", sample(clientPlanText), nil}, {"undone", sample(undoneText), nil}, {"clients", sample(clientsText), nil},
		{"setup", sample(setupText), nil}, {"drafted policy", sample(draftedPolicyText), nil}, {"service", sample(serviceText), nil},
	} {
		last := ""
		for _, form := range append([]report.Form{report.Table, report.Wide}, r.forms...) {
			if text := r.report.Text(form); text != last {
				fmt.Fprintf(&b, "== %s, %s\n%s", r.name, form, text)
				last = text
			}
		}
	}
	const golden = "testdata/reports.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("reports differ from %s (-want +got; -update writes it):\n%s", golden, diff)
	}
}

// sample returns the report of a value that has something in every field.
func sample[V any](text func(V, report.Form) string) *report.Report {
	var v V
	setAll(reflect.ValueOf(&v).Elem(), "x")
	return report.Of(v, text)
}

// setAll sets v, which is called name, and all that it holds.
func setAll(v reflect.Value, name string) {
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		*at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return
	case *json.RawMessage:
		*at = fmt.Appendf(nil, `{%q:1}`, name)
		return
	case *json.Number:
		*at = "12.50"
		return
	case *policy.Effect:
		*at = policy.Hold
		return
	case *error:
		*at = errors.New(name)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(len(name)))
	case reflect.Uint64:
		v.SetUint(uint64(len(name)))
	case reflect.Float64:
		v.SetFloat(float64(len(name)) / 4)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			setAll(v.Index(i), name)
		}
	case reflect.Array:
		for i := range v.Len() {
			setAll(v.Index(i), name)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setAll(key, name)
		setAll(value, name)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				setAll(f, v.Type().Field(i).Name)
			}
		}
	}
}
