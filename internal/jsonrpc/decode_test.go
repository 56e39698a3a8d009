package jsonrpc_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// decode fails the test on a fault.
func decode(t testing.TB, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{})
	if err != nil {
		t.Fatalf("decoding %.120q: %v", text, err)
	}
	return m
}

// refuse fails the test unless text is refused with kind and a reason that
// holds the words.
func refuse(t testing.TB, text string, kind jsonrpc.FaultKind, words string) *jsonrpc.Fault {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{})
	var f *jsonrpc.Fault
	if !errors.As(err, &f) {
		t.Fatalf("%.120q: error %v, want a *Fault", text, err)
	}
	if m != nil {
		t.Errorf("%.120q: a message came with the fault", text)
	}
	if f.Kind != kind || !strings.Contains(f.Reason, words) {
		t.Errorf("%.120q: %v: %v, want %v with %q", text, f.Kind, f, kind, words)
	}
	return f
}

// with makes a tools/call with the arguments given.
func with(arguments string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":` + arguments + `}}`
}

func TestDecodeKinds(t *testing.T) {
	tests := []struct {
		text string
		want jsonrpc.Message
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
			jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte(`1`), Method: "ping"}},
		{`{"jsonrpc":"2.0","id":"a\u0062","method":"tools\/call","params":{}}`,
			jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte(`"a\u0062"`), Method: "tools/call", Params: []byte(`{}`)}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`,
			jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte(`1`), Method: "ping"}},
		{`{"\u006dethod":"m","jsonrpc":"2.0"}`,
			jsonrpc.Message{Kind: jsonrpc.Notification, Method: "m"}},
		{`{"result":{"a":[1e2]},"id":-7,"jsonrpc":"2.0"}`,
			jsonrpc.Message{Kind: jsonrpc.Success, ID: []byte(`-7`), Result: []byte(`{"a":[1e2]}`)}},
		{`{"jsonrpc":"2.0","id":9007199254740993,"result":null}`,
			jsonrpc.Message{Kind: jsonrpc.Success, ID: []byte(`9007199254740993`), Result: []byte(`null`)}},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}`,
			jsonrpc.Message{Kind: jsonrpc.Failure, ID: []byte(`1`), Error: []byte(`{"code":-1,"message":"x"}`)}},
		{`{"jsonrpc":"2.0","error":{}}`,
			jsonrpc.Message{Kind: jsonrpc.Failure, Error: []byte(`{}`)}},
		{`{"jsonrpc":"2.0","id":null,"error":{}}`,
			jsonrpc.Message{Kind: jsonrpc.Failure, Error: []byte(`{}`)}},
	}
	for _, tt := range tests {
		tt.want.Raw, tt.want.Key = []byte(tt.text), jsonrpc.Key(tt.want.ID)
		if diff := cmp.Diff(&tt.want, decode(t, tt.text), cmpopts.IgnoreUnexported(jsonrpc.Message{}), cmpopts.IgnoreFields(jsonrpc.Message{}, "Plain")); diff != "" {
			t.Errorf("%s:\n%s", tt.text, diff)
		}
	}
}

// A parameter that is null is none, however many there are.
func TestParamNull(t *testing.T) {
	params := `"arguments":null,"_meta":{"a":null,"b":1}`
	for _, text := range []string{"{" + params + "}", many(100, params)} {
		m := decode(t, `{"jsonrpc":"2.0","id":1,"method":"m","params":`+text+`}`)
		for _, path := range [][]string{{"arguments"}, {"_meta", "a"}, {"none"}} {
			if value, ok := m.Param(path...); ok {
				t.Errorf("%v is %s", path, value)
			}
		}
		if value, ok := m.Param("_meta", "b"); !ok || string(value) != "1" {
			t.Errorf("_meta.b is %s", value)
		}
	}
}

