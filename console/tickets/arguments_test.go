package tickets_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/tickets"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

func TestLeaves(t *testing.T) {
	for text, want := range map[string][]tickets.Leaf{
		`{"b":1.0,"a":{"x/y":[true,null],"~":"\u0041"},"":{},"l":[]}`: {
			{"/b", "1.0"}, {"/a/x~1y/0", "true"}, {"/a/x~1y/1", "null"}, {"/a/~0", `"\u0041"`}, {"/", "{}"}, {"/l", "[]"},
		},
		`{}`: {{"", "{}"}}, `"s"`: {{"", `"s"`}}, ` [ 1E2 , -0 ] `: {{"/0", "1E2"}, {"/1", "-0"}},
		`{"a":1,"a":2}`:    {{"/a", "1"}, {"/a", "2"}},
		"{\"a\":\"\xff\"}": {{"/a", "\"\xff\""}},
	} {
		got, err := tickets.Leaves([]byte(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"", "{", `{"a":}`, "1 2", `{"a":1}}`, "[1", "nul", `{"a":1`, "]"} {
		if got, err := tickets.Leaves([]byte(text)); err == nil || got != nil {
			t.Errorf("%q gives %v, %v", text, got, err)
		}
	}
}

// What a page says of a value is all of it: as written, and when escapes or
// digits make that hard to read, what it says.
func TestValues(t *testing.T) {
	hides := `has characters that a screen would hide or turn around, shown as \u…`
	for lexeme, want := range map[string]tickets.Value{
		`"plain"`: {Text: `"plain"`}, `100`: {Text: `100`}, `1234`: {Text: `1234`}, `true`: {Text: `true`}, `{}`: {Text: `{}`}, `"Grüße"`: {Text: `"Grüße"`},
		`12500000`:          {Text: `12500000`, Notes: []string{"= 12\u202f500\u202f000"}},
		`-1234567.50`:       {Text: `-1234567.50`, Notes: []string{"= -1\u202f234\u202f567.50"}},
		`1e2`:               {Text: `1e2`, Notes: []string{"= 100"}},
		`1.25E-3`:           {Text: `1.25E-3`, Notes: []string{"= 0.00125"}},
		`2.50e1`:            {Text: `2.50e1`, Notes: []string{"= 25.0"}},
		`1e999999999`:       {Text: `1e999999999`},
		`"250000"`:          {Text: `"250000"`, Notes: []string{"= 250\u202f000"}},
		`"0x00250000"`:      {Text: `"0x00250000"`},
		`"a\"b"`:            {Text: `"a\"b"`, Reads: `a"b`},
		`"Gr\u00fc\u00dfe"`: {Text: `"Gr\u00fc\u00dfe"`, Reads: "Grüße"},
		`"one\ntwo"`:        {Text: `"one\ntwo"`, Reads: "one\ntwo"},
		`"\ud83d\ude42"`:    {Text: `"\ud83d\ude42"`, Reads: "🙂"},
		`"a\u202eb"`:        {Text: `"a\u202eb"`, Notes: []string{hides}},
		"\"a\u202eb\"":      {Text: `"a\u202eb"`, Notes: []string{hides}},
		`"pay\u200bpal"`:    {Text: `"pay\u200bpal"`, Notes: []string{hides}},
		`"\\u202e"`:         {Text: `"\\u202e"`, Reads: `\u202e`},
		`"аcme"`:            {Text: `"аcme"`, Notes: []string{"one word mixes Latin and Cyrillic letters"}},
		`"acme ακμή"`:       {Text: `"acme ακμή"`},
	} {
		if diff := cmp.Diff(want, tickets.ValueOf(lexeme)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", lexeme, diff)
		}
	}
	long := `"` + strings.Repeat("ü", 500) + `tail"`
	got := tickets.ValueOf(long)
	if got.Text != long || got.Head != long[:1+79*2] || !strings.HasSuffix(got.Tail, `tail"`) || utf8.RuneCountInString(got.Tail) != 40 {
		t.Errorf("a long value is shown as %+v", got)
	}
}

func TestDifferences(t *testing.T) {
	for name, tt := range map[string]struct {
		now, before, differs string
		want                 []string
	}{
		"nothing before":     {now: `{"a":1}`, want: []string{"/a 1"}},
		"the same":           {now: `{"a":1,"b":"x"}`, before: `{"b":"x","a":1}`, want: []string{"/a 1", `/b "x"`}},
		"another value":      {now: `{"a":2,"b":1}`, before: `{"a":1,"b":1}`, differs: "1 of 2 values", want: []string{"/a 2 was 1", "/b 1"}},
		"another form":       {now: `{"a":1.0}`, before: `{"a":1}`, differs: "1 of 1 value", want: []string{"/a 1.0 was 1"}},
		"one more, one less": {now: `{"b":1}`, before: `{"a":1}`, differs: "2 of 2 values", want: []string{"/b 1 new", "/a gone, was 1"}},
		"an object of a value": {now: `{"a":{"x":1}}`, before: `{"a":1}`, differs: "2 of 2 values",
			want: []string{"/a/x 1 new", "/a gone, was 1"}},
		"a longer list":    {now: `[1,2]`, before: `[1]`, differs: "1 of 2 values", want: []string{"/0 1", "/1 2 new"}},
		"no JSON before":   {now: `{"a":1}`, before: `{`, want: []string{"/a 1"}},
		"no JSON at all":   {now: `{`, before: `{"a":1}`},
		"hidden in a name": {now: "{\"a\u202e\":1}", before: `{"a":1}`, differs: "2 of 2 values", want: []string{`/a\u202e 1 new`, "/a gone, was 1"}},
	} {
		var before []byte
		if tt.before != "" {
			before = []byte(tt.before)
		}
		got, differs := tickets.Compared([]byte(tt.now), before)
		if diff := cmp.Diff(tt.want, got); diff != "" || differs != tt.differs {
			t.Errorf("%s: %q (-want +got):\n%s", name, differs, diff)
		}
	}
}

func TestSentences(t *testing.T) {
	who := policy.Principal{Subject: "agent\u202e7"}
	k := func(arguments string) approval.Ticket {
		return approval.Ticket{ArgumentBytes: len(arguments), Held: approval.Held{
			Principal: who, Server: "standard", Exposed: "manage_wallet", Arguments: []byte(arguments), Approval: policy.Approval{Quorum: 1},
		}}
	}
	start := `agent\u202e7 asks to call manage_wallet of server standard`
	for arguments, want := range map[string]string{
		`{}`: " without arguments", `{"action":"transfer","amount":250.00,"to":"0x9f"}`: ` with action "transfer", amount 250.00, to "0x9f"`,
		`{"to":"` + strings.Repeat("x", 65) + `","amount":1}`: " with amount 1 and 1 more value",
		`{"a":{"b":1},"c":[2]}`:                               " with 2 values", `"x"`: " with 1 value", `{`: " with arguments of 1 byte",
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}`: " with a 1, b 2, c 3, d 4, e 5, f 6, g 7, h 8 and 1 more value",
		"{\"to\":\"\u200b\"}": ` with to "\u200b"`,
	} {
		if got := tickets.Sentence(k(arguments)); got != start+want {
			t.Errorf("%s:\n got %s\nwant %s", arguments, got, start+want)
		}
	}
	large := k("")
	large.Arguments, large.ArgumentBytes = nil, 20000
	if got := tickets.Sentence(large); got != start+" with arguments of 20000 bytes" {
		t.Errorf("got %s", got)
	}
	two := k("{}")
	two.State, two.Quorum, two.Execute = approval.StateProposed, 2, true
	want := `Call manage_wallet of server standard once, for agent\u202e7, with exactly this: Once 2 people have approved it, it runs at once, also when the agent has gone.`
	if got := tickets.Effect(two); got != want {
		t.Errorf("got %s", got)
	}
}

// Every value is found, once, as it was written, and all that is shown is to be
// seen; what is no JSON gives nothing.
func FuzzArguments(f *testing.F) {
	for _, seed := range []string{`{"a":[1,{"b":"x"}],"c":{}}`, `"\u202e"`, `{"amount":1e400}`, `[`, `{"a":1,"a":2}`, "\"\xff\"", `{"~/":-0.0}`} {
		f.Add(seed, `{"a":[2]}`)
	}
	f.Fuzz(func(t *testing.T, text, before string) {
		found, err := tickets.Leaves([]byte(text))
		if json.Valid([]byte(text)) && err != nil || err != nil && found != nil {
			t.Fatalf("%q: %v, %v", text, found, err)
		}
		rest := text
		for _, l := range found {
			if strings.Trim(l[1], "{}[]") == "" {
				continue // an empty one may have blanks inside
			}
			at := strings.Index(rest, l[1])
			if at < 0 {
				t.Fatalf("%q has %q at %s, which is not its next value", text, l[1], l[0])
			}
			rest = rest[at+len(l[1]):]
			v := tickets.ValueOf(l[1])
			if v.Text != page.Visible(l[1]) || page.Visible(strings.ReplaceAll(v.Reads, "\n", "")) != strings.ReplaceAll(v.Reads, "\n", "") ||
				!strings.HasPrefix(v.Text, v.Head) || !strings.HasSuffix(v.Text, v.Tail) {
				t.Fatalf("%q is shown as %+v", l[1], v)
			}
		}
		rows, differs := tickets.Compared([]byte(text), []byte(before))
		if same, _ := tickets.Compared([]byte(text), []byte(text)); len(same) > len(rows) && json.Valid([]byte(before)) {
			t.Fatalf("%q beside %q: %d rows, beside itself %d (%s)", text, before, len(rows), len(same), differs)
		}
	})
}
