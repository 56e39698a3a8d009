package lock_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/registry/lock"
)

// A lock of another form or version is no lock: what it accepts is not known.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":1,"servers":{}}`: "", `{"version":2,"servers":{}}`: "another version", `{"servers":{}}`: "another version",
		`{"version":1,"more":1}`: "reading", `{"version":1,"version":1}`: "reading", `{`: "reading", ``: "reading",
	} {
		f, err := lock.Parse([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || f != nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