func TestDecodeKeepsEveryByte(t *testing.T) {
	for _, arguments := range []string{
		`{"z":1,"a":2,"m":3}`, `{"n":9007199254740993}`, `{"n":1e2,"m":1E+2,"o":-0,"p":1.000}`,
		`{"s":"<a href='x'>&\u003c\/"}`, "{\"s\":\"\u2028\u2029é日本\U0001f600\"}", `{"s":"\ud83d\ude00\u00e9\u0000\n"}`,
		`{ "a" : [ 1 , 2 ] }`, `{"":0," ":1}`,
	} {
		text := with(arguments)
		m := decode(t, text)
		if string(m.Raw) != text {
			t.Errorf("raw %s, want %s", m.Raw, text)
		}
		if got, ok := jsonrpc.Get(m.Params, "arguments"); !ok || string(got) != arguments {
			t.Errorf("arguments %s, want %s", got, arguments)
		}
	}
}

func TestDecodeGivesOneLine(t *testing.T) {
	text := "\r\n {\n\t\"jsonrpc\": \"2.0\",\r\n\t\"id\": 1,\n\t\"method\": \"m\",\n\t\"params\": {\n\t\t\"a\": [\n1,\t2]\n\t}\n}\n\n"
	m := decode(t, text)
	want := "{ \t\"jsonrpc\": \"2.0\",  \t\"id\": 1, \t\"method\": \"m\", \t\"params\": { \t\t\"a\": [ 1,\t2] \t} }"
	if diff := cmp.Diff(want, string(m.Raw)); diff != "" {
		t.Error(diff)
	}
	if bytes.ContainsAny(m.Params, "\r\n") {
		t.Errorf("params are not one line: %q", m.Params)
	}
}

func TestDecodeDoesNotAliasTheInput(t *testing.T) {
	data := []byte(with(`{"a":1}`))
	m, err := jsonrpc.Decode(data, jsonrpc.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := string(m.Raw)
	clear(data)
	if string(m.Raw) != want {
		t.Error("the message changed with the caller's buffer")
	}
	if &m.Params[0] != &m.Raw[strings.Index(want, `{"name"`)] {
		t.Error("params are a copy")
	}
	if cap(m.Params) != len(m.Params) {
		t.Error("appending to params would write into the message")
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) { refuse(t, tt.text, tt.kind, tt.words) })
	}
}

