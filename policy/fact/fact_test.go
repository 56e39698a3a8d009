package fact_test

import (
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/policy/fact"
)

const acme = "0x52908400098527886E0F7030069857D2E4169EE7"

const wallet = `{
	"asset": {"kind": "label", "at": ["/asset", "/tokenAddress"], "labels": {"USDC": ["0x8617E340B3D01FA5F11F306F4090FD50E238070D"]}},
	"amount": {"kind": "amount", "at": ["/amount", "/value"], "asset": "asset", "decimals": {"USD": 2, "USDC": 6, "ETH": 18, "BIG": 77, "ONE": 0}},
	"to": {"kind": "label", "at": ["/destination", "/to"], "labels": {"acme": ["` + acme + `"]}},
	"host": {"kind": "host", "at": ["/page/url"]},
	"pixels": {"kind": "pixels", "at": ["/size"], "sizes": {"1:1": "512x512"}, "absent": "1:1"},
	"memo": {"kind": "value", "at": ["/memo"]}
}`

func read(t testing.TB, declared string) *fact.Set {
	t.Helper()
	s, err := fact.New([]byte(declared))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFacts(t *testing.T) {
	s := read(t, wallet)
	for arguments, want := range map[string]string{
		// Amounts, by their forms.
		`{"asset":"USD","amount":"1.5"}`:                            `"amount":150,"asset":"USD"`,
		`{"asset":"USD","amount":1.5}`:                              `"amount":150,"asset":"USD"`,
		`{"asset":"USD","amount":1.50000}`:                          `"amount":150,"asset":"USD"`,
		`{"asset":"USD","amount":1e18}`:                             `"amount":100000000000000000000,"asset":"USD"`,
		`{"asset":"USD","amount":"1e-2"}`:                           `"amount":1,"asset":"USD"`,
		`{"asset":"ETH","amount":"0.000000000000000001"}`:           `"amount":1,"asset":"ETH"`,
		`{"asset":"ETH","amount":1.000000000000000001}`:             `"amount":1000000000000000001,"asset":"ETH"`,
		`{"asset":"ONE","amount":9007199254740993}`:                 `"amount":9007199254740993,"asset":"ONE"`,
		`{"asset":"USD","amount":1.005}`:                            `"asset":"USD"`,
		`{"asset":"USD","amount":0}`:                                `"asset":"USD"`,
		`{"asset":"USD","amount":-1}`:                               `"asset":"USD"`,
		`{"asset":"USD","amount":"-1"}`:                             `"asset":"USD"`,
		`{"asset":"USD","amount":"+1"}`:                             `"asset":"USD"`,
		`{"asset":"USD","amount":" 1"}`:                             `"asset":"USD"`,
		`{"asset":"USD","amount":"0x10"}`:                           `"asset":"USD"`,
		`{"asset":"USD","amount":"1,5"}`:                            `"asset":"USD"`,
		`{"asset":"USD","amount":""}`:                               `"asset":"USD"`,
		`{"asset":"USD","amount":null}`:                             `"asset":"USD"`,
		`{"asset":"USD","amount":[1]}`:                              `"asset":"USD"`,
		`{"asset":"USD","amount":1e999}`:                            `"asset":"USD"`,
		`{"asset":"BIG","amount":9e9}`:                              `"asset":"BIG"`,
		`{"asset":"USD","amount":1` + strings.Repeat("0", 78) + `}`: `"asset":"USD"`,
		`{"asset":"USD"}`:                                           `"asset":"USD"`,
		`{"asset":"DOGE","amount":1}`:                               `"asset":"DOGE"`,
		`{"asset":"usd","amount":1}`:                                `"asset":"usd"`,
		`{"asset":["USD"],"amount":1}`:                              ``,
		`{"amount":1}`:                                              ``,
		// One argument by several names.
		`{"asset":"USD","value":"1"}`:                                             `"amount":100,"asset":"USD"`,
		`{"asset":"USD","value":"1","amount":"1"}`:                                `"asset":"USD"`,
		`{"asset":"USD","value":"1","amount":null}`:                               `"asset":"USD"`,
		`{"tokenAddress":"0x8617E340B3D01FA5F11F306F4090FD50E238070D","value":1}`: `"amount":1000000,"asset":"USDC"`,
		// Names of addresses.
		`{"to":"acme"}`:         `"to":"acme"`,
		`{"to":"` + acme + `"}`: `"to":"acme"`,
		`{"destination":"0xde709f2102306220921060314715629080e2fb77"}`: `"to":"0xde709f2102306220921060314715629080e2fb77"`,
		`{"to":"` + strings.ToLower(acme) + `"}`:                       ``,
		`{"to":"0x12"}`:                                                ``,
		`{"to":"ACME"}`:                                                `"to":"ACME"`,
		`{"to":"acme","destination":"acme"}`:                           ``,
		// Hosts.
		`{"page":{"url":"https://Docs.Example.com:8443/a?b#c"}}`: `"host":"docs.example.com"`,
		`{"page":{"url":"http://example.com."}}`:                 `"host":"example.com"`,
		`{"page":{"url":"http://[::1]:80/"}}`:                    `"host":"::1"`,
		`{"page":{"url":"https://good.example@evil.example/"}}`:  ``,
		`{"page":{"url":"https://exämple.org/"}}`:                ``,
		`{"page":{"url":"https://ex%61mple.org/"}}`:              ``,
		`{"page":{"url":"https:example.org"}}`:                   ``,
		`{"page":{"url":"file:///etc/passwd"}}`:                  ``,
		`{"page":{"url":"https://a\\b.example/"}}`:               ``,
		`{"page":["https://example.org/"]}`:                      ``,
		// Others.
		`{"size":"1024x768"}`:        `"pixels":786432`,
		`{"size":"2:1"}`:             `"pixels":none`,
		`{"memo":{"a":[1.50,null]}}`: `"memo":{"a":[1.50,null]}`,
		`[]`:                         ``,
		``:                           ``,
	} {
		switch {
		case !strings.Contains(want, "pixels"):
			want = strings.TrimPrefix(want+`,"pixels":262144`, ",")
		case strings.Contains(want, "none"):
			want = ""
		}
		if strings.HasPrefix(want, `"to"`) {
			want = `"pixels":262144,` + strings.TrimSuffix(want, `,"pixels":262144`)
		}
		if got := string(s.Of([]byte(arguments))); got != "{"+want+"}" {
			t.Errorf("%s:\n got %s\nwant {%s}", arguments, got, want)
		}
	}
}

func TestBrokenDeclarations(t *testing.T) {
	for declared, want := range map[string]string{
		`[]`:                                                    "",
		`{"a": 1}`:                                              "/a",
		`{"a": {}}`:                                             `a: kind: "" is not known`,
		`{"a": {"kind": "sum", "at": ["/a"]}}`:                  `a: kind: "sum" is not known (hint: amount, host, label, pixels, value)`,
		`{"a": {"kind": "value"}}`:                              `a: at: is no list of JSON Pointers (hint: ["/amount"])`,
		`{"a": {"kind": "value", "at": ["a"]}}`:                 "a: at: is no list",
		`{"a": {"kind": "value", "at": [""]}}`:                  "a: at: is no list",
		`{"a": {"kind": "value", "at": ["/~2"]}}`:               "a: at: is no list",
		`{"a": {"kind": "value", "at": ["/a"], "to": 1}}`:       "to",
		`{"a": {"kind": "amount", "at": ["/a"]}}`:               `a: asset: "" is no fact of kind label`,
		`{"a": {"kind": "amount", "at": ["/a"], "asset": "a"}}`: `a: asset: "a" is no fact of kind label`,
		`{"b": {"kind": "label", "at": ["/b"]}, "a": {"kind": "amount", "at": ["/a"], "asset": "b", "decimals": {"X": 78}}}`: "a: decimals: X has 78, want 0 to 77",
		`{"a": {"kind": "pixels", "at": ["/a"], "sizes": {"1:1": "0x1"}}}`:                                                   `a: sizes: 1:1 is "0x1"`,
		`{"a": {"kind": "label", "at": ["/a"], "labels": {"x": ["acme"]}}}`:                                                  "a: labels: x: ",
		`{"a": {"kind": "label", "at": ["/a"], "labels": {"x": ["` + acme + `"], "y": ["` + acme + `"]}}}`:                   "a: labels: x and y have one address",
	} {
		if _, err := fact.New([]byte(declared)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", declared, err, want)
		}
	}
}

func ExampleSet_Of() {
	s, err := fact.New([]byte(`{
		"asset": {"kind": "label", "at": ["/asset"]},
		"amount": {"kind": "amount", "at": ["/amount", "/value"], "asset": "asset", "decimals": {"USDC": 6}}
	}`))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(s.Of([]byte(`{"asset": "USDC", "value": "1.5"}`))))
	// Output: {"amount":1500000,"asset":"USDC"}
}

