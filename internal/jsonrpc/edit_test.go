package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

func TestGet(t *testing.T) {
	tests := []struct {
		obj, key, want string
		ok             bool
	}{
		{`{"a":1,"b":{"a":2}}`, "a", `1`, true},
		{`{"b":{"a":2}}`, "a", ``, false},
		{` { "a" : [ 1 , 2 ] } `, "a", `[ 1 , 2 ]`, true},
		{`{"\u0061":"x\"}"}`, "a", `"x\"}"`, true},
		{`{"A":1}`, "a", ``, false},
		{`{}`, "a", ``, false},
		{`[1]`, "a", ``, false},
		{`"a"`, "a", ``, false},
		{``, "a", ``, false},
		{`{"a":`, "a", ``, false},
		{`{"a":tru}`, "a", ``, false},
		{`{"b":[},"a":1}`, "a", ``, false},
	}
	for _, tt := range tests {
		got, ok := jsonrpc.Get(json.RawMessage(tt.obj), tt.key)
		if string(got) != tt.want || ok != tt.ok {
			t.Errorf("Get(%s, %s) = %s, %v", tt.obj, tt.key, got, ok)
		}
	}
}

func TestSet(t *testing.T) {
	tests := []struct{ obj, key, value, want string }{
		{`{"a":1,"b":2}`, "a", `{"x":1e2}`, `{"a":{"x":1e2},"b":2}`},
		{`{ "a" : 1 , "b":2 }`, "b", `3`, `{ "a" : 1 , "b":3 }`},
		{`{"a":1}`, "b", `2`, `{"a":1,"b":2}`},
		{`{"a":1 }`, "b", `2`, `{"a":1,"b":2 }`},
		{`{}`, "a", `1`, `{"a":1}`},
		{` { } `, "a", `1`, ` {"a":1 } `},
		{`{"\u0061":1}`, "a", `2`, `{"\u0061":2}`},
		{`{}`, "a\"\n<", `1`, `{"a\"\n<":1}`},
	}
	for _, tt := range tests {
		before := strings.Clone(tt.obj)
		got, err := jsonrpc.Set(json.RawMessage(tt.obj), tt.key, json.RawMessage(tt.value))
		if err != nil || string(got) != tt.want || tt.obj != before {
			t.Errorf("Set(%s, %s, %s) = %s, %v; want %s", tt.obj, tt.key, tt.value, got, err, tt.want)
		}
	}
}

func TestDelete(t *testing.T) {
	tests := []struct{ obj, key, want string }{
		{`{"a":1,"b":2,"c":3}`, "a", `{"b":2,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, "b", `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, "c", `{"a":1,"b":2}`},
		{`{ "a" : 1 }`, "a", `{  }`},
		{`{ "a" : 1 , "b" : 2 }`, "a", `{ "b" : 2 }`},
		{`{"a":1}`, "b", `{"a":1}`},
		{`{}`, "b", `{}`},
	}
	for _, tt := range tests {
		got, err := jsonrpc.Delete(json.RawMessage(tt.obj), tt.key)
		if err != nil || string(got) != tt.want {
			t.Errorf("Delete(%s, %s) = %s, %v; want %s", tt.obj, tt.key, got, err, tt.want)
		}
	}
}

func TestEditingRefusesWhatItCannotRead(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 20_000) + `1` + strings.Repeat(`}`, 20_000)
	for _, obj := range []string{
		``, `x`, `[]`, `"a"`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{"a":1}}`, `{"a":1} x`, `{a:1}`, `{"a":[}`,
		`{"a":01}`, `{"a":"` + "\xff" + `"}`, `{"a":"\ud800"}`, `{,}`, deep,
	} {
		if got, err := jsonrpc.Set(json.RawMessage(obj), "z", json.RawMessage(`1`)); !errors.Is(err, jsonrpc.ErrNotObject) || got != nil {
			t.Errorf("Set on %.40q: %.40s, %v", obj, got, err)
		}
		if got, err := jsonrpc.Delete(json.RawMessage(obj), "a"); !errors.Is(err, jsonrpc.ErrNotObject) || got != nil {
			t.Errorf("Delete on %.40q: %.40s, %v", obj, got, err)
		}
		for key := range jsonrpc.Members(json.RawMessage(obj)) {
			t.Errorf("Members of %.40q yields %s", obj, key)
		}
		for item := range jsonrpc.Elements(json.RawMessage("[1," + obj)) {
			t.Errorf("Elements of %.40q yields %s", obj, item)
		}
	}
	for _, value := range []string{``, `x`, `1 2`, `{`, `"`, `1,"b":2`} {
		if got, err := jsonrpc.Set(json.RawMessage(`{}`), "a", json.RawMessage(value)); !errors.Is(err, jsonrpc.ErrNotValue) || got != nil {
			t.Errorf("setting %q: %s, %v", value, got, err)
		}
	}
	if got, err := jsonrpc.Set(json.RawMessage(`{"a":1}`), "a", nil); !errors.Is(err, jsonrpc.ErrNotValue) {
		t.Errorf("setting nothing: %s, %v", got, err)
	}
	if _, err := jsonrpc.Set(json.RawMessage(`{"a":1,"\u0061":2}`), "a", json.RawMessage(`3`)); !errors.Is(err, jsonrpc.ErrRepeated) {
		t.Errorf("repeated member: %v", err)
	}
	if _, err := jsonrpc.Delete(json.RawMessage(`{"a":1,"a":2}`), "a"); !errors.Is(err, jsonrpc.ErrRepeated) {
		t.Errorf("repeated member: %v", err)
	}
}