// refusals has at least one row for each rule of Decode.
var refusals = []struct {
	name, text string
	kind       jsonrpc.FaultKind
	words      string
}{
	{"nothing", "", jsonrpc.Parse, "empty"},
	{"white space", " \n", jsonrpc.Parse, "empty"},
	{"byte order mark", "\xef\xbb\xbf" + with(`{}`), jsonrpc.Parse, "byte order mark"},
	{"UTF-16", "{\x00\"\x00", jsonrpc.Parse, "member name"},
	{"two values", with(`{}`) + with(`{}`), jsonrpc.Parse, "more bytes"},
	{"two values on two lines", with(`{}`) + "\n" + with(`{}`), jsonrpc.Parse, "more bytes"},
	{"record separator", with(`{}`) + "\x1e" + with(`{}`), jsonrpc.Parse, "more bytes"},
	{"trailing NUL", with(`{}`) + "\x00", jsonrpc.Parse, "more bytes"},
	{"cut off", with(`{}`)[:40], jsonrpc.Parse, "unfinished"},
	{"trailing comma", `{"jsonrpc":"2.0",}`, jsonrpc.Parse, "member name"},
	{"vertical tab between tokens", "{\v}", jsonrpc.Parse, "member name"},
	{"invalid UTF-8", with("{\"a\":\"\xff\"}"), jsonrpc.Parse, "UTF-8"},
	{"overlong UTF-8", with("{\"a\":\"\xc0\xaf\"}"), jsonrpc.Parse, "UTF-8"},
	{"surrogate in UTF-8", with("{\"a\":\"\xed\xa0\x80\"}"), jsonrpc.Parse, "UTF-8"},
	{"invalid UTF-8 in a name", with("{\"\xff\":1}"), jsonrpc.Parse, "UTF-8"},
	{"lone high surrogate", with(`{"a":"\ud800"}`), jsonrpc.Parse, "surrogate"},
	{"lone low surrogate", with(`{"a":"\udc00"}`), jsonrpc.Parse, "surrogate"},
	{"two high surrogates", with(`{"a":"\ud800\ud800"}`), jsonrpc.Parse, "surrogate"},
	{"lone surrogate in a name", with(`{"\ud800":1}`), jsonrpc.Parse, "surrogate"},
	{"raw newline in a string", with("{\"a\":\"\n\"}"), jsonrpc.Parse, "control character"},
	{"bad escape", with(`{"a":"\x"}`), jsonrpc.Parse, "escape"},
	{"bare word", with(`{"a":nul}`), jsonrpc.Parse, "unexpected"},
	{"NaN", with(`{"a":NaN}`), jsonrpc.Parse, "unexpected"},
	{"leading zero", with(`{"a":01}`), jsonrpc.Parse, "number"},
	{"lone minus", with(`{"a":-}`), jsonrpc.Parse, "number"},

	{"batch", "[" + with(`{}`) + "]", jsonrpc.Invalid, "batches"},
	{"nested batch", "[[" + with(`{}`) + "]]", jsonrpc.Invalid, "batches"},
	{"empty batch", "[]", jsonrpc.Invalid, "batches"},
	{"string", `"a"`, jsonrpc.Invalid, "must be an object"},
	{"null", `null`, jsonrpc.Invalid, "must be an object"},
	{"empty object", `{}`, jsonrpc.Invalid, "2.0"},

	{"repeated argument", with(`{"amount":1,"amount":1000000}`), jsonrpc.Invalid, `duplicate key "amount"`},
	{"repeated after unescaping", with(`{"amount":1,"\u0061mount":1000000}`), jsonrpc.Invalid, `duplicate key "amount"`},
	{"repeated deep inside", with(`{"a":[{"b":{"c":1,"c":2}}]}`), jsonrpc.Invalid, `duplicate key "c"`},
	{"repeated empty name", with(`{"":1,"":2}`), jsonrpc.Invalid, `duplicate key ""`},
	{"repeated name", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"a","name":"b"}}`, jsonrpc.Invalid, `duplicate key "name"`},
	{"repeated method", `{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}`, jsonrpc.Invalid, `duplicate key "method"`},
	{"repeated params", `{"jsonrpc":"2.0","id":1,"method":"a","params":{},"params":{}}`, jsonrpc.Invalid, `duplicate key "params"`},
	{"repeated id", `{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}`, jsonrpc.Invalid, `duplicate key "id"`},
	{"repeated _meta", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{},"_meta":{}}}`, jsonrpc.Invalid, `duplicate key "_meta"`},
	{"repeated among many", with(many(100, `"k7":0`)), jsonrpc.Invalid, `duplicate key "k7"`},
	{"repeated in a result", `{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}`, jsonrpc.Invalid, `duplicate key "a"`},

	{"NUL in a name", with(`{"name":"ok","name\u0000":"danger"}`), jsonrpc.Invalid, "control character"},
	{"control character in a name", with(`{"a\u001fb":1}`), jsonrpc.Invalid, "control character"},
	{"delete in a name", with("{\"a\x7f\":1}"), jsonrpc.Invalid, "control character"},
	{"C1 control in a name", with(`{"a\u0085":1}`), jsonrpc.Invalid, "control character"},
	{"control character in an envelope name", `{"jsonrpc":"2.0","id":1,"method":"a","id\u0000":2}`, jsonrpc.Invalid, "control character"},

	{"method in two cases", `{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call"}`, jsonrpc.Invalid, `"Method"`},
	{"lone Method", `{"jsonrpc":"2.0","id":1,"Method":"tools/call"}`, jsonrpc.Invalid, `"Method" differs only by case from "method"`},
	{"lone ID", `{"jsonrpc":"2.0","ID":1,"method":"a"}`, jsonrpc.Invalid, `"ID" differs only by case from "id"`},
	{"lone Params", `{"jsonrpc":"2.0","id":1,"method":"a","Params":{}}`, jsonrpc.Invalid, `"Params" differs`},
	{"long s in params", `{"jsonrpc":"2.0","id":1,"method":"a","paramſ":{}}`, jsonrpc.Invalid, `"paramſ" differs only by case from "params"`},
	{"lone Jsonrpc", `{"Jsonrpc":"2.0","id":1,"method":"a"}`, jsonrpc.Invalid, `"Jsonrpc" differs`},
	{"lone Result", `{"jsonrpc":"2.0","id":1,"Result":{}}`, jsonrpc.Invalid, `"Result" differs`},
	{"variants in params", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"uri":"a","URI":"b"}}`, jsonrpc.Invalid, `"uri" and "URI" differ only by case`},
	{"Kelvin sign", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"k":1,"` + "\u212a" + `":2}}}`, jsonrpc.Invalid, "differ only by case"},
	{"argumentſ", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{},"argumentſ":{}}}`, jsonrpc.Invalid, `"argumentſ" differs only by case`},
	{"lone Arguments", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"Arguments":{}}}`, jsonrpc.Invalid, `"Arguments" differs only by case`},
	{"lone Name", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"Name":"x"}}`, jsonrpc.Invalid, `"Name" differs only by case`},
	{"variants in _meta", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"a":{"b":1,"B":2}}}}`, jsonrpc.Invalid, `"b" and "B"`},
	{"variants among many", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":` + many(100, `"K7":0`) + `}}`, jsonrpc.Invalid, `"k7" and "K7"`},
	{"variants in a result", `{"jsonrpc":"2.0","id":1,"result":{"isError":false,"IsError":true}}`, jsonrpc.Invalid, "differ only by case"},
	{"variants in content", `{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"a","Text":"b"}]}}`, jsonrpc.Invalid, "differ only by case"},
	{"variants in an error", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"Code":2}}`, jsonrpc.Invalid, "differ only by case"},
	{"variants in arguments of an array", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":{"arguments":{"a":1,"A":2}}}}`, jsonrpc.Invalid, "differ only by case"},

	{"no version", `{"id":1,"method":"a"}`, jsonrpc.Invalid, `"2.0"`},
	{"other version", `{"jsonrpc":"1.0","id":1,"method":"a"}`, jsonrpc.Invalid, `"2.0"`},
	{"number as version", `{"jsonrpc":2.0,"id":1,"method":"a"}`, jsonrpc.Invalid, `"2.0"`},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"id with fraction", `{"jsonrpc":"2.0","id":1.0,"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"id with exponent", `{"jsonrpc":"2.0","id":1e2,"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"id object", `{"jsonrpc":"2.0","id":{},"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"id bool", `{"jsonrpc":"2.0","id":true,"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"long id", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 255) + `","method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"long integer id", `{"jsonrpc":"2.0","id":` + strings.Repeat("1", 257) + `,"method":"a"}`, jsonrpc.Invalid, "an id must be"},
	{"unknown member", `{"jsonrpc":"2.0","id":1,"method":"a","extra":1}`, jsonrpc.Invalid, `unknown member "extra"`},
	{"result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, jsonrpc.Invalid, "both a result and an error"},
	{"method and result", `{"jsonrpc":"2.0","id":1,"method":"a","result":{}}`, jsonrpc.Invalid, "both a method and an answer"},
	{"neither", `{"jsonrpc":"2.0","id":1}`, jsonrpc.Invalid, "neither"},
	{"result without id", `{"jsonrpc":"2.0","result":{}}`, jsonrpc.Invalid, "without an id"},
	{"params in an answer", `{"jsonrpc":"2.0","id":1,"result":{},"params":{}}`, jsonrpc.Invalid, "params without a method"},
	{"method no string", `{"jsonrpc":"2.0","id":1,"method":1}`, jsonrpc.Invalid, "a method must be a string"},
	{"params array", `{"jsonrpc":"2.0","id":1,"method":"a","params":[]}`, jsonrpc.Invalid, "params must be an object"},
	{"params of an answer", `{"jsonrpc":"2.0","id":1,"result":{},"params":null}`, jsonrpc.Invalid, "params without a method"},
	{"error string", `{"jsonrpc":"2.0","id":1,"error":"x"}`, jsonrpc.Invalid, "an error must be an object"},

	{"many digits", with(`{"a":` + strings.Repeat("1", 401) + `}`), jsonrpc.Invalid, "more than 400 digits"},
	{"many digits after the point", with(`{"a":1.` + strings.Repeat("0", 400) + `}`), jsonrpc.Invalid, "more than 400 digits"},
	{"large exponent", with(`{"a":1e401}`), jsonrpc.Invalid, "exponent beyond 400"},
	{"small exponent", with(`{"a":1e-401}`), jsonrpc.Invalid, "exponent beyond 400"},
	{"absurd exponent", with(`{"a":1e99999999999999999999999}`), jsonrpc.Invalid, "exponent beyond 400"},
	{"large exponent in an answer", `{"jsonrpc":"2.0","id":1,"result":1e401}`, jsonrpc.Invalid, "exponent beyond 400"},
	{"65 levels", with(strings.Repeat("[", 63) + strings.Repeat("]", 63)), jsonrpc.Invalid, "deeper than 64"},
	{"a nesting bomb", strings.Repeat("[", 250_000), jsonrpc.Invalid, "deeper than 64"},
}

