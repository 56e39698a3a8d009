// Package fact reads facts about a call from its arguments, so that policies compare
// numbers and names and parse no text. A tool's facts are declared as data:
//
//	{"asset":  {"kind": "label", "at": ["/asset", "/tokenAddress"]},
//	 "amount": {"kind": "amount", "at": ["/amount", "/value"], "asset": "asset", "decimals": {"USDC": 6}}}
//
// With the arguments {"tokenAddress": …, "value": "1.5"} they are
// {"asset": "USDC", "amount": 1500000}. Several pointers are names of one argument: a
// call uses exactly one of them. What is missing, ambiguous or cannot be read exactly is
// no fact, and policies treat an absent fact as they treat an absent argument.
package fact

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

// The kinds of facts.
const (
	Amount = "amount" // whole number of the smallest units of an asset
	Host   = "host"   // of an http or https URL, in lower case and without port
	Label  = "label"  // text, or the name of an address
	Pixels = "pixels" // width times height
	Value  = "value"  // the argument unchanged
)

var kinds = []string{Amount, Host, Label, Pixels, Value}

// Declaration says how one fact is read.
type Declaration struct {
	Kind   string              `json:"kind"`
	At     []jsontext.Pointer  `json:"at"`               // into the arguments; exactly one leads to the value
	Absent string              `json:"absent,omitempty"` // value of a call without the argument; "" = no fact
	Labels map[string][]string `json:"labels,omitempty"` // Label: addresses (EIP-55) by name
	Sizes  map[string]string   `json:"sizes,omitempty"`  // Pixels: "WIDTHxHEIGHT" by value

	Asset    string         `json:"asset,omitempty"`    // Amount: the fact that names the asset
	Decimals map[string]int `json:"decimals,omitempty"` // Amount: digits after the point, by asset
}

// Set is the facts of one tool. It is immutable and safe for concurrent use.
type Set struct{ facts []fact }

type fact struct {
	Declaration
	name      string
	addresses map[string]string // :: address ⇒ its label
}

// New returns the facts that a JSON object declares by name. The error names the fact.
func New(declared []byte) (*Set, error) {
	var all map[string]Declaration
	if err := json.Unmarshal(declared, &all, json.RejectUnknownMembers(true)); err != nil {
		return nil, err
	}
	s := new(Set)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := fact{Declaration: all[name], name: name, addresses: map[string]string{}}
		err := f.check()
		if asset := all[f.Asset]; err == nil && f.Kind == Amount && asset.Kind != Label {
			err = fmt.Errorf("asset: %q is no fact of kind label", f.Asset)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s.facts = append(s.facts, f)
	}
	slices.SortStableFunc(s.facts, func(a, b fact) int { return cmp.Compare(b.Kind, a.Kind) }) // amounts follow their assets
	return s, nil
}

// Declared returns the declaration of a fact, the zero Declaration for none. The caller
// must not change it.
func (s *Set) Declared(name string) Declaration {
	if s != nil {
		for _, f := range s.facts {
			if f.name == name {
				return f.Declaration
			}
		}
	}
	return Declaration{}
}

// maxDecimals is the most digits after the point that text.Units reads.
const maxDecimals = 77

func (f *fact) check() error {
	if !slices.Contains(kinds, f.Kind) {
		return fmt.Errorf("kind: %q is not known (hint: %s)", f.Kind, strings.Join(kinds, ", "))
	}
	if len(f.At) == 0 || slices.ContainsFunc(f.At, func(p jsontext.Pointer) bool { return p == "" || !p.IsValid() }) {
		return errors.New(`at: is no list of JSON Pointers (hint: ["/amount"])`)
	}
	for asset, n := range f.Decimals {
		if n < 0 || n > maxDecimals {
			return fmt.Errorf("decimals: %s has %d, want 0 to %d", asset, n, maxDecimals)
		}
	}
	for value, size := range f.Sizes {
		if pixels(size) == nil {
			return fmt.Errorf("sizes: %s is %q (hint: \"1024x768\")", value, size)
		}
	}
	for label, addresses := range f.Labels {
		for _, address := range addresses {
			if _, err := text.ParseAddress(address); err != nil {
				return fmt.Errorf("labels: %s: %w", label, err)
			}
			if other, ok := f.addresses[address]; ok {
				return fmt.Errorf("labels: %s and %s have one address", min(label, other), max(label, other))
			}
			f.addresses[address] = label
		}
	}
	return nil
}

