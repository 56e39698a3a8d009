package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// A plainScanner makes the strict pass with a jsontext.Decoder in place of the lexer.
type plainScanner struct {
	scanner
	d *jsontext.Decoder
}

// took notes that the decoder has read one token more.
func (s *plainScanner) took(err error) *Fault {
	s.at = int(s.d.InputOffset())
	if err != nil {
		return s.explain(s.d, err)
	}
	return nil
}

func (s *plainScanner) read(z zone) ([]byte, *Fault) {
	kind := s.d.PeekKind()
	if kind != '{' && kind != '[' {
		raw, err := s.d.ReadValue()
		if f := s.took(err); f != nil {
			return nil, f
		}
		if kind == '0' {
			s.limit(raw)
		}
		return s.data[s.at-len(raw) : s.at], nil
	}
	_, err := s.d.ReadToken()
	if f := s.took(err); f != nil {
		return nil, f
	}
	start, base, inner := s.at-1, len(s.names), max(z, zoneStrict)
	if s.d.StackDepth() > s.lim.Depth {
		return nil, s.hard(Invalid, start, fmt.Sprintf("nested deeper than %d levels", s.lim.Depth))
	}
	for s.d.PeekKind() != kind+2 {
		var key []byte
		if kind == '{' {
			read := s.d.ReadValue
			if s.d.PeekKind() == '[' || s.d.PeekKind() == '{' { // refused where it begins
				read = func() (jsontext.Value, error) { _, err := s.d.ReadToken(); return nil, err }
			}
			raw, err := read()
			if f := s.took(err); f != nil {
				return nil, f
			}
			s.named = s.at - len(raw)
			key, _ = jsontext.AppendUnquote(nil, raw)
			inner = s.name(key, z)
		}
		raw, f := s.read(inner)
		if f != nil {
			return nil, f
		}
		if kind == '{' && z <= zoneMeta {
			s.members = append(s.members, member{z, key, raw})
		}
	}
	_, err = s.d.ReadToken()
	if f := s.took(err); f != nil {
		return nil, f
	}
	if names := s.names[base:]; agree(names) {
		s.judgeNames(z, names)
	}
	s.names = s.names[:base]
	return s.data[start:s.at], nil
}

// plainScan is scan without the lexer.
func plainScan(data []byte, z zone) (findings, *Fault) {
	data = bytes.Clone(data)
	s := plainScanner{d: jsontext.NewDecoder(bytes.NewReader(data), lenient)}
	s.lim = defaults
	s.data, s.raw = data, data
	if _, f := s.read(z); f != nil {
		return findings{}, f
	}
	if rest := bytes.TrimLeft(data[s.at:], blanks); len(rest) > 0 {
		return findings{}, s.hard(Parse, len(data)-len(rest), "more bytes after the message")
	}
	s.raw = OneLine(data)
	return s.findings, nil
}

// agreesWithPlain holds both ways to one outcome, in each zone.
func agreesWithPlain(t *testing.T, data []byte) {
	t.Helper()
	data = bytes.Trim(data, blanks)
	if len(data) == 0 || bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return
	}
	for _, z := range []zone{zoneTop, zoneFree} {
		got, gotFault := scan(data, Limits{}, z)
		want, wantFault := plainScan(data, z)
		if diff := cmp.Diff(wantFault, gotFault); diff != "" {
			t.Fatalf("%q: %s", data, diff)
		}
		for _, pair := range [][2]any{{want.raw, got.raw}, {want.soft, got.soft}, {want.variants, got.variants}, {fmt.Sprintf("%q", want.members), fmt.Sprintf("%q", got.members)}} {
			if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
				t.Fatalf("%q: %s", data, diff)
			}
		}
	}
	for _, obj := range [][]byte{data, append([]byte(`{"a":`), append(bytes.Clone(data), '}')...)} {
		if got, want := whole(obj, 0), jsontext.Value(obj).IsValid(lenient); got != want {
			t.Fatalf("%q: %v, want %v", obj, got, want)
		}
	}
}