func TestMembersAndElements(t *testing.T) {
	var got []string
	for key, value := range jsonrpc.Members(json.RawMessage(`{"b" : 1,"\u0061":[{}]}`)) {
		got = append(got, key, string(value))
	}
	if diff := cmp.Diff([]string{"b", "1", "a", "[{}]"}, got); diff != "" {
		t.Error(diff)
	}
	got = nil
	for value := range jsonrpc.Elements(json.RawMessage(`[ 1e2 ,"]", [2]]`)) {
		got = append(got, string(value))
	}
	if diff := cmp.Diff([]string{"1e2", `"]"`, "[2]"}, got); diff != "" {
		t.Error(diff)
	}
	for range jsonrpc.Elements(json.RawMessage(`[1,2]`)) {
		break
	}
	if n := len(slices.Collect(jsonrpc.Elements(json.RawMessage(`[]`)))); n != 0 {
		t.Errorf("%d elements in an empty array", n)
	}
}

func TestTextAndQuote(t *testing.T) {
	for _, s := range []string{"", "plain", "q\"b\\s/", "\x00\x1f\x7f\b\f\n\r\t", "<&>", "\u2028é😀"} {
		raw := jsonrpc.Quote(s)
		if got, ok := jsonrpc.Text(raw); !ok || got != s {
			t.Errorf("%q became %s and then %q", s, raw, got)
		}
		var std string
		if err := json.Unmarshal(raw, &std); err != nil || std != s {
			t.Errorf("encoding/json reads %s as %q (%v)", raw, std, err)
		}
	}
	if got := string(jsonrpc.Quote("<\u2028>")); got != "\"<\u2028>\"" {
		t.Errorf("escaped too much: %s", got)
	}
	if got, ok := jsonrpc.Text(json.RawMessage(`"\ud83d\ude00\/\u00E9"`)); !ok || got != "😀/é" {
		t.Errorf("got %q, %v", got, ok)
	}
	if got := string(jsonrpc.Quote("a\xffb")); got != "\"a\uFFFDb\"" {
		t.Errorf("invalid UTF-8 became %s", got)
	}
	for _, raw := range []string{``, `"`, `a`, `1`, `null`, ` "a"`, `"a" `, `"a"b`, `"\ud800"`, "\"\xff\"", "\"\n\"", `"\q"`, `"\u12"`} {
		if got, ok := jsonrpc.Text(json.RawMessage(raw)); ok || got != "" {
			t.Errorf("Text(%q) = %q, %v", raw, got, ok)
		}
	}
}

