package jsonrpc

import (
	"bytes"
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// few is how many names are compared each with each; above it, sorting is
// cheaper and bounds what a hostile object costs.
const few = 24

// name is a decoded member name.
type name struct {
	text []byte
	hash uint64 // of the folded text: equal for names that differ only by case
	at   int    // offset of the opening quote
}

// clash is two members of one object with one name, or with names that differ
// only by case.
type clash struct {
	first, second name
	same          bool
}

// newName folds and hashes text (FNV-1a, 64 bit). control reports a control
// character, which some decoders drop or stop at.
func newName(text []byte, at int) (n name, control bool) {
	h := uint64(14695981039346656037)
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r < utf8.RuneSelf {
			control = control || r < 0x20 || r == 0x7f
		} else {
			r, size = utf8.DecodeRune(text[i:])
			control = control || unicode.IsControl(r)
		}
		h = (h ^ uint64(folded(r))) * 1099511628211
		i += size
	}
	return name{text, h, at}, control
}

// folded is the smallest rune of r's simple case folding orbit, so that "s",
// "S" and U+017F agree, as do "k", "K" and the Kelvin sign.
func folded(r rune) rune {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' {
			r -= 'a' - 'A'
		}
		return r
	}
	least := r
	for n := unicode.SimpleFold(r); n != r; n = unicode.SimpleFold(n) {
		least = min(least, n)
	}
	return least
}

// clashes finds the first repeated name and the first pair that differs only
// by case. It reorders names when there are many.
func clashes(names []name) (same, variant *clash) {
	if len(names) > few {
		return clashesSorted(names)
	}
	for j := 1; j < len(names); j++ {
		for i := range j {
			if names[i].hash == names[j].hash {
				same, variant = earlier(names[i], names[j], same, variant)
			}
		}
	}
	return same, variant
}

// clashesSorted is clashes in O(n log n): names that agree when folded come to
// lie side by side, the same names among them too.
func clashesSorted(names []name) (same, variant *clash) {
	slices.SortFunc(names, func(a, b name) int {
		if c := cmp.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		if c := compareFolded(a.text, b.text); c != 0 {
			return c
		}
		if c := bytes.Compare(a.text, b.text); c != 0 {
			return c
		}
		return cmp.Compare(a.at, b.at)
	})
	for i := 1; i < len(names); i++ {
		if names[i-1].hash == names[i].hash {
			same, variant = earlier(names[i-1], names[i], same, variant)
		}
	}
	return same, variant
}

// earlier keeps the clash of a and b, if they do, unless one before it in the
// text is known.
func earlier(a, b name, same, variant *clash) (*clash, *clash) {
	if !bytes.EqualFold(a.text, b.text) {
		return same, variant
	}
	if a.at > b.at {
		a, b = b, a
	}
	if bytes.Equal(a.text, b.text) {
		if same == nil || b.at < same.second.at {
			same = &clash{a, b, true}
		}
	} else if variant == nil || b.at < variant.second.at {
		variant = &clash{a, b, false}
	}
	return same, variant
}

// compareFolded orders by the folded runes.
func compareFolded(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		ra, na := utf8.DecodeRune(a)
		rb, nb := utf8.DecodeRune(b)
		if c := cmp.Compare(folded(ra), folded(rb)); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}
