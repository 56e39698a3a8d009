package config

import (
	"errors"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
func (l *loader) decode(n *node, to any) {
	for n != nil && !n.faulty {
		err := json.Unmarshal(n.json(false), to, decoding)
		if err == nil {
			return
		}
		at, where := n, (*json.SemanticError)(nil)
		if errors.As(err, &where) {
			at = n.at(tokens(where.JSONPointer)...)
		}
		if at == nil || at.faulty {
			at = n
		}
		at.faulty = true
		if at.kind == kindNumber {
			l.fault(at, "want a whole number, got "+clip(at.text), "")
		} else {
			l.fault(at, "cannot be read", "")
		}
	}
}

func tokens(p jsontext.Pointer) (list []string) {
	for token := range p.Tokens() {
		list = append(list, token)
	}
	return list
}

// UnmarshalJSON reads "COUNT/DURATION", or an object with rate and burst. It
// gives the zero Rate for "off".
func (r *Rate) UnmarshalJSON(text []byte) error {
	if text[0] == '{' {
		var o struct {
			Rate  Rate `json:"rate"`
			Burst int  `json:"burst"`
		}
		err := json.Unmarshal(text, &o)
		*r = o.Rate.withBurst(o.Burst)
		return err
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil || s == "off" {
		*r = Rate{}
		return err
	}
	var err error
	*r, err = ParseRate(s)
	return err
}

// UnmarshalJSON reads a rule whose burst stands next to its rate.
func (r *LimitRule) UnmarshalJSON(text []byte) error {
	type plain LimitRule
	o := struct {
		plain
		Burst int `json:"burst"`
	}{}
	err := json.Unmarshal(text, &o)
	*r = LimitRule(o.plain)
	r.Rate = r.Rate.withBurst(o.Burst)
	return err
}

// withBurst sets a configured burst; 0 is none.
func (r Rate) withBurst(burst int) Rate {
	if burst > 0 {
		r.Burst = burst
	}
	return r
}
