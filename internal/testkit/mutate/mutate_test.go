package main

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `package sample

func open(name string) (err error) {
	if name == "" || deep(func() bool { return name == "." }) {
		return errEmpty
	}
	switch {
	case len(name) > 8, name[0] == '/':
		return fmt.Errorf("too long")
	case name == "x":
		name = "y"
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	if err := f.Chmod(0); err != nil {
		return errMode
	}
	for _, c := range name {
		if c == 'a' {
			continue
		}
	}
	client.CheckRedirect = follow
	_ = http.Client{CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Scheme != "https" {
			return errPlain
		}
		return nil
	}}
	data, _ := io.ReadAll(io.LimitReader(f, most+1))
	if data == nil {
		return nil
	}
	return nil
}

func handle(w http.ResponseWriter) bool {
	if !known {
		http.Error(w, "no", 404)
		return true
	}
	if x := count(); x > 3 {
		return false
	}
	if quiet {
		log()
	}
	return true
}
`

func found(t *testing.T) []*check {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "s.go"), []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	checks, err := findChecks(&pkg{Dir: dir, Name: "sample", GoFiles: []string{"s.go"}})
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

func TestFindChecks(t *testing.T) {
	var got []string
	for _, c := range found(t) {
		got = append(got, fmt.Sprintf("%d %s %s %s", c.line, c.function, c.kind, c.text))
	}
	want := []string{
		`4 open refusal name == ""`,
		`4 open refusal deep(func() bool { return name == "." })`,
		`8 open refusal len(name) > 8`,
		`8 open refusal name[0] == '/'`,
		`13 open passed err != nil`,
		`13 open sync f.Sync()`,
		`16 open error err != nil`,
		`20 open filter c == 'a'`,
		`24 open redirect follow`,
		`25 open redirect func(r *http.Request, _ []*http.Request) error { if r.URL.Scheme != "https" { return errPlain } return nil }`,
		`26 open refusal r.URL.Scheme != "https"`,
		`31 open bound most+1`,
		`39 handle refusal !known`,
		`43 handle refusal x > 3`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The edited file is Go, keeps its lines, and asks for each check once.
func TestEdited(t *testing.T) {
	checks := found(t)
	out := edited([]byte(sample), checks)
	if _, err := format.Source(out); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Count(string(out), "\n") != strings.Count(sample, "\n") {
		t.Error("lines moved")
	}
	for _, want := range []string{
		`if mutantLive(1) && (name == "") || mutantLive(2) && (deep(`, `case mutantLive(3) && (len(name) > 8), mutantLive(4) && (name[0] == '/'):`,
		`err := mutantSync(6, f.Sync)(); mutantLive(5) && (err != nil)`, `CheckRedirect = mutantRedirect(9, follow)`,
		`CheckRedirect: mutantRedirect(10, func(r *`, `io.LimitReader(f, mutantBound(12, int64(most+1)))`, `x := count(); mutantLive(14) && (x > 3)`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// Every line of equivalent.txt is about a check that exists.
func TestEquivalentsExist(t *testing.T) {
	if err := os.Chdir("../../.."); err != nil {
		t.Fatal(err)
	}
	equivalent, err := readEquivalents()
	if err != nil {
		t.Fatal(err)
	}
	all, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	for key, reason := range equivalent {
		file, _, _ := strings.Cut(key, ": ")
		p := all.find(filepath.Dir(file))
		if p == nil {
			t.Errorf("%s: no such package", key)
			continue
		}
		checks, err := findChecks(p)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(checks, func(c *check) bool { return c.key() == key }) {
			t.Errorf("%s: there is no such check (%s)", key, reason)
		}
	}
}
