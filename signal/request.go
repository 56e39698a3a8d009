package signal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// JobRequest is what an HTTP client asks of the kernel (seed 002,
// http_request_to_signal). Its JSON form is {query?, job_type?, depth?,
// max_steps?, tool?, args?}; a zero field is not given.
type JobRequest struct {
	Query    string          // what the user asks, in words; required without a tool
	JobType  string          // what kind of job it is
	Depth    int             // how deep to go, 0 to 2147483647
	MaxSteps int             // at most so many steps, 0 to 2147483647
	Tool     string          // the tool to call, by the name agents use
	Args     json.RawMessage // a JSON object for that tool, nil for {}
}

// Validate returns ErrInvalidRequest, with the member, when r asks for
// nothing, has a number out of range, has args without a tool or args that
// are no JSON object with one reading.
func (r JobRequest) Validate() error {
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

// maxName bounds, in bytes, what an error repeats of a stranger's member name.
const maxName = 64

const (
	wantCount  = "must be an integer from 0 to 2147483647"
	wantString = "must be a string"
	wantWord   = "must be a string that is not empty"
	wantObject = "must be an object"
)

func badMember(name, want string) error {
	return fmt.Errorf("%w: %s %s", ErrInvalidRequest, name, want)
}

// MarshalJSON gives the members that are set, on one line. The error is that
// of Validate.
func (r JobRequest) MarshalJSON() ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	dst := appendQuote([]byte(`{"query":`), r.Query)
	if r.JobType != "" {
		dst = appendQuote(append(dst, `,"job_type":`...), r.JobType)
	}
	if r.Depth > 0 {
		dst = strconv.AppendInt(append(dst, `,"depth":`...), int64(r.Depth), 10)
	}
	if r.MaxSteps > 0 {
		dst = strconv.AppendInt(append(dst, `,"max_steps":`...), int64(r.MaxSteps), 10)
	}
	if r.Tool != "" {
		dst = appendQuote(append(dst, `,"tool":`...), r.Tool)
	}
	if r.Args != nil {
		args, err := strictValue(bytes.Clone(r.Args))
		if err != nil {
			return nil, fmt.Errorf("%w: args: %w", ErrInvalidRequest, err)
		}
		dst = append(append(dst, `,"args":`...), args...)
	}
	return append(dst, '}'), nil
}

// UnmarshalJSON reads a JobRequest strictly; an unknown, duplicate or
// differently cased member, a value of another type (null included) and what
// Validate refuses are ErrInvalidRequest. Args keeps its bytes.
func (r *JobRequest) UnmarshalJSON(data []byte) error {
	whole, err := strictValue(bytes.Clone(data))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	if whole[0] != '{' {
		return fmt.Errorf("%w: no object", ErrInvalidRequest)
	}
	var out JobRequest
	p := newScanner(string(data))
	if p.bad {
		return fmt.Errorf("%w: nested too deeply", ErrInvalidRequest)
	}
	p.each(func(name string) {
		value := p.value()
		if err == nil {
			err = out.set(name, value)
		}
	})
	if err == nil {
		err = out.Validate()
	}
	if err != nil {
		return err
	}
	*r = out
	return nil
}

func (r *JobRequest) set(name, raw string) error {
	switch name {
	case "query":
		return setText(&r.Query, name, raw, wantString, true)
	case "job_type":
		return setText(&r.JobType, name, raw, wantWord, false)
	case "tool":
		return setText(&r.Tool, name, raw, wantWord, false)
	case "depth":
		return setCount(&r.Depth, name, raw)
	case "max_steps":
		return setCount(&r.MaxSteps, name, raw)
	case "args":
		if raw[0] != '{' {
			return badMember(name, wantObject)
		}
		r.Args = json.RawMessage(raw)
		return nil
	}
	for _, known := range []string{"query", "job_type", "tool", "depth", "max_steps", "args"} {
		if strings.EqualFold(name, known) {
			return fmt.Errorf("%w: member %q is spelled %q", ErrInvalidRequest, cut(name, maxName), known)
		}
	}
	return fmt.Errorf("%w: member %q is unknown", ErrInvalidRequest, cut(name, maxName))
}

func setText(into *string, name, raw, want string, empty bool) error {
	text, ok := unquote(raw)
	if !ok || text == "" && !empty {
		return badMember(name, want)
	}
	*into = text
	return nil
}

func setCount(into *int, name, raw string) error {
	n, err := strconv.ParseUint(raw, 10, 31)
	if err != nil {
		return badMember(name, wantCount)
	}
	*into = int(n)
	return nil
}

// gateway is the boundary at which requests of users come in.
func gateway(function string) ModuleRef {
	return ModuleRef{Tier: 0, Module: "gateway", Function: function}
}

// HTTPRequestToSignal makes the TEXT signal of a job: the query as text, the
// tags job_type, depth and max_steps as far as they are given, source_type
// user, origin the gateway of tier 0 (seed 002, http_request_to_signal). It
// returns ErrInvalidRequest for what Validate refuses.
func HTTPRequestToSignal(r JobRequest, traceID string) (Signal, error) {
	if err := r.Validate(); err != nil {
		return Signal{}, err
	}
	tags := map[string]string{TagSourceType: "user"}
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
	args := strings.Trim(string(r.Args), " \t\r\n")
	if args == "" {
		args = "{}"
	}
	tags := map[string]string{TagSourceType: "user", TagTool: r.Tool}
	return create(Data, callBody(r.Tool, args), gateway("tool_call_signal"), parent.traceID, tags, parent.id)
}
