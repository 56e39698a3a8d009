package tickets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/text"
)

const (
	// maxRows is how many values the table shows; the page says how many more
	// there are, and the bytes can be fetched whole.
	maxRows = 500
	// foldRunes is the longest value that is shown at once. Of longer ones both
	// ends are, and the whole when it is opened.
	foldRunes = 240
	headRunes = 80
	tailRunes = 40
)

// leaf is one value of a call's arguments that holds no others, as written.
type leaf struct {
	pointer string // RFC 6901, "" when the arguments are one value
	lexeme  string // exactly the bytes that were judged
}

// leaves splits JSON text into its values, in order. An empty object or array
// is a leaf. Text that is not one JSON value is an error.
func leaves(text []byte) (found []leaf, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for first := true; first || d.StackDepth() > 0; first = false {
		kind := d.PeekKind()
		within, read := d.StackIndex(d.StackDepth())
		if kind == '{' || kind == '[' || kind == '}' || kind == ']' || within == '{' && read%2 == 0 {
			if _, err := d.ReadToken(); err != nil {
				return nil, err
			}
			if end := d.PeekKind(); kind == '{' && end == '}' || kind == '[' && end == ']' {
				found = append(found, leaf{pointer: string(d.StackPointer()), lexeme: kind.String() + end.String()})
			}
			continue
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		found = append(found, leaf{pointer: string(d.StackPointer()), lexeme: string(value)})
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, page.BadRequest("the text has data after its value", "")
	}
	return found, nil
}

// row is one line of the table of arguments, for people.
type row struct {
	Pointer page.Text
	value
	Was    *value // what the earlier call had here, when that was something else
	IsNew  bool   // the earlier call had nothing here
	IsGone bool   // only the earlier call had something here: it is Was
}

// A value is one value as it was written, with remarks for the reader.
type value struct {
	Text page.Text // whole
	// Head and Tail stand for Text until it is opened; empty = it is short.
	Head, Tail page.Text
	Runes      int
	Reads      string   // what a string says, when its escapes hide that; visible, its line breaks are real
	Notes      []string // remarks
}

// valueOf describes one leaf.
func valueOf(lexeme string) value {
	shown := page.Visible(lexeme)
	v := value{Text: page.TextOf(shown), Runes: utf8.RuneCountInString(shown)}
	if v.Runes > foldRunes {
		runes := []rune(shown)
		v.Head, v.Tail = page.TextOf(string(runes[:headRunes])), page.TextOf(string(runes[len(runes)-tailRunes:]))
	}
	said := lexeme
	if strings.HasPrefix(lexeme, `"`) {
		said = unquote(lexeme)
		if lines := page.VisibleLines(said); `"`+lines+`"` != shown {
			v.Reads = lines
		}
		if strings.ContainsFunc(said, func(r rune) bool { return page.Hidden(r) && r != '\n' && r != '\t' }) {
			v.Notes = append(v.Notes, `has characters that a screen would hide or turn around, shown as \u…`)
		}
		if mixed := mixedScripts(said); mixed != "" {
			v.Notes = append(v.Notes, "one word mixes "+mixed+" letters")
		}
	}
	if plain := plainNumber(said); plain != "" {
		v.Notes = append(v.Notes, "= "+plain)
	}
	return v
}

// unquote returns the text that a JSON string stands for.
func unquote(lexeme string) string {
	said, err := jsontext.AppendUnquote(nil, lexeme)
	if err != nil {
		return lexeme // stray bytes: Visible shows them
	}
	return string(said)
}

// confusable are alphabets whose letters pass for one another's.
var confusable = []struct {
	name  string
	table *unicode.RangeTable
}{
	{"Latin", unicode.Latin}, {"Cyrillic", unicode.Cyrillic}, {"Greek", unicode.Greek}, {"Armenian", unicode.Armenian}, {"Cherokee", unicode.Cherokee},
}

// mixedScripts names the alphabets that one word of s mixes, "" when none does.
func mixedScripts(s string) string {
	seen := 0
	for _, r := range s {
		if !unicode.IsLetter(r) {
			seen = 0
			continue
		}
		for i, alphabet := range confusable {
			if unicode.Is(alphabet.table, r) {
				seen |= 1 << i
			}
		}
		if seen&(seen-1) != 0 {
			var names []string
			for i, alphabet := range confusable {
				if seen&(1<<i) != 0 {
					names = append(names, alphabet.name)
				}
			}
			return strings.Join(names, " and ")
		}
	}
	return ""
}

// plainNumber returns a number that is hard to read, with many digits or an
// exponent, in groups of three. It returns "" for other text and for numbers
// that are easy to read.
func plainNumber(s string) string {
	const most = 80 // digits
	mantissa, exponent, scaled := strings.Cut(strings.ToLower(s), "e")
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if len(s) > most || whole == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return ""
	}
	if scaled {
		shift, err := strconv.Atoi(exponent)
		if err != nil || max(shift, -shift) > most {
			return "" // before it is worked out: 1e999999999 would take for ever
		}
		n, ok := new(big.Rat).SetString(mantissa + "e" + exponent)
		if !ok {
			return ""
		}
		whole, fraction, _ = strings.Cut(n.FloatString(max(0, len(fraction)-shift)), ".")
	}
	if !scaled && len(whole) < 5 {
		return ""
	}
	return sign + grouped(whole) + strings.TrimSuffix("."+fraction, ".")
}

// grouped inserts a narrow no-break space before every third digit.
func grouped(digits string) string {
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune('\u202f')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// A table shows arguments value by value and, where an earlier call exists, how
// they differ from its arguments.
type table struct {
	Rows    []row
	Missing int  // values that the table does not show, for their number
	Broken  bool // the bytes are no JSON: there are no rows

	// Only with an earlier call: how many values are otherwise, the same, only in
	// this call and only in the earlier one.
	Compared                    bool
	Changed, Same, Added, Taken int
}

// Differs says how many values differ, "" when none does.
func (t table) Differs() string {
	n := t.Changed + t.Added + t.Taken
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s", n, text.Count(n+t.Same, "value"))
}

// compared returns the table of arguments, compared with those of an earlier
// call unless earlier is nil. Values are equal when they are written alike: 1.0
// differs from 1, as it does for the digest.
func compared(arguments, earlier []byte) (t table) {
	now, err := leaves(arguments)
	if err != nil {
		return table{Broken: true}
	}
	before, err := leaves(earlier)
	t.Compared = earlier != nil && err == nil
	was := make(map[string]string, len(before))
	for _, l := range before {
		was[l.pointer] = l.lexeme
	}
	for _, l := range now {
		old, there := was[l.pointer]
		delete(was, l.pointer)
		r := row{Pointer: page.TextOf(page.Visible(l.pointer)), value: valueOf(l.lexeme), IsNew: t.Compared && !there}
		switch {
		case r.IsNew:
			t.Added++
		case there && old != l.lexeme:
			r.Was = new(valueOf(old))
			t.Changed++
		case there:
			t.Same++
		}
		t.Rows = append(t.Rows, r)
	}
	for _, l := range before {
		if old, left := was[l.pointer]; left {
			t.Rows = append(t.Rows, row{Pointer: page.TextOf(page.Visible(l.pointer)), Was: new(valueOf(old)), IsGone: true})
			t.Taken++
			delete(was, l.pointer)
		}
	}
	if len(t.Rows) > maxRows {
		t.Missing = len(t.Rows) - maxRows
		t.Rows = t.Rows[:maxRows]
	}
	return t
}
