// Package printed compares what reports print with a golden file.
package printed

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

var update = flag.Bool("update", false, "write the golden files of reports")

// A Row is a report with its name in the golden file.
type Row struct {
	Name   string
	Report *report.Report
	Forms  []report.Form // in addition to table and wide
}

// Compare holds that reports print what a golden file has. They print local times in UTC.
func Compare(t *testing.T, golden string, rows ...Row) {
	t.Helper()
	local := time.Local
	defer func() { time.Local = local }()
	time.Local = time.UTC // reports print some times in it
	var b strings.Builder
	for _, r := range rows {
		last := ""
		for _, form := range append([]report.Form{report.Table, report.Wide}, r.Forms...) {
			if text := r.Report.Text(form); text != last {
				fmt.Fprintf(&b, "== %s, %s\n%s", r.Name, form, text)
				last = text
			}
		}
	}
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

// Sample returns the report of a value that has something in every field.
func Sample[V any](text func(V, report.Form) string) *report.Report {
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
