package signal

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/text"
)

// JobRequest is what an HTTP client asks of the kernel (seed 002,
// http_request_to_signal). Its JSON form is {query?, job_type?, depth?,
// max_steps?, tool?, args?, tags?}; a zero field is not given.
type JobRequest struct {
	Query    string             // what the user asks, in words; required without a tool
	JobType  string             // what kind of job it is
	Depth    int                // how deep to go, 0 to 2147483647
	MaxSteps int                // at most so many steps, 0 to 2147483647
	Tool     string             // the tool to call, by the name agents use
	Args     stdjson.RawMessage // a JSON object for that tool, nil for {}
	// Tags are what the caller claims of the job: urgency, domain, complexity, confidence
	// and grounding, as seed 002's table "Tag Conventions" has them, at most 64 bytes each.
	Tags map[string]string
}

type jobForm struct {
	Query    string            `json:"query"`
	JobType  word              `json:"job_type,omitzero"`
	Depth    int               `json:"depth,omitzero"`
	MaxSteps int               `json:"max_steps,omitzero"`
	Tool     word              `json:"tool,omitzero"`
	Args     jsontext.Value    `json:"args,omitzero"`
	Tags     map[string]string `json:"tags,omitzero"`
}

// A word is a string that is not empty.
type word string

// UnmarshalJSON refuses any other value.
func (w *word) UnmarshalJSON(raw []byte) error {
	text, _ := jsonrpc.Text(raw)
	if *w = word(text); text == "" {
		return errors.New(wantWord)
	}
	return nil
}

// Validate returns ErrInvalidRequest, with the member, when r asks for
// nothing, has a number out of range, a tag that callers do not set or whose value is
// not one of its own, args without a tool or args that are no JSON object with one
// reading.
func (r JobRequest) Validate() error {
	for _, key := range slices.Sorted(maps.Keys(r.Tags)) {
		switch rule := tagRules[key]; {
		case !slices.Contains(jobTags, key):
			return badMember("tags", "may have "+strings.Join(jobTags, ", ")+" only")
		case !rule.ok(r.Tags[key]) || len(r.Tags[key]) > maxTag || !utf8.ValidString(r.Tags[key]):
			return badMember("tags: "+key, "must be "+rule.want)
		}
	}
	switch {
	case r.Query == "" && r.Tool == "":
		return badMember("query", "must be given where there is no tool")
	case r.Depth < 0 || r.Depth > math.MaxInt32:
		return badMember("depth", wantCount)
	case r.MaxSteps < 0 || r.MaxSteps > math.MaxInt32:
		return badMember("max_steps", wantCount)
	case r.Args == nil:
		return nil
	case r.Tool == "":
		return badMember("args", "has no tool to go to")
	}
	args, err := strictValue(bytes.Clone(r.Args))
	if err != nil {
		return fmt.Errorf("%w: args: %w", ErrInvalidRequest, err)
	}
	if args[0] != '{' {
		return badMember("args", wantObject)
	}
	return nil
}

// jobTags are the tags that the caller of a job may set.
var jobTags = []string{TagUrgency, TagDomain, TagComplexity, TagConfidence, TagGrounding}

// maxTag bounds, in bytes, the value of one of jobTags.
const maxTag = 64

// maxName bounds, in bytes, what an error repeats of an unknown member's name.
const maxName = 64

const (
	wantCount  = "must be an integer from 0 to 2147483647"
	wantWord   = "must be a string that is not empty"
	wantObject = "must be an object"
)

// wants says what each member must be.
var wants = map[string]string{
	"query": "must be a string", "job_type": wantWord, "tool": wantWord, "depth": wantCount, "max_steps": wantCount, "args": wantObject, "tags": wantObject,
}

func badMember(name, want string) error {
	return fmt.Errorf("%w: %s %s", ErrInvalidRequest, name, want)
}

// MarshalJSON gives the members that are set, on one line. The error is that
// of Validate.
func (r JobRequest) MarshalJSON() ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return encode(jobForm{r.Query, word(r.JobType), r.Depth, r.MaxSteps, word(r.Tool), jsontext.Value(r.Args), r.Tags}), nil
}

