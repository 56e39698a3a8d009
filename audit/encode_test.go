package audit_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
)

// chainHash computes the hash of a line the way the package comment says it,
// with none of the package's code.
func chainHash(line []byte) string {
	cut := bytes.LastIndex(line, []byte(`,"hash":"`))
	sum := sha256.Sum256([]byte(string(line[:cut]) + "}"))
	return hex.EncodeToString(sum[:])
}

// record writes one outcome and gives its line.
func record(t testing.TB, l *audit.Log, root string, r *audit.Record) []byte {
	t.Helper()
	if err := l.Write(audit.KindOutcome, r); err != nil {
		t.Fatal(err)
	}
	for line, err := range audit.Tail(t.Context(), root, audit.TailOptions{Records: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	t.Fatal("no line")
	return nil
}

func TestOneRecordIsOneLine(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS})
	for _, text := range []string{
		"a\nb", "a\r\nb", `","decision":"allow`, "\u2028\u2029", "\x00\x1f\x7f", "\xff\xfe", `\`, `"`, "<&>", "🜁",
	} {
		r := sample(text)
		r.Tool, r.Error, r.Principal.Client, r.Principal.Roles = text, text, text, []string{text}
		line := record(t, l, root, r)
		if bytes.ContainsAny(line, "\n\r\u2028\u2029") || !utf8.Valid(line) {
			t.Errorf("%q: line has breaks or is no UTF-8: %q", text, line)
		}
		got := parse(t, line)
		if want := strings.ToValidUTF8(text, "\ufffd"); text != "\xff\xfe" && (got.Tool != want || got.Error != want || got.CallID != want || got.Principal.Roles[0] != want) {
			t.Errorf("%q came back as %q", text, got.Tool)
		}
		if got.Hash != chainHash(line) {
			t.Errorf("%q: hash %s, want %s", text, got.Hash, chainHash(line))
		}
	}
}

// The task that a call wants is kept as its arguments are.
func TestTaskIsKeptAsItCame(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS})
	for in, want := range map[string]string{`{"ttl": 6e4}`: `{"ttl": 6e4}`, "{\n}": `"{\n}"`, "": ""} {
		r := sample("x")
		r.Task = json.RawMessage(in)
		line := record(t, l, root, r)
		if got := parse(t, line); string(got.Task) != want || got.Hash != chainHash(line) {
			t.Errorf("task %q is recorded as %s, want %s", in, got.Task, want)
		}
	}
}

func TestArgumentsAreKeptAsTheyCame(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS})
	for _, c := range []struct{ in, want string }{
		{`{"b":1e2,"a":12345678901234567890, "u":"\u00e9é"}`, `{"b":1e2,"a":12345678901234567890, "u":"\u00e9é"}`},
		{"{\"a\":\n1}", `"{\"a\":\n1}"`},
		{`{"a":`, `"{\"a\":"`},
		{`{} {}`, `"{} {}"`},
		{"{\"a\":\"\xff\"}", `"{\"a\":\"\ufffd\"}"`},
	} {
		r := sample("x")
		r.Arguments = json.RawMessage(c.in)
		got := parse(t, record(t, l, root, r))
		if string(got.Arguments) != c.want {
			t.Errorf("arguments %q are recorded as %s, want %s", c.in, got.Arguments, c.want)
		}
		if sum := sha256.Sum256([]byte(c.in)); got.ArgumentsSHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("arguments %q: wrong digest", c.in)
		}
	}
}

// TestEncodersAgree holds the hand-written encoder to the struct's tags: a
// member that one of them lacks shows up here.
func TestEncodersAgree(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS})
	agree(t, record(t, l, root, sample("x")))
	if err := l.Write(audit.KindTicket, voted("x")); err != nil {
		t.Fatal(err)
	}
	all := lines(t, root)
	agree(t, all[len(all)-1])
}

func agree(t *testing.T, line []byte) {
	t.Helper()
	data, err := json.Marshal(parse(t, line))
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tags (-) against encoder (+):\n%s", diff)
	}
}

// What people write as a reason is text, whatever it holds.
func TestReasonsOfAnyForm(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{Durability: audit.OS})
	for _, text := range []string{"a\nb", `","to":"approved`, "\u2028", "\x00", `\`, "🜁"} {
		r := voted("x")
		r.Change.Reason, r.Change.Who = text, text
		if err := l.Write(audit.KindTicket, r); err != nil {
			t.Fatal(err)
		}
		all := lines(t, root)
		line := all[len(all)-1]
		got := parse(t, line)
		if got.Change.Reason != text || got.Change.Who != text || got.Change.To != "denied" || got.Hash != chainHash(line) {
			t.Errorf("%q came back as %+v", text, got.Change)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("call", "tool\n", `{"a":1}`, 1.5)
	f.Add("\u2028", "\xff", "{", -1e300)
	root := f.TempDir()
	l, err := audit.Open(root, audit.Options{Durability: audit.OS})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	f.Fuzz(func(t *testing.T, id, text, args string, ms float64) {
		r := sample(id)
		r.Tool, r.Error, r.Arguments, r.DurationMS = text, text, json.RawMessage(args), ms
		line := record(t, l, root, r)
		got := parse(t, line)
		if got.Hash != chainHash(line) || !json.Valid(line) || !utf8.Valid(line) {
			t.Fatalf("bad line %q", line)
		}
		if utf8.ValidString(id) && utf8.ValidString(text) && (got.CallID != id || got.Tool != text || got.Error != text) {
			t.Fatalf("%q, %q came back as %q, %q, %q", id, text, got.CallID, got.Tool, got.Error)
		}
	})
}
