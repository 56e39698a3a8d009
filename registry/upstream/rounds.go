package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
)

const (
	// maxRounds is how often a server may ask before it has to answer.
	maxRounds = 16
	// maxQuestions is how much it may ask at once.
	maxQuestions = 64
)

// mayAsk are the methods that a server may answer with a question (MCP
// 2026-07-28 basic/patterns/mrtr, "Supported Requests").
var mayAsk = map[string]bool{"tools/call": true, "prompts/get": true, "resources/read": true}

// answered asks the client the server's questions, and returns the params of
// the next round: those of the first, with the answers and the server's state.
func (c *conn) answered(ctx context.Context, r *request, params, result json.RawMessage) (json.RawMessage, *Error) {
	if !mayAsk[r.method] {
		return nil, failed(fmt.Errorf("%w: a question in answer to %s", mcpclient.ErrMalformed, r.method))
	}
	state, hasState := jsonrpc.Get(result, "requestState")
	round, err := questions(result)
	if err == nil && len(round) == 0 && !hasState {
		err = fmt.Errorf("%w: neither questions nor a state", mcpclient.ErrMalformed)
	}
	if err != nil {
		return nil, failed(err)
	}
	again := []jsonrpc.Change{{Name: "inputResponses"}, {Name: "requestState", Value: state}}
	if len(round) > 0 {
		responses, e := c.ask(ctx, r, round)
		if e != nil {
			return nil, e
		}
		again[0].Value = responses
	}
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	next, err := jsonrpc.Edit(params, again...)
	if err != nil {
		return nil, failed(fmt.Errorf("adding the answers: %w", err))
	}
	return next, nil
}

// questions reads inputRequests in the order of the text.
func questions(result json.RawMessage) ([]Question, error) {
	requests, ok := jsonrpc.Get(result, "inputRequests")
	if !ok || string(requests) == "null" {
		return nil, nil
	}
	if requests[0] != '{' {
		return nil, fmt.Errorf("%w: inputRequests is no object", mcpclient.ErrMalformed)
	}
	var round []Question
	for key, raw := range jsonrpc.Members(requests) {
		if len(round) == maxQuestions {
			return nil, fmt.Errorf("the server asks more than %d questions at once", maxQuestions)
		}
		method, ok := jsonrpc.TextAt(raw, "method")
		if !ok {
			return nil, fmt.Errorf("%w: the question %q has no method", mcpclient.ErrMalformed, key)
		}
		params, _ := jsonrpc.Get(raw, "params")
		// Nobody could report under a token: the request that asked is over.
		params, _ = withoutMeta(params, "progressToken")
		round = append(round, Question{Key: key, Method: method, Params: params})
	}
	return round, nil
}

// ask puts a round to the client and returns inputResponses.
func (c *conn) ask(ctx context.Context, r *request, round []Question) (json.RawMessage, *Error) {
	if c.client == nil || r.From.Peer == nil {
		e := rpcFault(codeCapability, fmt.Sprintf("the server asks for %s, and there is no client to ask", round[0].Method),
			object(member{"requiredCapabilities", required(round)}))
		e.Sent = true
		return nil, e
	}
	r.clock.hold()
	within, stop := context.WithTimeout(ctx, maxQuestion)
	answers := r.From.Peer.Ask(within, round)
	stop()
	r.clock.release()
	switch {
	case ctx.Err() != nil:
		e := ctxError(ctx)
		e.Sent = true
		return nil, e
	case len(answers) != len(round):
		return nil, failed(errors.New("the client did not answer every question"))
	}
	out := make([]jsonrpc.Change, len(round))
	for i, a := range answers {
		result, e := response(round[i], a)
		if e != nil {
			return nil, e
		}
		out[i] = jsonrpc.Change{Name: round[i].Key, Value: result}
	}
	responses, err := jsonrpc.Edit(json.RawMessage(`{}`), out...)
	if err != nil {
		return nil, failed(fmt.Errorf("putting the answers together: %w", err))
	}
	return responses, nil
}

// response returns the member of inputResponses for one answer. There is no
// room for errors in it: an unanswered elicitation becomes "cancel", and for a
// failed sampling or roots request the call ends with the error.
func response(q Question, a Answer) (json.RawMessage, *Error) {
	switch {
	case a.Error == nil && a.Result != nil:
		return a.Result, nil
	case q.Method == "elicitation/create":
		return json.RawMessage(`{"action":"cancel"}`), nil
	}
	return nil, &Error{Kind: Failed, Sent: true, RPC: a.Error, Err: fmt.Errorf("the client did not answer %s", q.Method)}
}

// required returns the capabilities that a client needs for a round.
func required(round []Question) json.RawMessage {
	names := map[string]string{"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
	out := json.RawMessage(`{}`)
	for _, q := range round {
		if name := names[q.Method]; name != "" {
			out, _ = jsonrpc.Set(out, name, json.RawMessage(`{}`)) // an object of our own takes it
		}
	}
	return out
}
