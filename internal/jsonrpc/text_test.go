package jsonrpc_test

import (
	"encoding/json"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

func TestIDText(t *testing.T) {
	for id, want := range map[string]string{`"a\u0062"`: "ab", `7`: "7", `-0`: "-0", `null`: "null", ``: "", `""`: ""} {
		if got := jsonrpc.IDText(json.RawMessage(id)); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for message, want := range map[string]string{"{}": "{}", "{\r\n\"a\":\n1}": "{  \"a\": 1}", "\r": " ", "": ""} {
		given := []byte(message)
		if got := string(jsonrpc.OneLine(given)); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
		if string(given) != message {
			t.Errorf("%q was changed to %q", message, given)
		}
	}
}
