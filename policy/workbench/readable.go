package workbench

import (
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/fact"
)

// typeTest matches tests of a type, and of the form of the time of a request.
var typeTest = regexp.MustCompile(`^(?:is_[a-z]+\((.+)|regex\.match\("[^"]*", (input\.request\.time))\)$`)

// WithoutTypeTests are the conditions of a Branch without tests of a type where
// another condition is about the same value: people take the type for granted.
func WithoutTypeTests(when []string) []string {
	var out []string
	for i, w := range when {
		m := typeTest.FindStringSubmatch(w)
		if m == nil || !slices.ContainsFunc(slices.Concat(when[:i], when[i+1:]), func(other string) bool {
			return !typeTest.MatchString(other) && (strings.Contains(" "+other, " "+m[1]+m[2]+" ") || strings.Contains(other, "("+m[1]+m[2]+")"))
		}) {
			out = append(out, w)
		}
	}
	return out
}

var comparison = regexp.MustCompile(`^(.+) (<|<=|>|>=|==|!=) (.+)$`)

// opposites are the operators of comparisons that hold where the others do not.
var opposites = map[string]string{"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}

// opposite says in one line what must hold for when not to: one of its conditions
// must not.
func opposite(when []string) string {
	var out []string
	for _, w := range WithoutTypeTests(when) {
		if inner, ok := strings.CutPrefix(w, "not {"); ok {
			out = append(out, strings.ReplaceAll(strings.TrimSuffix(inner, "}"), "; ", " and "))
		} else if m := comparison.FindStringSubmatch(w); m != nil && !strings.HasPrefix(w, "not ") && !strings.ContainsAny(w, "{[(") {
			out = append(out, m[1]+" "+opposites[m[2]]+" "+m[3])
		} else {
			out = append(out, negated(w))
		}
	}
	return strings.Join(out, " or ")
}

var (
	weekday     = regexp.MustCompile(`time\.weekday\(\[time\.parse_rfc3339_ns\(input\.request\.time\), "([^"]+)"\]\)`)
	clock       = regexp.MustCompile(`time\.format\(\[time\.parse_rfc3339_ns\(input\.request\.time\), "([^"]+)", "15:04"\]\)`)
	equalsText  = regexp.MustCompile(`^input\.facts\.(\w+) == "([^"]+)"$`)
	ofAmount    = regexp.MustCompile(`^(.*)\binput\.facts\.(\w+) (<|<=|>|>=) (\d+)$`)
	plainOrders = strings.NewReplacer(" <= ", " ≤ ", " >= ", " ≥ ", "input.arguments.", "", "input.facts.", "facts.", "input.usage.", "usage.")
)

// Readable returns conditions of a Branch for a tool with facts as people read them: arguments by their
// names alone, facts as facts.NAME, a bound on the amount of an asset in whole units,
// "amount ≤ 200 USD", and opening hours as "weekday in UTC" and "time in UTC".
func Readable(facts *fact.Set, when []string) []string { return readable(facts, when, nil) }

// readable writes conditions that hold together with those around them.
func readable(facts *fact.Set, when, around []string) []string {
	list, assets := []string{}, map[string]string{} // :: fact ⇒ its value
	for _, w := range WithoutTypeTests(when) {
		list = append(list, turned(w))
	}
	for _, w := range slices.Concat(around, list) {
		if m := equalsText.FindStringSubmatch(w); m != nil {
			assets[m[1]] = m[2]
		}
	}
	named := map[string]bool{} // facts whose value an amount names
	texts := make([]string, len(list))
	for i, w := range list {
		text, asset := amountText(facts, w, assets)
		texts[i], named[asset] = text, true
	}
	var out []string
	for i, w := range list {
		inner, nested := strings.CutPrefix(w, "not {")
		switch m := equalsText.FindStringSubmatch(w); {
		case m != nil && named[m[1]]:
			continue
		case nested:
			parts := readable(facts, strings.Split(strings.TrimSuffix(inner, "}"), "; "), list)
			if w = "not " + parts[0]; len(parts) > 1 {
				w = "not {" + strings.Join(parts, "; ") + "}"
			}
		case texts[i] != "":
			w = texts[i]
		}
		w = clock.ReplaceAllString(weekday.ReplaceAllString(w, "weekday in $1"), "time in $1")
		out = append(out, plainOrders.Replace(w))
	}
	return out
}

// turned writes a condition without the not before a single comparison, "a > 5" for
// "not a <= 5", except for equality: what is absent is not equal.
func turned(condition string) string {
	inner, not := strings.CutPrefix(condition, "not ")
	if braced, ok := strings.CutPrefix(inner, "{"); ok {
		if list := WithoutTypeTests(strings.Split(strings.TrimSuffix(braced, "}"), "; ")); len(list) == 1 {
			inner = list[0]
		}
	}
	m := comparison.FindStringSubmatch(inner)
	if !not || m == nil || m[2] == "==" || strings.ContainsAny(inner, "{[(") || strings.HasPrefix(inner, "not ") {
		return condition
	}
	return m[1] + " " + opposites[m[2]] + " " + m[3]
}

// amountText writes a comparison with the amount of an asset, and returns the fact that names
// the asset; "" for any other condition.
func amountText(facts *fact.Set, condition string, assets map[string]string) (line, asset string) {
	m := ofAmount.FindStringSubmatch(condition)
	if m == nil {
		return "", ""
	}
	declared := facts.Declared(m[2])
	decimals, ok := declared.Decimals[assets[declared.Asset]]
	units, whole := new(big.Int).SetString(m[4], 10)
	if !ok || !whole {
		return "", ""
	}
	return m[1] + m[2] + " " + m[3] + " " + text.Decimal(units, decimals) + " " + assets[declared.Asset], declared.Asset
}
