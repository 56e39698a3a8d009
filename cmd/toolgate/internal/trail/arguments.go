package trail

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// The forms in which the trail keeps arguments.
const (
	keptWhole  = "whole"
	keptMasked = "masked"
	keptDigest = "digest"
)

const withheldText = "not recorded: it may quote the arguments"

// Recorder writes the trail.
type Recorder interface {
	Write(kind audit.Kind, r *audit.Record) error
}

// argumentKeeper is a Recorder that keeps arguments as audit.arguments says, and where no
// entry matches, without the values that a schema or a name calls secret. What it cannot
// mask it keeps as a digest: arguments that are not JSON, and with an entry also those for
// a tool whose schema is not at hand.
type argumentKeeper struct {
	Recorder
	rules []config.Arguments
	key   keys.Key
	tools func() *registry.Catalogue // nil = none yet
}

// KeepArguments returns the recorder of calls and tickets: to itself where every argument is kept
// whole. tools returns the catalogue, nil = none yet.
func KeepArguments(to Recorder, rules []config.Arguments, k *keys.Dir, tools func() *registry.Catalogue) (Recorder, error) {
	if len(rules) > 0 && rules[0].Tool == "*" && rules[0].Keep == keptWhole {
		return to, nil
	}
	key, err := k.Secret(keys.Arguments)
	return &argumentKeeper{to, rules, key, tools}, err
}

// Write implements proxy.Recorder.
func (k *argumentKeeper) Write(kind audit.Kind, r *audit.Record) error {
	return k.Recorder.Write(kind, k.keep(r))
}

// keep returns r as it is recorded, a copy where the two differ. Without a matching entry,
// arguments are decoded only where the schema has a secret or the text may hold a secret name.
func (k *argumentKeeper) keep(r *audit.Record) *audit.Record {
	name, rule, text := cmp.Or(r.Method, r.Exposed), config.Arguments{}, r.Arguments
	for _, entry := range k.rules { // the first that matches
		if ok, _ := path.Match(entry.Tool, name); ok || entry.Tool == "*" {
			rule = entry
			break
		}
	}
	if rule.Keep == keptWhole {
		return r
	}
	if len(text) == 0 {
		text = r.About
	}
	// The input schema of the tool, nil for a method that calls none; known is false when the schema
	// that judged the call is not at hand.
	input, known := (*schema.Schema)(nil), r.Method != ""
	if c := k.tools(); !known && c != nil {
		if t, ok := c.Defined(r.Server, r.Tool, r.Fingerprint); ok && t.Exposed == r.Exposed && t.Quarantine == "" && t.Input != nil {
			input, known = t.Input, true
		}
	}
	switch {
	case rule.Keep != "" || input != nil && input.Secret():
	case len(text) > 0 && !mayName(text), len(text) == 0 && r.ArgumentsSHA256 == "":
		return r
	}
	var masked json.RawMessage
	var count int
	ok := len(text) > 0 && rule.Keep != keptDigest && (known || rule.Keep == "")
	if ok {
		masked, count, ok = mask(text, input, rule.Mask)
	}
	if ok && count == 0 {
		return r
	}
	out := *r
	if out.Arguments = nil; ok && len(r.Arguments) > 0 {
		out.Arguments, out.ArgumentsKept = masked, keptMasked
	} else if len(r.Arguments) > 0 || r.ArgumentsBytes > 0 {
		out.ArgumentsKept = keptDigest
	}
	k.hide(&out, r)
	return &out
}

// hide removes what tells more of the arguments of r from out: plain digests, with which
// whoever tries values finds short arguments, and texts that may quote them.
func (k *argumentKeeper) hide(out, r *audit.Record) {
	plain := r.ArgumentsSHA256
	if plain == "" && len(r.Arguments) > 0 {
		sum := sha256.Sum256(r.Arguments)
		plain = hex.EncodeToString(sum[:])
	}
	if out.ArgumentsSHA256 = ""; plain != "" {
		mac := hmac.New(sha256.New, k.key.Secret)
		mac.Write([]byte("sha256:" + plain))
		out.ArgumentsHMAC, out.ArgumentsKey = hex.EncodeToString(mac.Sum(nil)), k.key.ID
	}
	if r.Change != nil {
		change := *r.Change
		change.Digest = "hmac-sha256:" + out.ArgumentsHMAC
		if change.From == string(approval.StateDispatching) { // the reason may be the answer of the tool
			change.Reason = withheldText
		}
		out.Change = &change
	}
	if out.ArgumentsExcerpt = ""; len(r.Input) > 0 {
		out.Input, _ = jsonrpc.Delete(r.Input, "arguments") // it is an object; otherwise nothing is recorded
	}
	if out.Warnings != nil {
		out.Warnings = []string{withheldText}
	}
	switch out.Stage {
	case "receive", "validate", "forward", "normalise":
		if out.Error != "" {
			out.Error = withheldText
		}
	}
}

// mask returns text, a JSON value, without the values that the schema calls secret (nil =
// none), that have a secret name, or that pointers name, and how many there were. It
// returns false when text must not be recorded.
func mask(text json.RawMessage, secrets *schema.Schema, pointers []string) (json.RawMessage, int, bool) {
	v, err := jsonrpc.Value(text, jsonrpc.MostLimits())
	if err != nil {
		return nil, 0, false
	}
	count := 0
	if secrets != nil {
		v, count = secrets.Mask(v, judgement.Masked)
	}
	count += maskNames(v)
	for _, pointer := range pointers {
		var n int
		v, n = maskAt(v, slices.Collect(jsontext.Pointer(pointer).Tokens()))
		count += n
	}
	masked, err := json.Marshal(v)
	return masked, count, err == nil
}

// maskAt masks the values under path and returns how many there were. A part * stands for
// every member and element.
func maskAt(v any, path []string) (any, int) {
	if len(path) == 0 {
		return judgement.Masked, 1
	}
	count := 0
	switch v := v.(type) {
	case map[string]any:
		for name, item := range v {
			if name == path[0] || path[0] == "*" {
				masked, n := maskAt(item, path[1:])
				v[name], count = masked, count+n
			}
		}
	case []any:
		for i, item := range v {
			if strconv.Itoa(i) == path[0] || path[0] == "*" {
				masked, n := maskAt(item, path[1:])
				v[i], count = masked, count+n
			}
		}
	}
	return v, count
}
