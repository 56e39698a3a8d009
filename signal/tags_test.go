package signal_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/signal"
)

// Table "Tag Conventions".
func TestTagConventions(t *testing.T) {
	rows := []struct {
		key       string
		good, bad []string
	}{
		{"urgency", []string{"low", "normal", "high", "critical"}, []string{"", "urgent", "HIGH", "high "}},
		{"domain", []string{"finance", "code", "general", "anything else"}, []string{""}},
		{"complexity", []string{"trivial", "simple", "moderate", "complex"}, []string{"", "hard", "Simple"}},
		{"confidence", ratios, notRatios},
		{"grounding", ratios, notRatios},
		{"source_type", []string{"user", "tool", "agent", "system"}, []string{"", "moon", "User"}},
		{"own_tag", []string{"", "anything"}, nil},
	}
	for _, row := range rows {
		for _, value := range row.good {
			allow(t, row.key, value)
		}
		for _, value := range row.bad {
			deny(t, row.key, value)
		}
	}
}

var (
	ratios    = []string{"0", "1", "0.0", "1.0", "0.5", "0.123456789", "1.000"}
	notRatios = []string{"", "1.1", "1.01", "2", "-0.1", "-0", "+0.5", ".5", "0.", "1.", "00.5", "01", "5e-1", "NaN", "Inf", "high", " 0.5", "0,5", "0x0"}
)

// allow and deny try a tag on the factory and on the JSON form alike.
func allow(t *testing.T, key, value string) {
	t.Helper()
	s, err := signal.CreateText("x", here, "trc_1", map[string]string{key: value})
	if err != nil || s.Tag(key) != value {
		t.Errorf("%s %q: %v", key, value, err)
		return
	}
	var back signal.Signal
	if err := back.UnmarshalJSON(must(s.MarshalJSON())(t)); err != nil || !back.Equal(s) {
		t.Errorf("%s %q: decoding: %v", key, value, err)
	}
}

func deny(t *testing.T, key, value string) {
	t.Helper()
	if _, err := signal.CreateText("x", here, "trc_1", map[string]string{key: value}); !errors.Is(err, signal.ErrInvalidTag) {
		t.Errorf("%s %q: creating: %v", key, value, err)
	}
	var back signal.Signal
	if err := back.UnmarshalJSON(tagged(t, key, value)); !errors.Is(err, signal.ErrInvalidSignal) || !errors.Is(err, signal.ErrInvalidTag) {
		t.Errorf("%s %q: decoding: %v", key, value, err)
	}
}

// tagged is goodSignal with one more tag.
func tagged(t *testing.T, key, value string) []byte {
	t.Helper()
	text := strings.Replace(goodSignal, `"tags":{`, fmt.Sprintf(`"tags":{%q:%q,`, key, value), 1)
	if text == goodSignal {
		t.Fatal("nothing was changed")
	}
	return []byte(text)
}
