package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// FuzzDecode: nothing comes with a fault; what is accepted is one line, is
// read again as the same, and encoding/json agrees on every member.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		call, with(`{"a":1,"A":2}`), with("{\n\t\"s\": \"\\ud83d\\ude00\\u0000<\u2028\"}"), `{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"\u005fmeta":{"a":1,"\u0062":2},"c":[{"d":3}]}}`,
		`{"jsonrpc":"2.0","id":"x","error":{"code":-32600,"message":"m"}}`, `{"jsonrpc":"2.0","method":"n"}`, `{"jsonrpc":"2.0","id":null,"error":{}}`, `[]`, "\xef\xbb\xbf{}",
		with(`{"n":1e400,"m":-0.0e-1}`), with(`{"\u0061":[[],{},"",null]}`), `{"jsonrpc":"2.0","id":1,"Method":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		m, err := jsonrpc.Decode(data, jsonrpc.Limits{})
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			var fault *jsonrpc.Fault
			if m != nil || !errors.As(err, &fault) || fault.Kind == 0 || fault.Reason == "" || fault.Offset > int64(len(data)) {
				t.Fatalf("message %v with %#v", m, err)
			}
			return
		}
		if bytes.ContainsAny(m.Raw, "\r\n") {
			t.Fatalf("more than one line: %q", m.Raw)
		}
		again, err := jsonrpc.Decode(m.Raw, jsonrpc.Limits{})
		if err != nil {
			t.Fatalf("second reading: %v", err)
		}
		if diff := cmp.Diff(m, again, cmpopts.IgnoreUnexported(jsonrpc.Message{})); diff != "" {
			t.Fatal(diff)
		}
		agrees(t, m)
		indexed(t, m.Params, func(name string) (json.RawMessage, bool) { return m.Param(name) })
		meta, _ := jsonrpc.Get(m.Params, "_meta")
		indexed(t, meta, func(name string) (json.RawMessage, bool) { return m.Param("_meta", name) })
	})
}

// indexed compares the members that the pass has kept with those of object.
func indexed(t *testing.T, object json.RawMessage, get func(string) (json.RawMessage, bool)) {
	t.Helper()
	if value, found := get("no member\x00"); found {
		t.Fatalf("found %s in %s", value, object)
	}
	for key, want := range jsonrpc.Members(object) {
		if got, found := get(key); found == (string(want) == "null") || !bytes.Equal(got, want) {
			t.Fatalf("%q of %s is %s, want %s", key, object, got, want)
		}
	}
}

// agrees compares with what a lenient, case-folding decoder reads.
func agrees(t *testing.T, m *jsonrpc.Message) {
	t.Helper()
	var std struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params"`
		Result  json.RawMessage `json:"result"`
		Error   json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(m.Raw, &std); err != nil {
		t.Fatalf("encoding/json: %v", err)
	}
	if m.Kind == jsonrpc.Failure && string(std.ID) == "null" {
		std.ID = nil
	}
	if string(std.Params) == "null" {
		std.Params = nil
	}
	got := []string{"2.0", string(m.ID), m.Method, string(m.Params), string(m.Result), string(m.Error)}
	want := []string{std.JSONRPC, string(std.ID), std.Method, string(std.Params), string(std.Result), string(std.Error)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// FuzzOutline: an outline has the id that the whole message has where that is JSON, is
// the same in whatever pieces the message comes, and is small.
func FuzzOutline(f *testing.F) {
	for _, seed := range []string{`{"id":1,"method":"m"}`, `{"params":{"id":2,"a":["}"]},"id":"\u0061"}`, `{"a":"\\","id":1}`, `{"id":1,"ID":2}`, `{"id":1`, `{"a":"` + strings.Repeat(`\\`, 200) + `","id":3}`, `[]`, ``, `}{"id":1}`} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		whole, pieces := jsonrpc.OutlineOf(data), new(jsonrpc.Outline)
		cut = max(0, min(cut, len(data)))
		_, _ = pieces.Write(data[:cut])
		_, _ = pieces.Write(data[cut:])
		id := whole.ID()
		if string(id) != string(pieces.ID()) || whole.Asks() != pieces.Asks() {
			t.Fatalf("%q: id %s in one piece, %s in two", data, id, pieces.ID())
		}
		if id != nil && jsonrpc.Key(id) == "" {
			t.Fatalf("%q: %s is no id", data, id)
		}
		m, err := jsonrpc.Decode(data, jsonrpc.Limits{})
		if err != nil || len(data) > 1000 {
			return
		}
		if asks := m.Kind == jsonrpc.Request || m.Kind == jsonrpc.Notification; string(m.ID) != string(id) || asks != whole.Asks() {
			t.Fatalf("%q: id %s of a message that asks: %t", data, id, whole.Asks())
		}
	})
}