func TestBuilders(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	tests := []struct {
		got  []byte
		want string
	}{
		{jsonrpc.NewRequest(raw(`"a\u0062"`), "tools/call", raw(`{"x":1e2}`)), `{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":{"x":1e2}}`},
		{jsonrpc.NewRequest(raw(`1`), "ping", nil), `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
		{jsonrpc.NewNotification("n", raw(`{}`)), `{"jsonrpc":"2.0","method":"n","params":{}}`},
		{jsonrpc.NewNotification("n", nil), `{"jsonrpc":"2.0","method":"n"}`},
		{jsonrpc.NewSuccess(raw(`1`), raw(`{}`)), `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{jsonrpc.NewFailure(raw(`1`), -32600, "a \"b\"", raw(`{"k":1}`)), `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a \"b\"","data":{"k":1}}}`},
		{jsonrpc.NewFailure(raw(`1`), 7, "m", nil), `{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"m"}}`},
		{jsonrpc.NewFailureObject(raw(`1`), raw(`{"code":1}`)), `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`},
	}
	for _, tt := range tests {
		if string(tt.got) != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
		if m := decode(t, tt.want); string(m.Raw) != tt.want {
			t.Errorf("%s was read as %s", tt.want, m.Raw)
		}
	}
	if got := string(jsonrpc.NewFailure(nil, -32700, "m", nil)); got != `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}` {
		t.Errorf("without an id: %s", got)
	}
}

func TestValue(t *testing.T) {
	got, err := jsonrpc.Value([]byte(` {"a" : [1e2, true,false,null, "x\u0041"], "b":{}, "c":[] } `), jsonrpc.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": []any{json.Number("1e2"), true, false, nil, "xA"}, "b": map[string]any{}, "c": []any{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v, err := jsonrpc.Value([]byte(`{"a":1,"a":2}`), jsonrpc.Limits{}); err == nil || v != nil {
		t.Errorf("got %v, %v", v, err)
	}
}

// TestQuoteEveryByte: a text is quoted as jsontext quotes it, whatever stands where in it.
func TestQuoteEveryByte(t *testing.T) {
	for length := range 20 {
		for at := range length {
			for c := range 256 {
				text := []byte(strings.Repeat("a", length))
				text[at] = byte(c)
				want, _ := jsontext.AppendQuote([]byte("x"), string(text))
				if got := jsonrpc.AppendQuoted([]byte("x"), string(text)); string(got) != string(want) {
					t.Fatalf("%q: %s, want %s", text, got, want)
				}
			}
		}
	}
}

// A change of members edits the object that a member holds, and makes one where
// there is none; what is no object is refused.
func TestEditMembers(t *testing.T) {
	inner := []jsonrpc.Change{{Name: "a", Value: json.RawMessage(`1`)}, {Name: "gone"}}
	for _, tt := range []struct{ object, want string }{
		{`{}`, `{"m":{"a":1}}`},
		{`{ "x" : 2 }`, `{ "x" : 2,"m":{"a":1} }`},
		{`{"m": {"b" : 2 }, "x":3}`, `{"m": {"b" : 2,"a":1 }, "x":3}`},
		{`{"m":{"gone":0,"a":9}}`, `{"m":{"a":1}}`},
		{`{"x":2, "m" : null }`, `{"x":2, "m" : {"a":1} }`},
		{`{"m":[]}`, ""}, {`{"m":{},"m":{}}`, ""}, {`{"m":{"a":1,"a":2}}`, ""},
	} {
		got, err := jsonrpc.Edit(json.RawMessage(tt.object), jsonrpc.Change{Name: "m", Members: inner})
		if string(got) != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %s %v, want %s", tt.object, got, err, tt.want)
		}
	}
}

