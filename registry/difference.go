package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/text"
)

// formOnly is the difference of definitions that have the same members and values.
const formOnly = "white space or the order of members"

// plainMember is a member's name that a path has without quotes.
var plainMember = regexp.MustCompile(`^[A-Za-z0-9_$-]+$`)

// firstDifference returns the path of the first member in which two definitions of a tool
// differ, such as inputSchema.properties.amount.maximum, and formOnly when none does.
// Members are compared in the order of their names. The path is ASCII and has at most
// shownBytes bytes. It is "" when one of the definitions cannot be read.
func firstDifference(accepted, offered json.RawMessage) string {
	a, err := decoded(accepted)
	if err != nil {
		return ""
	}
	b, err := decoded(offered)
	if err != nil {
		return ""
	}
	if path, found := differing("", a, b); found {
		return text.Clip(path, shownBytes, "...")
	}
	return formOnly
}

// decoded returns a definition as a value whose numbers are as they were written.
func decoded(definition json.RawMessage) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(definition))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// differing returns the path below path at which two values differ first.
func differing(path string, a, b any) (string, bool) {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return path, true
		}
		both := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
		slices.Sort(both)
		for _, name := range slices.Compact(both) {
			was, had := a[name]
			is, has := b[name]
			if had != has {
				return memberPath(path, name), true
			}
			if at, found := differing(memberPath(path, name), was, is); found {
				return at, true
			}
		}
		return "", false
	case []any:
		b, ok := b.([]any)
		if !ok {
			return path, true
		}
		for i := range max(len(a), len(b)) {
			at := fmt.Sprintf("%s[%d]", path, i)
			if i >= len(a) || i >= len(b) {
				return at, true
			}
			if below, found := differing(at, a[i], b[i]); found {
				return below, true
			}
		}
		return "", false
	}
	return path, !reflect.DeepEqual(a, b)
}

// memberPath returns the path of a member of the value at path.
func memberPath(path, name string) string {
	switch {
	case !plainMember.MatchString(name):
		return path + "[" + strconv.QuoteToASCII(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}
