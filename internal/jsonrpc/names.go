package jsonrpc

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A name is the name of a member.
type name struct {
	at        int    // offset of the opening quote
	from, end int    // of the text in scanner.data; a name with escapes is in scanner.decoded at ^from
	hash      uint64 // of the folded text: equal for names that differ only by case
}

// folds is the folded form of the bytes that stand for themselves in a name, 0
// for any other.
var folds = func() (t [256]byte) {
	for c := byte(' '); c < 0x7f; c++ {
		if c != '"' && c != '\\' {
			t[c] = byte(folded(rune(c)))
		}
	}
	return t
}()

// The parameters of FNV-1a, 64 bit.
const (
	hashBasis = 14695981039346656037
	hashPrime = 1099511628211
)

// newName reads the name whose string is data[start:end], and reports control
// characters, which some decoders drop or stop at.
func (s *scanner) newName(start, end int) (n name, control bool) {
	n = name{start, start + 1, end - 1, hashBasis}
	for _, c := range s.data[n.from:n.end] {
		fold := folds[c]
		if fold == 0 {
			return s.newRareName(start, end)
		}
		n.hash = (n.hash ^ uint64(fold)) * hashPrime
	}
	return n, false
}

// newRareName is newName for any name.
func (s *scanner) newRareName(start, end int) (n name, control bool) {
	from := len(s.decoded)
	s.decoded, _ = jsontext.AppendUnquote(s.decoded, s.data[start:end]) // the decoder has accepted it
	n = name{start, ^from, len(s.decoded), hashBasis}
	for _, r := range string(s.decoded[from:]) {
		control = control || unicode.IsControl(r)
		n.hash = (n.hash ^ uint64(folded(r))) * hashPrime
	}
	return n, control
}

// text returns the decoded name.
func (s *scanner) text(n name) []byte {
	if n.from < 0 {
		return s.decoded[^n.from:n.end]
	}
	return s.data[n.from:n.end]
}

// folded returns the smallest rune of r's simple case folding orbit, so that
// "s", "S" and U+017F agree, as do "k", "K" and the Kelvin sign.
func folded(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r - ('a' - 'A')
	}
	if r < utf8.RuneSelf {
		return r
	}
	least := r
	for n := unicode.SimpleFold(r); n != r; n = unicode.SimpleFold(n) {
		least = min(least, n)
	}
	return least
}

// few is how many hashes are compared each with each; more are sorted.
const few = 24

// agree reports whether two of names have one hash.
func (s *scanner) agree(names []name) bool {
	if len(names) > few {
		s.hashes = s.hashes[:0]
		for _, n := range names {
			s.hashes = append(s.hashes, n.hash)
		}
		slices.Sort(s.hashes)
		return len(slices.Compact(s.hashes)) < len(names)
	}
	for j := 1; j < len(names); j++ {
		for i := range j {
			if names[i].hash == names[j].hash {
				return true
			}
		}
	}
	return false
}

// A clash is two members of one object with one name, or with names that differ
// only by case.
type clash struct{ first, second name }

// clashes finds the first repeated name and the first pair of names that differ
// only by case, nil for none. It takes linear time.
func (s *scanner) clashes(names []name) (same, variant *clash) {
	exact, alike := make(map[string]name, len(names)), make(map[string]name, len(names))
	for _, n := range names {
		text := string(s.text(n))
		if first, ok := exact[text]; ok {
			if same == nil {
				same = &clash{first, n}
			}
			continue
		}
		exact[text] = n
		key := foldedText(text)
		if first, ok := alike[key]; !ok {
			alike[key] = n
		} else if variant == nil {
			variant = &clash{first, n}
		}
	}
	return same, variant
}

// foldedText is equal for texts that differ only by case.
func foldedText(text string) string {
	key := make([]rune, 0, len(text))
	for _, r := range text {
		key = append(key, folded(r))
	}
	return string(key)
}