// FuzzUnpack: Unpack gives what Fields and Elements give in several passes.
func FuzzUnpack(f *testing.F) {
	for _, seed := range []string{
		`{"content":[{"type":"text","text":"a"},{"type":"image","data":"AA=="}],"isError":false}`, ` { "content" : [ 1 , {} , [ ] ] , "x":{"content":[]} } `,
		`{"content":{"type":"text"}}`, `{"content":[{"type":"a","type":"b"}]}`, `{"content":[],"content":[]}`, `{"content":[{"t\u0079pe":"a"}]}`,
		`{"content":[{"type":"a"}]} x`, `{"content":[{"type":"a"}`, `{"content":[{"type"}]}`, `{"content":[}`, `{"content":[1,]}`, `[]`, `{}`, ``, `{"isError":null,"content":null}`,
		`{"x":{"a":["}\\\"]",{"b":"{"}],"c":-1.5e3},"content":[{"text":{"q":["]"," \\"]},"type":[[],{}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	inner, names := []string{"type", "text"}, []string{"content", "isError"}
	f.Fuzz(func(t *testing.T, obj []byte) {
		values, elements, ok := jsonrpc.Unpack(obj, false, inner, names...)
		want, sound := jsonrpc.Fields(obj, names...)
		var all []json.RawMessage
		if sound && bytes.HasPrefix(want[0], []byte("[")) {
			for raw := range jsonrpc.Elements(want[0]) {
				members, whole := jsonrpc.Fields(raw, inner...)
				sound = sound && (whole || raw[0] != '{')
				all = append(append(all, raw), members...)
			}
		}
		if ok != sound {
			t.Fatalf("%q: %v, want %v", obj, ok, sound)
		}
		again, more, accepted := jsonrpc.Unpack(obj, true, inner, names...) // whatever it says of other bytes, it does not panic
		if json.Valid(obj) && utf8.Valid(obj) && (accepted != ok || !reflect.DeepEqual(again, values) || !reflect.DeepEqual(more, elements)) {
			t.Errorf("%q: accepted %q %q %v, want %q %q %v", obj, again, more, accepted, values, elements, ok)
		}
		if ok && (!reflect.DeepEqual(values, want) || !reflect.DeepEqual(elements, all)) {
			t.Errorf("%q:\n got %q %q\nwant %q %q", obj, values, elements, want, all)
		}
	})
}

// FuzzExtend: Extend, Splice and Append edit an object that was accepted as Edit does.
func FuzzExtend(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":1 } `, `{"_meta":{"a":1},"b":2}`, `{"\u005fmeta":{"x":[]}}`, `{"a":"_meta"}`, `{"a":"}"}`, `{"_meta":1}`, `{"x":{"_meta":null}}`, `{ "_meta" : { } , "content":[] }`, `{"_meta":{ "x":2 },"b":1}`, `{"_meta":{"y":{}} , "y":{}}`, `[1]`, `{`, ``, `"a}"`, `{"a":1},`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, obj []byte) {
		obj, _, err := jsonrpc.CheckValue(obj, jsonrpc.Limits{})
		if err != nil || obj[0] != '{' {
			t.Skip()
		}
		for _, changes := range [][]jsonrpc.Change{
			{{Name: "_meta", Members: []jsonrpc.Change{{Name: "io.toolgate/result", Value: json.RawMessage(`{"a":"b"}`)}, {Name: "x", Value: json.RawMessage(`1`)}}}},
			{{Name: "content", Value: json.RawMessage(`[]`)}, {Name: "y", Value: json.RawMessage(`{}`)}}, {{Name: "a"}}, {{Name: "b", Value: json.RawMessage(`{`)}}, {},
			{{Name: "y", Value: json.RawMessage(`{}`), Checked: true}, {Name: "_meta", Members: []jsonrpc.Change{{Name: "y", Members: []jsonrpc.Change{{Name: "z", Value: json.RawMessage(`1`)}}}}}},
		} {
			want, wantErr := jsonrpc.Edit(obj, changes...)
			got, err := jsonrpc.Extend(obj, changes...)
			if !bytes.Equal(got, want) || (err == nil) != (wantErr == nil) {
				t.Errorf("%q: %q %v, want %q %v", obj, got, err, want, wantErr)
			}
			parts, err := jsonrpc.Splice(obj, changes...)
			if got := bytes.Join(parts, nil); !bytes.Equal(got, want) || (err == nil) != (wantErr == nil) {
				t.Errorf("%q in parts: %q %v, want %q %v", obj, parts, err, want, wantErr)
			}
			for _, spare := range []int{0, 1, 20, 1000} {
				own := append(make([]byte, 0, len(obj)+spare), obj...)
				got, err := jsonrpc.Append(own, changes...)
				if !bytes.Equal(got, want) || (err == nil) != (wantErr == nil) {
					t.Errorf("%q with room for %d: %q %v, want %q %v", obj, spare, got, err, want, wantErr)
				}
			}
		}
	})
}

// TestOwned: a message may use the bytes that were handed over, and its line ends are
// replaced there; without that, they are copied and stay as they were.
func TestOwned(t *testing.T) {
	for _, owned := range []bool{false, true} {
		data := []byte("{\"jsonrpc\":\"2.0\",\n\"id\":1,\"method\":\"ping\"}")
		m, err := jsonrpc.Decode(data, jsonrpc.Limits{Owned: owned})
		if err != nil || bytes.IndexByte(m.Raw, '\n') >= 0 {
			t.Fatal(m, err)
		}
		if shares := &m.Raw[0] == &data[0]; shares != owned || bytes.IndexByte(data, '\n') >= 0 == owned {
			t.Errorf("owned %v: shares its bytes: %v; data is %q", owned, shares, data)
		}
	}
}

// TestOwnedResult: only the result of an answer that was handed over may grow, over what
// is behind it; no other part of a message can change another one.
func TestOwnedResult(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","result":{"content":[{"a":1}]},"id":"1"}`
	for _, owned := range []bool{false, true} {
		data := append(make([]byte, 0, len(answer)+100), answer...)
		m, err := jsonrpc.Decode(data, jsonrpc.Limits{Owned: owned})
		if err != nil || cap(m.Raw) != len(m.Raw) || cap(m.ID) != len(m.ID) {
			t.Fatal(m, err)
		}
		if grows := cap(m.Result) > len(m.Result); grows != owned {
			t.Errorf("owned %v: the result can grow: %v", owned, grows)
		}
		content, _ := jsonrpc.Get(m.Result, "content")
		if cap(content) != len(content) {
			t.Error("the content can grow")
		}
		grown, err := jsonrpc.Append(m.Result, jsonrpc.Change{Name: "_meta", Value: json.RawMessage(`{"b":2}`)})
		if want := `{"content":[{"a":1}],"_meta":{"b":2}}`; err != nil || string(grown) != want || string(content) != `[{"a":1}]` {
			t.Errorf("owned %v: %s, %s, %v", owned, grown, content, err)
		}
	}
}
