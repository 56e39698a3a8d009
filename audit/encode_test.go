package audit_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
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

// TestRecordsKeepTheirBytes holds the encoder to the lines that it wrote before: a trail is
// evidence, so that what is recorded never changes its form by the way.
func TestRecordsKeepTheirBytes(t *testing.T) {
	const want = "274accadfda7dee9324e6cc5897a4e495d4d8318ebd48e4dee53401c2f02eb02"
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "Z9 ~!", `"`, `\`, "\n", "\r", "\x00", "\x1f", "\x7f", "é", "🜁", "\u2028", "\u2029", "\ufffd", "\xff", "<&>", "sha256:0f0f0f0f", "{}", "  "}
	text := func() string {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		return b.String()
	}
	value := func() json.RawMessage {
		values := []string{"", `{"a":1}`, `{"a": [1e2, true, null, "é\u00e9"]}`, "{\n}", `{"a":1,"a":2}`, `{`, "{\"a\":\"\xff\"}", `{"a":"\ud800"}`, text()}
		return json.RawMessage(values[random.IntN(len(values))])
	}
	sum, kinds := sha256.New(), []audit.Kind{audit.KindOpen, audit.KindDecision, audit.KindOutcome, audit.KindTicket, audit.KindEvent, audit.KindClose}
	for range 3000 {
		r := sample(text())
		for _, member := range []*string{
			&r.DecisionID, &r.ParentID, &r.Principal.Subject, &r.Principal.Person, &r.Principal.Client, &r.Principal.Roles[0], &r.Session, &r.Method, &r.Tool, &r.Fingerprint,
			&r.ArgumentsSHA256, &r.ArgumentsExcerpt, &r.ArgumentsKept, &r.ArgumentsHMAC, &r.Policy.Effect, &r.Policy.Reason, &r.Policy.Remedy, &r.Policy.Revision, &r.Ticket, &r.Stage, &r.Code, &r.ResultSHA256, &r.Error, &r.Version,
		} {
			*member = text()
		}
		r.Arguments, r.Input, r.Task, r.Policy.Obligations = value(), value(), value(), value()
		r.ArgumentsBytes, r.ResultBytes, r.DurationMS = random.IntN(3), random.IntN(3), random.NormFloat64()*1e3
		if random.IntN(2) == 0 {
			r.Credential, r.Tags, r.Hidden = nil, nil, []string{text()}
		}
		r.Change, r.Event, r.Before = &audit.Change{Reason: text()}, &audit.Event{Name: text(), Added: []string{text()}}, []audit.Earlier{{Instance: text()}}
		now := time.Unix(random.Int64N(4e9), random.Int64N(1e9)/[]int64{1, 1e3, 1e6, 1e9}[random.IntN(4)]).In(time.FixedZone("", 3600))
		kind := kinds[random.IntN(len(kinds))]
		line, _ := audit.AppendRecord(nil, nil, r, kind, now)
		sum.Write(line)
		r.Accepted = true
		for _, v := range []json.RawMessage{r.Arguments, r.Input, r.Task, r.Policy.Obligations} {
			r.Accepted = r.Accepted && (len(v) == 0 || jsontext.Value(v).IsValid(jsontext.AllowDuplicateNames(true)))
		}
		if again, _ := audit.AppendRecord(nil, nil, r, kind, now); !bytes.Equal(again, line) {
			t.Errorf("the values are accepted JSON, and the line is\n%q, want\n%q", again, line)
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		t.Errorf("the lines have the digest %s, want %s", got, want)
	}
}

func FuzzText(f *testing.F) {
	escapes := strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`, "\x7f", `\u007f`, "\ufffd", `\ufffd`)
	for _, text := range []string{"", "plain", "a text of more than eight bytes", `"`, `\`, "\x00\x1f\x20\x7e\x7f\x80\xff", "eight by\xfftes", "\u2028", "<&>"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted, _ := jsontext.AppendQuote(nil, text)
		if got, want := string(audit.AppendText(nil, text)), `["`+"x"+`",`+escapes.Replace(string(quoted)); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	})
}
