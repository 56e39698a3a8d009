package limit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
)

// The bounds of a number that is added up, and of the values that are counted
// apart as they stand; longer ones are known by their digest.
const (
	maxWhole    = 64 // digits before the point
	maxDecimals = 32 // digits after it
	maxApart    = 512
)

// exact computes without rounding: what does not fit is an error. As many calls as
// there can be, of the largest amount, fit.
var exact = func() *apd.Context {
	c := apd.BaseContext.WithPrecision(maxWhole + maxDecimals + 20)
	c.Traps = apd.DefaultTraps | apd.Inexact | apd.Rounded
	return c
}()

// Use is one call as the meters of its tool see it. It is made by Measure and
// belongs to one call.
type Use struct {
	subject, tenant, tool, digest string
	ticket                        string
	answers                       time.Time
	meters                        []policy.Meter // of the tool
	shares                        []share        // of the meters that count the call
	fault                         *Uncountable
}

// share is the part of a call in one meter.
type share struct {
	meter  policy.Meter
	per    string // a JSON array of the values that are counted apart
	amount *apd.Decimal
}

// Uncountable says why a call cannot be counted: what a meter adds up is no number
// in it, or none that could be added up. Such a call must not be made.
type Uncountable struct {
	Meter, Pointer string
	Got            string // what stands there, "" for nothing
}

// Error says so in one line, for the agent.
func (u *Uncountable) Error() string {
	got := "nothing is there"
	if u.Got != "" {
		got = u.Got + " is there"
	}
	return fmt.Sprintf("%s must be a number from 0, with at most %d digits before the point and %d behind it, to be counted (meter %s): %s",
		u.Pointer, maxWhole, maxDecimals, u.Meter, got)
}

// Measure finds what a call of tool, as exposed, by p is to meters. digest names
// the arguments, which are a JSON object that was read strictly; an error means
// that they are not.
func Measure(p policy.Principal, tool, digest string, arguments json.RawMessage, meters []policy.Meter) (*Use, error) {
	use := &Use{subject: p.Subject, tenant: p.Tenant, tool: tool, digest: digest, meters: meters}
	for _, m := range meters {
		counts, err := matches(m.Where, arguments)
		s := share{meter: m, amount: new(apd.Decimal)}
		if counts {
			s.per, err = apart(m.Per, arguments)
		}
		if err != nil {
			return nil, fmt.Errorf("measuring a call for meter %s: %w", m.Name, err)
		}
		if !counts {
			continue
		}
		var fault *Uncountable
		if m.Sum != "" {
			s.amount, fault = amountAt(m, arguments)
		}
		use.fault = cmp.Or(use.fault, fault)
		use.shares = append(use.shares, s)
	}
	return use, nil
}

// For says that the call is the one run of a ticket, which answers the identical
// call until the time given.
func (u *Use) For(ticket string, answers time.Time) { u.ticket, u.answers = ticket, answers }

// Fault is why the call cannot be counted, nil when it can.
func (u *Use) Fault() *Uncountable { return u.fault }

// matches reports whether arguments are those of a call that counts.
func matches(where map[string][]json.RawMessage, arguments json.RawMessage) (bool, error) {
	for pointer, values := range where {
		got, there := find(arguments, pointer)
		if !there {
			return false, nil
		}
		text, err := canonical(got)
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(values, func(want json.RawMessage) bool {
			same, err := canonical(want)
			return err == nil && bytes.Equal(same, text)
		}) {
			return false, nil
		}
	}
	return true, nil
}

// apart gives the values that are counted apart; what is not there is null.
func apart(pointers []string, arguments json.RawMessage) (string, error) {
	values := make([]json.RawMessage, len(pointers))
	for i, pointer := range pointers {
		got, there := find(arguments, pointer)
		if !there {
			got = json.RawMessage("null")
		}
		text, err := canonical(got)
		if err != nil {
			return "", err
		}
		if len(text) > maxApart {
			sum := sha256.Sum256(text)
			text = jsonrpc.Quote("sha256:" + hex.EncodeToString(sum[:]))
		}
		values[i] = text
	}
	text, err := json.Marshal(values)
	return string(text), err
}

// amountAt reads the number that m adds up.
func amountAt(m policy.Meter, arguments json.RawMessage) (*apd.Decimal, *Uncountable) {
	none := new(apd.Decimal)
	raw, there := find(arguments, m.Sum)
	fault := &Uncountable{Meter: m.Name, Pointer: m.Sum}
	switch {
	case !there:
		return none, fault
	case raw[0] != '-' && (raw[0] < '0' || raw[0] > '9'):
		fault.Got = kinds[raw[0]]
		return none, fault
	}
	fault.Got = fmt.Sprintf("%.80s", raw)
	d, _, err := exact.NewFromString(string(raw))
	if err != nil || d.Form != apd.Finite || d.Sign() < 0 {
		return none, fault
	}
	d.Reduce(d)
	if d.Sign() != 0 && (d.Exponent < -maxDecimals || d.NumDigits()+int64(d.Exponent) > maxWhole) {
		return none, fault
	}
	return d.Abs(d), nil
}

var kinds = map[byte]string{'"': "text", '{': "an object", '[': "a list", 't': "true", 'f': "false", 'n': "null"}

// find gives the value at a JSON Pointer (RFC 6901).
func find(value json.RawMessage, pointer string) (json.RawMessage, bool) {
	for key := range jsontext.Pointer(pointer).Tokens() {
		var ok bool
		if len(value) > 0 && value[0] == '[' {
			value, ok = element(value, key)
		} else {
			value, ok = jsonrpc.Get(value, key)
		}
		if !ok {
			return nil, false
		}
	}
	return value, len(value) > 0
}

func element(list json.RawMessage, key string) (json.RawMessage, bool) {
	want, err := strconv.Atoi(key)
	if err != nil || strconv.Itoa(want) != key {
		return nil, false
	}
	for e := range jsonrpc.Elements(list) {
		if want == 0 {
			return e, true
		}
		want--
	}
	return nil, false
}

// canonical writes a JSON value in the one form that all its spellings have.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	v, err := jsonrpc.Value(raw, jsonrpc.Limits{})
	if err != nil {
		return nil, err
	}
	if v, err = settled(v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// settled replaces the numbers in v by their shortest spelling.
func settled(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		d, _, err := apd.NewFromString(string(v))
		if err != nil {
			return nil, fmt.Errorf("reading %.40q: %w", string(v), err)
		}
		if d.Sign() == 0 {
			return json.Number("0"), nil
		}
		d.Reduce(d)
		return json.Number(d.Text('E')), nil
	case []any:
		for i := range v {
			if v[i], err = settled(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = settled(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// plain writes d as a JSON number without exponent.
func plain(d *apd.Decimal) string {
	var r apd.Decimal
	r.Reduce(d)
	if r.Sign() == 0 {
		return "0"
	}
	return r.Text('f')
}