// many makes an object of n members k0, k1 and so on, and one more.
func many(n int, last string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":%d,`, i, i)
	}
	return "{" + b.String() + last + "}"
}

func TestDecodeAcceptsAtTheLimit(t *testing.T) {
	for name, text := range map[string]string{
		"64 levels":                with(strings.Repeat("[", 62) + strings.Repeat("]", 62)),
		"400 digits":               with(`{"a":` + strings.Repeat("1", 400) + `}`),
		"exponent 400":             with(`{"a":1e400,"b":1E-400,"c":1e+0000000400}`),
		"id of 256":                `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 254) + `","method":"a"}`,
		"many arguments":           with(many(1000, `"z":0`)),
		"same name in two objects": with(`{"a":{"x":1},"b":{"x":1}}`),
	} {
		t.Run(name, func(t *testing.T) { decode(t, text) })
	}
}

func TestDecodeHoldsToTheLimitsGiven(t *testing.T) {
	text := with(`{"a":[1234e5]}`)
	tests := []struct {
		name string
		lim  jsonrpc.Limits
		kind jsonrpc.FaultKind // 0 when accepted
	}{
		{"defaults", jsonrpc.Limits{}, 0},
		{"exact", jsonrpc.Limits{Bytes: len(text), Depth: 4, Digits: 4, Exponent: 5}, 0},
		{"bytes", jsonrpc.Limits{Bytes: len(text) - 1}, jsonrpc.TooLarge},
		{"depth", jsonrpc.Limits{Depth: 3}, jsonrpc.Invalid},
		{"digits", jsonrpc.Limits{Digits: 3}, jsonrpc.Invalid},
		{"exponent", jsonrpc.Limits{Exponent: 4}, jsonrpc.Invalid},
	}
	for _, tt := range tests {
		var got jsonrpc.FaultKind
		var f *jsonrpc.Fault
		if _, err := jsonrpc.Decode([]byte(text), tt.lim); errors.As(err, &f) {
			got = f.Kind
		}
		if got != tt.kind {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.kind)
		}
	}
}

