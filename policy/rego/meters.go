package rego

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// maxWindow bounds how far back a meter counts: what is counted is kept that long.
const maxWindow = 366 * 24 * time.Hour

// readMeters reads data.usage: tool ⇒ name ⇒ meter. It gives all faults at once,
// each with its path.
func readMeters(data map[string]any) (map[string][]policy.Meter, error) {
	usage, ok := data["usage"]
	if !ok {
		return nil, nil
	}
	out := make(map[string][]policy.Meter)
	var faults []error
	eachMeter("data.usage", usage, &faults, func(path, tool string, meters any) {
		eachMeter(path, meters, &faults, func(path, name string, meter any) {
			m, err := readMeter(name, meter)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s%w", path, err))
			}
			out[tool] = append(out[tool], m)
		})
	})
	return out, errors.Join(faults...)
}

// eachMeter calls f for the members of an object, in the order of their names.
func eachMeter(path string, v any, faults *[]error, f func(path, name string, v any)) {
	members, ok := v.(map[string]any)
	if !ok {
		*faults = append(*faults, fmt.Errorf("%s: is no object", path))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name == "" {
			*faults = append(*faults, fmt.Errorf("%s: a member has no name", path))
			continue
		}
		f(path+"."+name, name, members[name])
	}
}

// meterMembers are what a meter is read from. Its other members are the policy's
// own, thresholds for one.
var meterMembers = map[string]func(m *policy.Meter, v any) error{
	"window": func(m *policy.Meter, v any) error {
		s, _ := v.(string)
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Second || d > maxWindow {
			return fmt.Errorf("is %s, not a duration from 1s to %v (hint: \"24h\")", jsonOf(v), maxWindow)
		}
		m.Window = d
		return nil
	},
	"sum": func(m *policy.Meter, v any) (err error) {
		m.Sum, err = pointerOf(v)
		return err
	},
	"per": func(m *policy.Meter, v any) error {
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("is %s, not a list (hint: [\"/asset\"])", jsonOf(v))
		}
		for _, one := range list {
			p, err := pointerOf(one)
			if err != nil {
				return err
			}
			m.Per = append(m.Per, p)
		}
		return nil
	},
	"where": func(m *policy.Meter, v any) error {
		conditions, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("is %s, not an object (hint: {\"/action\": [\"transfer\"]})", jsonOf(v))
		}
		m.Where = make(map[string][]json.RawMessage, len(conditions))
		for _, at := range slices.Sorted(maps.Keys(conditions)) {
			values, ok := conditions[at].([]any)
			if !isPointer(at) || at == "" || !ok {
				return fmt.Errorf("%q is no pointer to a list of values (hint: {\"/action\": [\"transfer\"]})", at)
			}
			m.Where[at] = []json.RawMessage{}
			for _, value := range values {
				m.Where[at] = append(m.Where[at], jsonOf(value))
			}
		}
		return nil
	},
}

// readMeter reads one meter; its error begins where in it the fault is.
func readMeter(name string, v any) (policy.Meter, error) {
	m := policy.Meter{Name: name}
	members, ok := v.(map[string]any)
	if !ok {
		return m, errors.New(": is no object (hint: {\"window\": \"24h\", \"sum\": \"/amount\"})")
	}
	if _, ok := members["window"]; !ok {
		return m, errors.New(".window: is missing (hint: \"24h\")")
	}
	for member := range members {
		if _, known := meterMembers[member]; !known && likeMember(member) {
			return m, fmt.Errorf(".%s: is not known (hint: window, sum, per, where)", member)
		}
	}
	for _, member := range slices.Sorted(maps.Keys(meterMembers)) {
		value, ok := members[member]
		if !ok {
			continue
		}
		if err := meterMembers[member](&m, value); err != nil {
			return m, fmt.Errorf(".%s: %w", member, err)
		}
	}
	return m, nil
}

// likeMember reports whether a member that is the policy's own was meant to be
// another: what is misspelt must not go uncounted.
func likeMember(name string) bool {
	bare := strings.TrimSuffix(strings.ToLower(name), "s")
	_, known := meterMembers[bare]
	return known
}

func pointerOf(v any) (string, error) {
	s, ok := v.(string)
	if !ok || s == "" || !isPointer(s) {
		return "", fmt.Errorf("%s is no pointer into the arguments (hint: \"/amount\")", jsonOf(v))
	}
	return s, nil
}

// jsonOf writes a value that was read from JSON.
func jsonOf(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}
