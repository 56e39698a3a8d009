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
	"github.com/toolgate/toolgate/policy/fact"
)

// maxWindow bounds how far back a meter counts: what is counted is kept that long.
const maxWindow = 366 * 24 * time.Hour

// readMeters reads data.usage: tool ⇒ name ⇒ meter. It gives all faults at once,
// each with its path. A meter counts arguments, and facts of its tool.
func readMeters(data map[string]any, facts map[string]*fact.Set) (map[string][]policy.Meter, error) {
	usage, ok := data["usage"]
	if !ok {
		return nil, nil
	}
	out := make(map[string][]policy.Meter)
	var faults []error
	eachIn("data.usage", usage, &faults, func(path, tool string, meters any) {
		eachIn(path, meters, &faults, func(path, name string, meter any) {
			m, err := readMeter(name, meter, facts[tool])
			if err != nil {
				faults = append(faults, fmt.Errorf("%s%w", path, err))
			}
			out[tool] = append(out[tool], m)
		})
	})
	return out, errors.Join(faults...)
}

// eachIn calls f for the members of an object, in the order of their names.
func eachIn(path string, v any, faults *[]error, f func(path, name string, v any)) {
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

// readMeter reads one meter; its error begins with the place of the fault in it.
// Members that a meter does not know are the policy's own, thresholds for one, unless
// they look like misspelt ones: those would leave calls uncounted.
func readMeter(name string, v any, facts *fact.Set) (m policy.Meter, err error) {
	m.Name = name
	if facts != nil {
		m.Facts = facts.Of
	}
	members, ok := v.(map[string]any)
	if !ok {
		return m, errors.New(": is no object (hint: {\"window\": \"24h\", \"sum\": \"/amount\"})")
	}
	if _, ok := members["window"]; !ok {
		return m, errors.New(".window: is missing (hint: \"24h\")")
	}
	for _, member := range slices.Sorted(maps.Keys(members)) {
		v := members[member]
		switch member {
		case "window":
			m.Window, err = windowOf(v)
		case "sum":
			m.Sum, err = countedOf(v, facts)
		case "per":
			m.Per, err = countedApartOf(v, facts)
		case "where":
			m.Where, err = whereOf(v)
		default:
			switch strings.TrimSuffix(strings.ToLower(member), "s") {
			case "window", "sum", "per", "where":
				err = errors.New("is not known (hint: window, sum, per, where)")
			}
		}
		if err != nil {
			return m, fmt.Errorf(".%s: %w", member, err)
		}
	}
	return m, nil
}

func windowOf(v any) (time.Duration, error) {
	s, _ := v.(string)
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || d > maxWindow {
		return 0, fmt.Errorf("is %s, not a duration from 1s to %v (hint: \"24h\")", jsonOf(v), maxWindow)
	}
	return d, nil
}

func countedApartOf(v any, facts *fact.Set) (out []string, err error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("is %s, not a list (hint: [\"/asset\"])", jsonOf(v))
	}
	for _, one := range list {
		p, err := countedOf(one, facts)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func whereOf(v any) (map[string][]json.RawMessage, error) {
	conditions, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is %s, not an object (hint: {\"/action\": [\"transfer\"]})", jsonOf(v))
	}
	out := make(map[string][]json.RawMessage, len(conditions))
	for _, at := range slices.Sorted(maps.Keys(conditions)) {
		values, ok := conditions[at].([]any)
		if _, err := pointerOf(at); err != nil || !ok {
			return nil, fmt.Errorf("%q is no pointer to a list of values (hint: {\"/action\": [\"transfer\"]})", at)
		}
		out[at] = []json.RawMessage{}
		for _, value := range values {
			out[at] = append(out[at], jsonOf(value))
		}
	}
	return out, nil
}

// countedOf reads a pointer, or the name of a fact.
func countedOf(v any, facts *fact.Set) (string, error) {
	if s, ok := v.(string); ok && facts.Declared(s).Kind != "" {
		return s, nil
	}
	return pointerOf(v)
}

func pointerOf(v any) (string, error) {
	s, ok := v.(string)
	if !ok || s == "" || !isPointer(s) {
		return "", fmt.Errorf("%s is no pointer into the arguments, and no fact of the tool (hint: \"/amount\")", jsonOf(v))
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
