package workbench_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// testTimeout is for policies that end: a loaded machine must not deny.
const testTimeout = 10 * time.Second

// writeFiles writes files, named and filled in turn, and returns their directory.
func writeFiles(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		name := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// module is a policy with the given rules.
func module(rules string) string { return "package toolgate\nimport rego.v2\n" + rules + "\n" }

// load makes an engine of files, named and filled in turn.
func load(t testing.TB, files ...string) *rego.Engine {
	t.Helper()
	e, err := tryLoad(t, files...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func tryLoad(t testing.TB, files ...string) (*rego.Engine, error) {
	t.Helper()
	return rego.Load(t.Context(), rego.Options{Path: writeFiles(t, files...), Timeout: testTimeout})
}

func input(role, tool, arguments string) *policy.Input {
	return &policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{role}, Client: "inspector/1"},
		Tool:      policy.Tool{Server: "standard", Name: tool, Exposed: tool, Risk: "high", Fingerprint: "sha256:00"},
		Arguments: json.RawMessage(arguments),
		Request:   policy.Request{ID: "1", Transport: "http", TraceID: "trc_1", Time: time.Unix(1e9, 0)},
		Usage:     map[string]policy.Reading{"day": {Sum: "0"}},
	}
}

// loadUntried is load for a directory, whose policy is not tried.
func loadUntried(t testing.TB, dir string) *rego.Engine {
	t.Helper()
	e, err := rego.LoadUntried(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
