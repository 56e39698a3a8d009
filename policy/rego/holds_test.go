package rego_test

import "testing"

func TestHolds(t *testing.T) {
	for text, want := range map[string]bool{
		`decision := {"effect": "allow"}`:                                                 false,
		`decision := {"effect": "hold", "approval": {"roles": ["a"]}}`:                    true,
		`decision := {"effect": e} if { e := ["allow", "hold"][_] }`:                      true,
		`hold contains {"rule": "r", "reason": "r", "approval": {"roles": ["a"]}}`:        true,
		"deny contains {\"rule\": \"r\", \"reason\": \"nothing is held\"}\nwithhold := 1": false,
	} {
		if got := loadUntried(t, writeFiles(t, "p.rego", module(text))).Holds(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