// FuzzMend: mending accepts what strict decoding accepts, unchanged; whatever else it
// accepts is strict, as long as before where data is UTF-8, and means what encoding/json
// reads, which puts one U+FFFD for each byte that is not UTF-8. What is not UTF-8 is
// accepted as it is with U+FFFD in its place.
func FuzzMend(f *testing.F) {
	for _, seed := range []string{
		`{"a":"\ud800"}`, `["\udc00\ud800","\ud800\udc00\uD800"]`, `{"\ud800":1,"\ud801":2}`, `"\ud800\u0041"`, `"\ud80"`, `"\\ud800"`, `"\ud800\ud800\udc00"`, `"\"\uDFFF\""`,
		"{\"a\":\"caf\xe9\"}", "[\"\xed\xa0\xbd\\ud83d\"]", "\"\xc0\xaf\"", "\"\xe2\x82\"", "\"\xff\xfe\",", "{\"\xff\":1,\"\xfe\":2}", "\"\\\xff\"", "\"\\\"\xff\"", "\xff", "[\"\xff\",\xff]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		strict, _, err := jsonrpc.CheckValue(data, jsonrpc.Limits{})
		got, _, errMend := jsonrpc.CheckValue(data, jsonrpc.Limits{Mend: true})
		valid, _, errValid := jsonrpc.CheckValue(bytes.ToValidUTF8(data, []byte("\ufffd")), jsonrpc.Limits{Mend: true})
		switch {
		case (errMend == nil) != (errValid == nil) || string(got) != string(valid):
			t.Fatalf("%q: mended to %q, %v; in UTF-8 to %q, %v", data, got, errMend, valid, errValid)
		case err == nil && string(got) != string(strict):
			t.Fatalf("%q: mended to %q, %v", data, got, errMend)
		case errMend != nil:
			return
		}
		if again, _, err := jsonrpc.CheckValue(got, jsonrpc.Limits{}); err != nil || string(again) != string(got) || utf8.Valid(data) && len(got) != len(bytes.Trim(data, " \t\r\n")) {
			t.Fatalf("%q: mended to %q: %v", data, got, err)
		}
		var before, after any
		if err := errors.Join(json.Unmarshal(oneMark(data), &before), json.Unmarshal(oneMark(got), &after)); err == nil && !cmp.Equal(before, after) {
			t.Fatalf("%q: mended to %q", data, got)
		}
	})
}

// marks are runs of U+FFFD as encoding/json writes them.
var marks = regexp.MustCompile(`(\x{fffd}|\\ufffd)+`)

// oneMark returns data, as encoding/json reads it, with one U+FFFD for each run of them.
func oneMark(data []byte) []byte {
	var tree any
	if json.Unmarshal(data, &tree) != nil {
		return nil
	}
	out, _ := json.Marshal(tree)
	return marks.ReplaceAll(out, []byte("\ufffd"))
}