func TestVariantsAreRecordedWhereDataIsFree(t *testing.T) {
	tests := []struct {
		name, text string
		want       *jsonrpc.Variants
	}{
		{"none", with(`{"a":1,"b":2}`), nil},
		{"arguments", with(`{"amount":1,"Amount":1000000}`), &jsonrpc.Variants{Pointer: "/params/arguments", First: "amount", Second: "Amount"}},
		{"long s", with(`{"s":1,"ſ":2}`), &jsonrpc.Variants{Pointer: "/params/arguments", First: "s", Second: "ſ"}},
		{"after unescaping", with(`{"\u0041":1,"a":2}`), &jsonrpc.Variants{Pointer: "/params/arguments", First: "A", Second: "a"}},
		{"non-ASCII", with(`{"É":1,"é":2}`), &jsonrpc.Variants{Pointer: "/params/arguments", First: "É", Second: "é"}},
		{"deep", with(`{"x/y":[0,{"~":{"a":1,"A":2}}]}`), &jsonrpc.Variants{Pointer: "/params/arguments/x~1y/1/~0", First: "a", Second: "A"}},
		{"the first of two", with(`{"p":{"a":1,"A":2},"q":{"b":1,"B":2}}`), &jsonrpc.Variants{Pointer: "/params/arguments/p", First: "a", Second: "A"}},
		{"many", with(many(100, `"K7":0`)), &jsonrpc.Variants{Pointer: "/params/arguments", First: "k7", Second: "K7"}},
		{"structured content", `{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"id":1,"ID":2}}}`,
			&jsonrpc.Variants{Pointer: "/result/structuredContent", First: "id", Second: "ID"}},
		{"tools", `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"inputSchema":{"properties":{"id":{},"ID":{}}}}]}}`,
			&jsonrpc.Variants{Pointer: "/result/tools/0/inputSchema/properties", First: "id", Second: "ID"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, decode(t, tt.text).Variants); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFaultSaysWhere(t *testing.T) {
	tests := []struct {
		text, pointer string
		offset        int64
	}{
		{" \n" + `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[0,{"b/c":tru}]}}`, "/params/a/1/b~1c", 63},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"x":1,"x":2}}}`, "/params/a", 58},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1e999}}`, "/params/a", 51},
		{`{"jsonrpc":"2.0","id":null,"method":"m"}`, "/id", 0},
	}
	for _, tt := range tests {
		_, err := jsonrpc.Decode([]byte(tt.text), jsonrpc.Limits{})
		var f *jsonrpc.Fault
		if !errors.As(err, &f) || f.Pointer != tt.pointer || f.Offset != tt.offset {
			t.Errorf("%s: %+v, want %s at %d", tt.text, f, tt.pointer, tt.offset)
		}
	}
}