// UnmarshalJSON reads a JobRequest strictly; an unknown, duplicate or
// differently cased member, a value of another type (null included) and what
// Validate refuses are ErrInvalidRequest. Args keeps its bytes.
func (r *JobRequest) UnmarshalJSON(data []byte) error {
	var in jobForm
	if err := json.Unmarshal(data, &in, strictly); err != nil {
		return badJob(err)
	}
	out := JobRequest{in.Query, string(in.JobType), in.Depth, in.MaxSteps, string(in.Tool), stdjson.RawMessage(in.Args), in.Tags}
	if err := out.Validate(); err != nil {
		return err
	}
	*r = out
	return nil
}

// badJob words an error of the decoder for a person.
func badJob(err error) error {
	var at *json.SemanticError
	if !errors.As(err, &at) {
		return fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	name := at.JSONPointer.LastToken()
	if at.JSONPointer.Parent() == "/tags" {
		return badMember("tags: "+text.Clip(name, maxName, ""), "must be a string")
	}
	if want := wants[name]; want != "" {
		return badMember(name, want)
	}
	for known := range wants {
		if strings.EqualFold(name, known) {
			return fmt.Errorf("%w: member %q is spelled %q", ErrInvalidRequest, text.Clip(name, maxName, ""), known)
		}
	}
	if errors.Is(err, json.ErrUnknownName) {
		return fmt.Errorf("%w: member %q is unknown", ErrInvalidRequest, text.Clip(name, maxName, ""))
	}
	return fmt.Errorf("%w: no object", ErrInvalidRequest)
}

// gateway is the boundary at which requests of users come in.
func gateway(function string) ModuleRef {
	return ModuleRef{Tier: 0, Module: "gateway", Function: function}
}

// HTTPRequestToSignal makes the TEXT signal of a job: the query as text, the
// tags job_type, depth, max_steps and those of the job as far as they are given,
// source_type user, origin the gateway of tier 0 (seed 002, http_request_to_signal). It
// returns ErrInvalidRequest for what Validate refuses.
func HTTPRequestToSignal(r JobRequest, traceID string) (Signal, error) {
	if err := r.Validate(); err != nil {
		return Signal{}, err
	}
	tags := r.tags()
	if r.JobType != "" {
		tags[TagJobType] = r.JobType
	}
	if r.Depth > 0 {
		tags[TagDepth] = strconv.Itoa(r.Depth)
	}
	if r.MaxSteps > 0 {
		tags[TagMaxSteps] = strconv.Itoa(r.MaxSteps)
	}
	return CreateText(r.Query, gateway("http_request_to_signal"), traceID, tags)
}

// tags are those of each signal of r.
func (r *JobRequest) tags() map[string]string {
	tags := map[string]string{TagSourceType: "user"}
	maps.Copy(tags, r.Tags)
	return tags
}

// SchemaToolCall is the schema hint of a DATA signal that asks for a tool call.
const SchemaToolCall = "ToolCallRequest"

// ToolCallSignal makes the DATA signal that asks for the tool call of a job:
// {data: {tool, args}, schema: "ToolCallRequest", tool, args}, the child of
// parent and of its trace. SignalToToolCall gives back tool and args, the
// bytes of args as they are in r; in the JSON form args is without white
// space. It returns ErrInvalidRequest for what Validate refuses and for a job
// without a tool, ErrInvalidSignal for a parent that is no valid signal.
func ToolCallSignal(r JobRequest, parent Signal) (Signal, error) {
	if err := r.Validate(); err != nil {
		return Signal{}, err
	}
	if r.Tool == "" {
		return Signal{}, badMember("tool", wantWord)
	}
	if err := parent.check(); err != nil {
		return Signal{}, fmt.Errorf("%w: parent: %w", ErrInvalidSignal, err)
	}
	args := bytes.Trim(r.Args, " \t\r\n")
	if r.Args == nil {
		args = []byte("{}")
	}
	tags := r.tags()
	tags[TagTool] = r.Tool
	tool := jsonrpc.Quote(r.Tool)
	members := fmt.Appendf(nil, `"tool":%s,"args":%s`, tool, args)
	data := stdjson.RawMessage(slices.Concat([]byte("{"), members, []byte("}")))
	return CreateData(data, SchemaToolCall, gateway("tool_call_signal"), parent.form.TraceID, tags,
		WithParent(parent.form.ID), withMembers(append([]byte(","), members...)))
}
