package config_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/registry/config"
)

// The password of toolgate.shared is shown nowhere, however it is written.
func TestMaskedShared(t *testing.T) {
	for _, tc := range []struct{ written, shown string }{
		{`"redis://:pa55word@cache/0"`, "***@cache/0"},
		{`"redis://default:pa55/word@cache"`, "***@cache"},
		{`{ "url": "rediss://gate:${PASSWORD}@cache" }`, "***@cache"},
	} {
		opts := only(`{ "mcpServers": {}, "toolgate": { "shared": ` + tc.written + ` } }`)
		opts.Getenv = func(name string) (string, bool) { return "pa55word", name == "PASSWORD" }
		document, secrets, _ := config.Masked(opts) // what is badly written is masked too
		if text := string(document); strings.Contains(text, "pa55") || !strings.Contains(text, tc.shown) {
			t.Errorf("%s is shown as %s", tc.written, text)
		}
		if strings.Contains(tc.written, "gate") && (len(secrets) != 1 && len(secrets) != 2 || secrets[0] != "pa55word") {
			t.Errorf("%s: the secrets are %q", tc.written, secrets)
		}
	}
}