func TestFaultSaysWhatWasWanted(t *testing.T) {
	const idWanted = "a string or an integer of at most 256 bytes"
	tests := []struct{ text, want, got string }{
		{`{"id":1,"method":"m"}`, `"2.0"`, "nothing"},
		{`{"jsonrpc":2.0,"id":1,"method":"m"}`, `"2.0"`, "a number"},
		{`{"jsonrpc":"1.0","id":1,"method":"m"}`, `"2.0"`, "another string"},
		{`{"jsonrpc":"2.0","id":null,"method":"m"}`, idWanted, "null"},
		{`{"jsonrpc":"2.0","id":null,"result":{}}`, idWanted, "null"},
		{`{"jsonrpc":"2.0","id":1.5,"method":"m"}`, idWanted, "a number that is no integer"},
		{`{"jsonrpc":"2.0","id":true,"method":"m"}`, idWanted, "a boolean"},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 255) + `","method":"m"}`, idWanted, "257 bytes"},
		{`{"jsonrpc":"2.0","id":1,"method":[]}`, "a string", "an array"},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}`, "an object", "a string"},
		{`{"jsonrpc":"2.0","id":1,"error":false}`, "an object", "a boolean"},
		{`{"jsonrpc":"2.0","id":1}`, "a method, a result or an error", "none of them"},
		{`[]`, "one message", "an array"},
		{`7`, "an object", "a number"},
	}
	for _, tt := range tests {
		_, err := jsonrpc.Decode([]byte(tt.text), jsonrpc.Limits{})
		var f *jsonrpc.Fault
		if !errors.As(err, &f) || f.Want != tt.want || f.Got != tt.got {
			t.Errorf("%s: want %q, got %q; expected %q and %q", tt.text, f.Want, f.Got, tt.want, tt.got)
		}
	}
}

// TestDecodeOpen: members that JSON-RPC does not know are passed over, and
// nothing else changes.
func TestDecodeOpen(t *testing.T) {
	open := `{"jsonrpc":"2.0","id":1,"method":"m","extra":{"a":[1]},"params":{}}`
	m, err := jsonrpc.Decode([]byte(open), jsonrpc.Limits{Open: true})
	if err != nil || m.Kind != jsonrpc.Request || string(m.Raw) != open || string(m.Params) != `{}` {
		t.Errorf("%+v, %v", m, err)
	}
	for _, tt := range refusals {
		if tt.name == "unknown member" {
			continue
		}
		var f *jsonrpc.Fault
		if m, err := jsonrpc.Decode([]byte(tt.text), jsonrpc.Limits{Open: true}); m != nil || !errors.As(err, &f) || f.Kind != tt.kind {
			t.Errorf("%s: %v, %v", tt.name, m, err)
		}
	}
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","extra":1,"extra":2}`, `{"jsonrpc":"2.0","id":1,"method":"m","extra":1,"Extra":2}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","Params":{}}`, `{"jsonrpc":"2.0","id":1,"method":"m","extra":{"a":1,"A":2}}`,
	} {
		if m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{Open: true}); m != nil || err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