// FuzzOf holds that facts are one JSON object whatever the arguments are, and that an
// amount is the number in the arguments times a power of ten.
func FuzzOf(f *testing.F) {
	for _, seed := range [][2]string{
		{`"1.5"`, `"acme"`}, {`1e18`, `"` + acme + `"`}, {`-0.0`, `"0x"`}, {`"1e-18"`, `"https://a.example"`}, {`1.00000000000000000000`, `null`}, {`"0.07"`, `{"a":[1]}`},
	} {
		f.Add(seed[0], seed[1])
	}
	s := read(f, wallet)
	f.Fuzz(func(t *testing.T, amount, other string) {
		raw := []byte(`{"asset":"USDC","amount":` + amount + `,"to":` + other + `,"page":{"url":` + other + `},"size":` + other + `,"memo":` + other + `}`)
		var facts map[string]jsontext.Value
		if err := json.Unmarshal(s.Of(raw), &facts); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		var address, name string
		if json.Unmarshal([]byte(other), &address) == nil && json.Unmarshal(facts["host"], &name) == nil {
			r, err := http.NewRequest(http.MethodGet, address, nil)
			if err != nil || strings.TrimSuffix(strings.ToLower(r.URL.Hostname()), ".") != name {
				t.Fatalf("%s has the host %s: %v, %v", other, name, r, err)
			}
		}
		units, ok := facts["amount"]
		if !ok || !jsontext.Value(raw).IsValid() {
			return
		}
		var text string
		if json.Unmarshal([]byte(amount), &text) != nil {
			text = strings.TrimSpace(amount)
		}
		want, _, err := apd.NewFromString(text)
		if err != nil {
			t.Fatalf("%s is no number, and has the fact %s", amount, units)
		}
		want.Exponent += 6
		got, _ := new(big.Int).SetString(string(units), 10)
		if d := apd.NewWithBigInt(new(apd.BigInt).SetMathBigInt(got), 0); got.Sign() <= 0 || d.Cmp(want) != 0 {
			t.Fatalf("%s became %s", amount, units)
		}
	})
}