// Of returns the facts of a call as a JSON object. The arguments are a JSON object that
// was read strictly; of anything else there are no facts.
func (s *Set) Of(arguments []byte) jsontext.Value {
	found := make(map[string]jsontext.Value, len(s.facts))
	for i := range s.facts {
		f := &s.facts[i]
		if v := f.read(arguments, found[f.Asset]); v != nil {
			found[f.name] = v
		}
	}
	object, err := json.Marshal(found, json.Deterministic(true))
	if err != nil {
		return jsontext.Value("{}") // not read strictly
	}
	return object
}

// read returns the fact, nil for none. asset is the one that an amount is of.
func (f *fact) read(arguments []byte, asset jsontext.Value) jsontext.Value {
	raw := f.find(arguments)
	text, ok := textOf(raw)
	switch {
	case f.Kind == Value:
		return raw
	case f.Kind == Amount:
		return f.amount(raw, asset)
	case !ok:
	case f.Kind == Host:
		return host(text)
	case f.Kind == Label:
		return f.label(text)
	case f.Kind == Pixels:
		return pixels(cmp.Or(f.Sizes[text], text))
	}
	return nil
}

// find returns the argument that exactly one pointer leads to, nil for none.
func (f *fact) find(arguments []byte) (found jsontext.Value) {
	for _, p := range f.At {
		at, ok := jsonrpc.At(arguments, slices.Collect(p.Tokens())...)
		if ok && found != nil {
			return nil
		}
		if ok {
			found = jsontext.Value(at)
		}
	}
	if found == nil && f.Absent != "" {
		return quoted(f.Absent)
	}
	return found
}

// amount reads a number, or text with a decimal number, as smallest units.
func (f *fact) amount(raw, asset jsontext.Value) jsontext.Value {
	number, ok := textOf(raw)
	if raw.Kind() == '0' {
		number, ok = string(raw), true
	}
	symbol, known := textOf(asset)
	decimals, listed := f.Decimals[symbol]
	if !ok || !known || !listed {
		return nil
	}
	units, err := text.Units(number, decimals)
	if err != nil {
		return nil
	}
	return jsontext.Value(units.String())
}

// label returns the name of an address, and other text unchanged. An address without its
// checksum is none.
func (f *fact) label(value string) jsontext.Value {
	if strings.HasPrefix(value, "0x") {
		if _, err := text.ParseAddress(value); err != nil {
			return nil
		}
		value = cmp.Or(f.addresses[value], value)
	}
	return quoted(value)
}

// plainHost is a host that every client reads alike: clients may rewrite any other.
var plainHost = regexp.MustCompile(`^[a-z0-9._-]+$|^[0-9a-f:.]+$`)

// host returns the host of a URL.
func host(text string) jsontext.Value {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil
	}
	name := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if !plainHost.MatchString(name) {
		return nil
	}
	return quoted(name)
}

var dimensions = regexp.MustCompile(`^([1-9][0-9]{0,5})x([1-9][0-9]{0,5})$`)

// pixels returns the product of WIDTHxHEIGHT.
func pixels(text string) jsontext.Value {
	sides := dimensions.FindStringSubmatch(text)
	if sides == nil {
		return nil
	}
	width, _ := strconv.ParseInt(sides[1], 10, 64) // at most six digits
	height, _ := strconv.ParseInt(sides[2], 10, 64)
	return strconv.AppendInt(nil, width*height, 10)
}

// textOf returns a string of JSON, and false for anything else and for "".
func textOf(raw jsontext.Value) (text string, ok bool) {
	if raw.Kind() != '"' || json.Unmarshal(raw, &text) != nil {
		return "", false
	}
	return text, text != ""
}

func quoted(text string) jsontext.Value { return jsontext.Value(jsonrpc.Quote(text)) }