// A fault has the id of its message wherever the message has exactly one, whatever is
// wrong with the rest.
func TestFaultHasID(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"before the fault", `{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":1,"a":2}}`, "7"},
		{"after the fault", `{"method":"m","params":{"a":1e999},"jsonrpc":"2.0","id":"x"}`, `"x"`},
		{"wrong version", `{"jsonrpc":"1.0","id":7,"method":"m"}`, "7"},
		{"not JSON", `{"jsonrpc":"2.0","id":7,"method":}`, "7"},
		{"not JSON before it", `{"params":{"a":tru,"b":[}},"id":7}`, "7"},
		{"two values", `{"jsonrpc":"2.0","id":7,"method":"m"} {}`, "7"},
		{"too deep", `{"method":"m","params":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `,"id":7}`, "7"},
		{"invalid UTF-8", "{\"method\":\"m\",\"params\":{\"a\":\"\xff\"},\"id\":7}", "7"},
		{"invalid UTF-8 in a text", "{\"method\":\"\xff\",\"id\":7}", "7"},
		{"lone surrogate", `{"method":"m","params":{"a":"\ud800"},"id":7}`, "7"},
		{"raw control character", "{\"method\":\"m\",\"params\":{\"a\":\"\x01\"},\"id\":7}", "7"},
		{"brackets in a text", `{"method":"]}\"{","id":7,"params":{"a":1,"a":2}}`, "7"},
		{"long text before it", `{"method":"` + strings.Repeat(`\"`, 5000) + `","id":7,"params":[]}`, "7"},
		{"escaped name", `{"method":"m","\u0069d":7,"params":[]}`, "7"},
		{"breaks off", `{"jsonrpc":"2.0","id":"x","params":{"a":`, `"x"`},
		{"breaks off in a number", `{"jsonrpc":"2.0","id":12`, ""},
		{"breaks off behind a number", `{"jsonrpc":"2.0","id":12,`, "12"},
		{"breaks off in a text", `{"jsonrpc":"2.0","id":"12`, ""},
		{"an id that is no text", `{"id":"\ud800","params":[]}`, ""},
		{"an id that is no UTF-8", "{\"id\":\"\xff\",\"params\":[]}", ""},
		{"an id with a control character", "{\"id\":\"\x01\",\"params\":[]}", ""},
		{"byte order mark", "\xef\xbb\xbf" + `{"id":7}`, ""},
		{"a log line", `INFO {"id":7}`, ""},
		{"repeated around a fault", `{"id":7,"params":{"a":tru},"id":8}`, ""},
		{"repeated", `{"jsonrpc":"2.0","id":7,"id":7,"method":"m"}`, ""},
		{"misspelled beside", `{"jsonrpc":"2.0","id":7,"Id":8,"method":"m"}`, ""},
		{"invalid", `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, ""},
		{"batch", `[{"jsonrpc":"2.0","id":7,"method":"m"}]`, ""},
		{"inside params", `{"jsonrpc":"2.0","method":1,"params":{"id":7}}`, ""},
	}
	for _, tt := range tests {
		_, err := jsonrpc.Decode([]byte(tt.text), jsonrpc.Limits{})
		var f *jsonrpc.Fault
		if !errors.As(err, &f) || string(f.ID) != tt.want {
			t.Errorf("%s: id %s (%v), want %s", tt.name, f.ID, err, tt.want)
		}
	}
}

// A message that is too large has its id where it can be read, too.
func TestTooLargeHasID(t *testing.T) {
	large := `"` + strings.Repeat("x", 6000) + `"`
	for text, want := range map[string]string{
		`{"id":7,"method":"m","params":{"a":` + large + `}}`: "7", `{"method":"m","params":{"a":` + large + `},"jsonrpc":"2.0","id":7}`: "7",
		`{"error":` + large + `,"id":"x","ok":false}`: `"x"`, `{"params":{"id":1,"a":` + large + `}}`: "", `[{"id":7,"a":` + large + `}]`: "",
		`{"id":7,"a":` + large + `,"id":7}`: "", `{"a":[` + strings.Repeat(large+",", 10) + `0],"id":7}`: "7",
	} {
		_, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{Bytes: 1000})
		if f := jsonrpc.FaultOf(err); f.Kind != jsonrpc.TooLarge || string(f.ID) != want {
			t.Errorf("%.60s: %v with id %s, want %s", text, f, f.ID, want)
		}
	}
}

func TestCheckValue(t *testing.T) {
	raw, v, err := jsonrpc.CheckValue([]byte("\n{\"a\":1,\n\"A\":[1e2]}\n"), jsonrpc.Limits{})
	if err != nil || string(raw) != `{"a":1, "A":[1e2]}` {
		t.Errorf("%s, %v", raw, err)
	}
	if diff := cmp.Diff(&jsonrpc.Variants{First: "a", Second: "A"}, v); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{``, `{} {}`, `{"a":1,"a":2}`, `1e401`, `{"a\u0000":1}`, `"\ud800"`, strings.Repeat("[", 65) + strings.Repeat("]", 65)} {
		raw, v, err := jsonrpc.CheckValue([]byte(text), jsonrpc.Limits{})
		var f *jsonrpc.Fault
		if !errors.As(err, &f) || raw != nil || v != nil {
			t.Errorf("%.40q: %s, %v, %v; want a *Fault alone", text, raw, v, err)
		}
	}
}

// TestNamesAtEveryLength: a character in which two names differ counts at every place, and its
// case at none.
func TestNamesAtEveryLength(t *testing.T) {
	for length := 1; length <= 40; length++ {
		for at := range length {
			name := []rune(strings.Repeat("ab[ksq_x9@z{`", 4))[:length]
			for _, pair := range []struct {
				a, b rune
				same bool
			}{{'k', 'K', true}, {'k', '\u212a', true}, {'S', '\u017f', true}, {'\u00e9', '\u00c9', true}, {'a', 'A', true}, {'z', 'Z', true}, {'@', '`', false}, {'[', '{', false}, {'a', 'b', false}, {'x', 'x', true}} {
				name[at] = pair.a
				one := string(name)
				name[at] = pair.b
				_, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","method":"m","params":{"x":{"`+one+`":1,"`+string(name)+`":2}}}`), jsonrpc.Limits{})
				if (err != nil) != pair.same {
					t.Errorf("%q and %q: %v", one, string(name), err)
				}
			}
		}
	}
}
