package tickets_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console/tickets"
)

// What a tool answers is text, and its beginning is shown.
func TestBeginningOfResults(t *testing.T) {
	for stored, want := range map[string]tickets.Result{
		`{"content":[{"type":"text","text":"a\u202eb\r\nc"}]}`:                      {Text: `a\u202eb\u000d` + "\nc"},
		`{"content":[],"structuredContent":{"paid":true}}`:                          {Text: `{"content":[],"structuredContent":{"paid":true}}`},
		`{"code":-32000,"message":"no"}`:                                            {Text: `{"code":-32000,"message":"no"}`},
		`{"content":[{"type":"\u001b[2J"}]}`:                                        {Text: `(\u001b[2J, 20 bytes)`},
		`{"content":[{"type":"text","text":"` + strings.Repeat(`x\n`, 50) + `"}]}`:  {Text: strings.Repeat("x\n", 40), Cut: 20},
		`{"content":[{"type":"text","text":"y` + strings.Repeat(`ü`, 3000) + `"}]}`: {Text: "y" + strings.Repeat("ü", 2047), Cut: 1906},
	} {
		if got := tickets.ResultOf([]byte(stored)); !cmp.Equal(got, want) {
			t.Errorf("%.80s: %.200q, %d bytes cut", stored, got.Text, got.Cut)
		}
	}
}