// FuzzValue: the tree is the one that encoding/json builds.
func FuzzValue(f *testing.F) {
	for _, seed := range []string{`{"a":[1e2,true,null,"\ud83d\ude00"]}`, ` [ ] `, `"x"`, `-0`, `{"":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := jsonrpc.Value(data, jsonrpc.Limits{})
		if err != nil {
			if got != nil {
				t.Fatalf("%v with %v", got, err)
			}
			return
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		var want any
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzSet: what was set is found again, no other member changes, and deleting
// it gives back the object as it was, or refuses.
func FuzzSet(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[2]}}`), "c", []byte(`{"x":1e2}`))
	f.Add([]byte(` { "a" : 1 } `), "a", []byte(`null`))
	f.Add([]byte(`{}`), "\u2028\"", []byte(`"s"`))
	f.Add([]byte(`{"a":[}`), "a", []byte(`1`))
	f.Fuzz(func(t *testing.T, obj []byte, key string, value []byte) {
		if raw, ok := jsonrpc.Text(jsonrpc.Quote(key)); !ok || raw != key {
			return // not UTF-8, so not a name
		}
		value = bytes.Trim(value, " \t\r\n") // what is around it stays when the member goes
		before, had := jsonrpc.Get(obj, key)
		out, err := jsonrpc.Set(obj, key, value)
		if err != nil {
			if out != nil {
				t.Fatalf("%s with %v", out, err)
			}
			return
		}
		if !json.Valid(out) {
			t.Fatalf("no JSON: %q", out)
		}
		got, ok := jsonrpc.Get(out, key)
		if !ok || !bytes.Equal(got, value) {
			t.Fatalf("set %q, found %q", value, got)
		}
		undo(t, obj, out, key, before, had)
	})
}

// undo takes the edit back.
func undo(t *testing.T, obj, out []byte, key string, before json.RawMessage, had bool) {
	t.Helper()
	if had {
		back, err := jsonrpc.Set(out, key, before)
		if err != nil || len(members(back)) != len(members(obj)) {
			t.Fatalf("setting back: %q, %v", back, err)
		}
		if diff := cmp.Diff(members(obj), members(back)); diff != "" {
			t.Fatal(diff)
		}
		return
	}
	back, err := jsonrpc.Delete(out, key)
	if err != nil || !bytes.Equal(back, obj) {
		t.Fatalf("%q became %q and then %q (%v)", obj, out, back, err)
	}
}

func members(obj json.RawMessage) (list []string) {
	for key, value := range jsonrpc.Members(obj) {
		list = append(list, key, string(value))
	}
	return list
}

// FuzzEdit: several changes at once leave the members that the same changes
// leave one after the other, and nothing is refused by one way alone.
func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[2]},"d":3}`), "a", "d", "e")
	f.Add([]byte(` { "a" : 1 , "\u0062":2 } `), "b", "a", "")
	f.Add([]byte(`{}`), "a", "b", "c")
	f.Add([]byte(`{"a":1,"a":2}`), "b", "a", "c")
	f.Fuzz(func(t *testing.T, obj []byte, set, remove, add string) {
		if set == remove || set == add || remove == add || !utf8.ValidString(set+remove+add) {
			return
		}
		value := json.RawMessage(`[null]`)
		got, err := jsonrpc.Edit(obj, jsonrpc.Change{Name: set, Value: value}, jsonrpc.Change{Name: remove}, jsonrpc.Change{Name: add, Value: value})
		want, failed := jsonrpc.Set(obj, set, value)
		if failed == nil {
			want, failed = jsonrpc.Delete(want, remove)
		}
		if failed == nil {
			want, failed = jsonrpc.Set(want, add, value)
		}
		if !errors.Is(err, failed) {
			t.Fatalf("%q: %v at once, %v one after the other", obj, err, failed)
		}
		if err == nil && !json.Valid(got) {
			t.Fatalf("no JSON: %q", got)
		}
		if diff := cmp.Diff(members(want), members(got)); diff != "" {
			t.Fatal(diff)
		}
	})
}
