package signal

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The tags that are read without parsing a body: the table "Tag Conventions"
// of seed 002, and ours.
const (
	TagUrgency    = "urgency"     // low, normal, high or critical
	TagDomain     = "domain"      // finance, code, general, …: any word
	TagComplexity = "complexity"  // trivial, simple, moderate or complex
	TagConfidence = "confidence"  // a decimal from 0.0 to 1.0
	TagGrounding  = "grounding"   // a decimal from 0.0 to 1.0
	TagSourceType = "source_type" // user, tool, agent or system (the default)

	TagTier     = "tier"        // the origin's tier, a default tag
	TagModule   = "module"      // the origin's module, a default tag
	TagTool     = "tool"        // the tool a signal came from
	TagDecision = "decision_id" // the decision that let the call pass
	TagNext     = "next"        // of an error signal: retry or escalate (see Compose)
	TagJobType  = "job_type"    // of the JobRequest that a signal was made from
	TagDepth    = "depth"       // likewise
	TagMaxSteps = "max_steps"   // likewise
)

// tags are sorted by key.
type tags []tag

type tag struct{ key, value string }

// value returns the value of key, "" when it is absent.
func (ts tags) value(key string) string {
	for _, t := range ts {
		if t.key == key {
			return t.value
		}
	}
	return ""
}

// MarshalJSONTo writes an object.
func (ts tags) MarshalJSONTo(e *jsontext.Encoder) error {
	_ = e.WriteToken(jsontext.BeginObject) // what fails here fails at the end too
	for _, t := range ts {
		_ = e.WriteToken(jsontext.String(t.key))
		_ = e.WriteToken(jsontext.String(t.value))
	}
	return e.WriteToken(jsontext.EndObject)
}

// UnmarshalJSONFrom reads an object of strings.
func (ts *tags) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var m map[string]string
	err := json.UnmarshalDecode(d, &m)
	*ts = sortTags(m)
	return err
}

// tagRule is what a standard tag may say. A tag without a rule is free.
type tagRule struct {
	want string
	ok   func(value string) bool
}

var tagRules = map[string]tagRule{
	TagUrgency:    {"low, normal, high or critical", among("low", "normal", "high", "critical")},
	TagDomain:     {"a word", func(v string) bool { return v != "" }},
	TagComplexity: {"trivial, simple, moderate or complex", among("trivial", "simple", "moderate", "complex")},
	TagConfidence: {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagGrounding:  {"a decimal from 0.0 to 1.0", ratio.MatchString},
	TagSourceType: {"user, tool, agent or system", among("user", "tool", "agent", "system")},
}

func among(words ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(words, v) }
}

// ratio matches plain decimals only: readers in other languages disagree on
// exponents, signs and bare points.
var ratio = regexp.MustCompile(`^(0(\.[0-9]+)?|1(\.0+)?)$`)

func mergeTags(origin ModuleRef, given map[string]string) (tags, error) {
	merged := map[string]string{TagTier: strconv.Itoa(origin.Tier), TagModule: origin.Module, TagSourceType: "system"}
	maps.Copy(merged, given)
	sorted := sortTags(merged)
	return sorted, sorted.check()
}

func sortTags(m map[string]string) tags {
	sorted := make(tags, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		sorted = append(sorted, tag{k, m[k]})
	}
	return sorted
}

func (ts tags) check() error {
	for _, t := range ts {
		if t.key == "" || !utf8.ValidString(t.key) {
			return fmt.Errorf("%w: key %q is empty or no UTF-8", ErrInvalidTag, t.key)
		}
		if rule, ok := tagRules[t.key]; ok && !rule.ok(t.value) {
			return fmt.Errorf("%w: %s %q is not %s", ErrInvalidTag, t.key, t.value, rule.want)
		}
	}
	return nil
}
