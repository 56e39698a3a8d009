package config

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/internal/tree"
)

// decoding reads durations as they are written: a string with a unit, or the
// milliseconds of other clients.
var decoding = json.WithUnmarshalers(json.UnmarshalFunc(func(text []byte, d *time.Duration) error {
	if text[0] != '"' {
		ms, err := strconv.ParseInt(string(text), 10, 32)
		*d = time.Duration(ms) * time.Millisecond
		return err
	}
	var s string
	err := json.Unmarshal(text, &s)
	if err == nil {
		*d, err = time.ParseDuration(s)
	}
	return err
}))

// decode reads n into a struct, without the values at which a fault is reported.
// The schema has checked everything else, but for whole numbers that are written
// with a fraction or an exponent: those are reported here.
func (l *loader) decode(n *tree.Node, to any) {
	for n != nil && !n.Faulty {
		err := json.Unmarshal(n.JSON(false), to, decoding)
		if err == nil {
			return
		}
		at := n
		if where, ok := errors.AsType[*json.SemanticError](err); ok {
			at = cmp.Or(n.At(slices.Collect(where.JSONPointer.Tokens())...), n)
		}
		if at.Faulty {
			at = n
		}
		message := "cannot be read"
		if at.Kind == tree.Number {
			message = "want a whole number, got " + tree.Clip(at.Text)
		}
		at.Faulty = true
		l.Fault(at, message, "")
	}
}

// UnmarshalJSON reads a number, a string of a number and a binary unit, or "off".
func (a *Amount) UnmarshalJSON(text []byte) error {
	if text[0] != '"' {
		return json.Unmarshal(text, (*uint64)(a))
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil || s == "off" {
		*a = 0
		return err
	}
	digits := strings.TrimRight(s, "KMGTiB")
	n, err := strconv.ParseUint(digits, 10, 32)
	*a = Amount(n << (10 * (1 + strings.Index("KMGT", s[len(digits):len(digits)+1]))))
	return err
}

// UnmarshalJSON reads true as first and false as off.
func (p *Pin) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "true":
		*p = PinFirst
	case "false":
		*p = PinOff
	default:
		return json.Unmarshal(text, (*string)(p))
	}
	return nil
}

// UnmarshalJSON reads "COUNT/DURATION", or an object with rate and burst. It
// gives the zero Rate for "off".
func (r *Rate) UnmarshalJSON(text []byte) (err error) {
	var o struct {
		Rate  string `json:"rate"`
		Burst int    `json:"burst"`
	}
	if text[0] == '{' {
		err = json.Unmarshal(text, &o)
	} else {
		err = json.Unmarshal(text, &o.Rate)
	}
	if *r = (Rate{}); err == nil && o.Rate != "" && o.Rate != "off" {
		*r, err = ParseRate(o.Rate)
	}
	r.Burst = cmp.Or(o.Burst, r.Burst)
	return err
}

// UnmarshalJSON reads the URL alone, or an object with it.
func (s *Shared) UnmarshalJSON(text []byte) error {
	type plain Shared
	*s = Shared{WhenDown: "closed"}
	if text[0] == '{' {
		return json.Unmarshal(text, (*plain)(s))
	}
	return json.Unmarshal(text, &s.URL)
}

// UnmarshalJSON reads a rule, which is also an object with rate and burst.
func (r *LimitRule) UnmarshalJSON(text []byte) error {
	type plain LimitRule
	if err := json.Unmarshal(text, (*plain)(r)); err != nil {
		return err
	}
	return json.Unmarshal(text, &r.Rate)
}
