package rego_test

import "testing"

func TestQuorumWrittenOut(t *testing.T) {
	for text, want := range map[string]int{
		`decision := {"effect": "allow"}`:                                                                       0,
		`decision := {"effect": "hold", "approval": {"roles": ["a"], "quorum": 2}}`:                             2,
		`decision := {"effect": "hold", "approval": {"quorum": {"finance": 1, "security": 2}}}`:                 3,
		`decision := {"effect": "hold", "approval": {"roles": ["a"], "quorum": n}} if { n := count({1, 2}) }`:   0,
		"hold contains {\"rule\": \"r\", \"reason\": \"r\", \"approval\": {\"roles\": [\"a\"], \"quorum\": 4}}": 4,
	} {
		e := loadUntried(t, writeFiles(t, "p.rego", module(text)))
		if got := e.Quorum(); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	e := loadUntried(t, writeFiles(t, "p.rego", module(`decision := {"effect": "hold", "approval": data.approval}`), "data.json", `{"approval": {"roles": ["a"], "quorum": 2}}`))
	if got := e.Quorum(); got != 2 {
		t.Errorf("in data: %d", got)
	}
}
