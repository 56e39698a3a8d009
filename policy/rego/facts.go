package rego

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/registry/contract"
)

// readFacts reads data.facts: tool ⇒ its facts. It gives all faults at once, each with
// its path.
func readFacts(data map[string]any) (map[string]*fact.Set, error) {
	declared, ok := data["facts"]
	if !ok {
		return nil, nil
	}
	out := make(map[string]*fact.Set)
	var faults []error
	eachIn("data.facts", declared, &faults, func(path, tool string, v any) {
		set, err := toolFacts(v)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", path, err))
		}
		out[tool] = set
	})
	return out, errors.Join(faults...)
}

// toolFacts reads the facts of one tool. The member contract names a tool that toolgate
// ships; the other members are facts that change those of its contract. What a
// fact states there, such as sizes, replaces what the contract states as a whole.
func toolFacts(v any) (*fact.Set, error) {
	members, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("is no object (hint: {\"contract\": \"manage_wallet\"})")
	}
	if named, ok := members["contract"]; ok {
		name, _ := named.(string)
		shipped, _ := contract.WithBackend(name)
		var under map[string]any
		if err := util.UnmarshalJSON(shipped.Facts, &under); err != nil {
			return nil, fmt.Errorf("contract: %s has no facts (hint: toolgate tools --describe)", jsonOf(named))
		}
		members = overContract(under, members)
	}
	return fact.New(jsonOf(members))
}

// overContract adds members to the facts of a contract.
func overContract(facts, members map[string]any) map[string]any {
	for name, v := range members {
		below, known := facts[name].(map[string]any)
		above, object := v.(map[string]any)
		if known && object {
			maps.Copy(below, above)
		} else {
			facts[name] = v
		}
	}
	delete(facts, "contract")
	return facts
}

// Facts returns the facts that the policy declares for a tool by its exposed name, nil for
// none.
func (e *Engine) Facts(tool string) *fact.Set { return e.program.facts[tool] }

// withFacts returns in with the facts of the call, which take the place of any in it.
func (p *program) withFacts(in *policy.Input) *policy.Input {
	out := *in
	out.Facts = nil
	if set := p.facts[in.Tool.Exposed]; set != nil && in.Calls() {
		out.Facts = json.RawMessage(set.Of(in.Arguments))
	}
	return &out
}