// TestScanLongStrings: the lexer stops where it should, wherever that is behind many plain bytes.
func TestScanLongStrings(t *testing.T) {
	for _, part := range []string{`"`, `\n`, `\u0041`, `\ud83d`, `\x`, "é", "\xff", "\x1f", "\x7f", "\n", `\`, ""} {
		for before := 110; before < 210; before++ {
			for _, after := range []int{0, 40, 160} {
				agreesWithPlain(t, []byte(`["`+strings.Repeat("a", before)+part+strings.Repeat("b", after)+`"]`))
			}
		}
	}
}

// scanned are strings at the edges of what the lexer reads in one go.
func scanned() (all []string) {
	parts := []string{
		`"`, `\"`, `\\`, `\/`, `\b\f\n\r\t`, `\u0041`, `\u00e9`, `\uD83D\uDE00`, `\ud83d`, `\ude00`, `\ude00\ud83d`, `\ud83d\u0041`, `\ud83dx`, `\ud83d\`,
		`\u12`, `\u123g`, `\x`, `\`, "é", "日", "😀", "\xc3", "\xed\xa0\x80", "\xff", "\xc0\x80", "\x00", "\x1f", "\n", " ", "!", "#", "]", "\x7f", "\x80", `\u`, `\\u0041`, `\\\`,
	}
	for _, part := range parts {
		for before := range 18 {
			for _, after := range []int{0, 1, 7, 9} {
				all = append(all, `"`+strings.Repeat("a", before)+part+strings.Repeat("b", after)+`"`, `["`+strings.Repeat(`\n`, before)+part+`","c"]`)
			}
		}
	}
	for _, number := range []string{"0", "-0", "-", "01", "1.", ".1", "1e", "1e+", "1E-7", "1.5e3", "+1", "0x1", "1..2", "1e1.5", "--1", "Infinity", "1_0", "12345678901234567890"} {
		all = append(all, number, "["+number+"]", `{"a":`+number+`,"b":0}`)
	}
	return append(all, "tru", "true", "truex", "nulll", "[true false]", "[,1]", "[1,]", "{,}", `{"a":1,}`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{1:2}`, `{"a":1 "b":2}`, "[1}", `{"a":1]`, "[", "{", `{"a`, `{"a":`, "]", "}", ",", ":", "[[]2]",
		"[\n1\r\n,\t2 ]", "{\"a\"\n:\r1}", "[] []", "[]]", "\x00", "[\x00]", "{\"a\"\x00:1}", `{"a":{"A":1,"a":2,"a":3}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`,
		strings.Repeat("[", 64)+strings.Repeat("]", 64), strings.Repeat("[", 65)+strings.Repeat("]", 65), strings.Repeat(`{"a":`, 70)+"0"+strings.Repeat("}", 70))
}

func TestPlainScan(t *testing.T) {
	for _, text := range append(scanned(), strings.Repeat("[", 9_999)+strings.Repeat("]", 9_999), strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000), strings.Repeat("[", 10_001)) {
		agreesWithPlain(t, []byte(text))
	}
	suite := corpus.Open(t, "JSONTestSuite")
	files, err := fs.Glob(suite, "*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		data, err := fs.ReadFile(suite, file)
		if err != nil {
			t.Fatal(err)
		}
		agreesWithPlain(t, data)
	}
}

// FuzzPlainScan: the lexer and jsontext accept the same texts, and faults have the same
// words.
func FuzzPlainScan(f *testing.F) {
	for _, text := range scanned() {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"x","name":"y","_meta":{"a":1e999}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		agreesWithPlain(t, data)
		if quoted, err := json.Marshal(string(data)); err == nil { // long valid strings, which mutations seldom are
			agreesWithPlain(t, quoted)
		}
	})
}
