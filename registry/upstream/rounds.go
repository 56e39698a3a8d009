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

// stateless makes a request on a connection without a handshake, and the first
// time what we answer in the server's place. The server may ask in place of
// answering: then the client is asked, and the same request sent again with what
// it said.
//
//	request ---> input_required: questions, state
//	             Peer.Ask(questions)
//	request + answers + state ---> input_required … | result
//
// Each round is a request of its own. The time that the client takes does not
// count against the deadline.
func (s *Server) stateless(ctx context.Context, sess *session, r request) (json.RawMessage, *Error) {
	if result, e, ok := sess.conn.answeredHere(r.method); ok {
		return result, e
	}
	if result, e, ok := sess.subscribed(ctx, r); ok {
		return result, e
	}
	r.bound = sess.parametersOf(r.tool)
	params := r.params
	for n := 1; ; n++ {
		result, e := sess.conn.do(ctx, r)
		switch {
		case e != nil && n == 1:
			return nil, sess.conn.judge(e)
		case e != nil: // to begin anew would be to do twice what was done so far
			e.Sent, e.Lost = true, false
			return nil, e
		}
		if kind, _ := jsonrpc.Get(result, "resultType"); string(kind) != `"input_required"` {
			return result, nil
		}
		if n == maxRounds {
			return nil, failed(fmt.Errorf("the server asked %d times and did not answer", n))
		}
		if r.params, e = sess.conn.answered(ctx, r, params, result); e != nil {
			return nil, e
		}
	}
}

// answered asks what the server wants to know, and gives the params with which
// the request is sent again. They are those of the first time but for the
// answers and the server's own state.
func (c *conn) answered(ctx context.Context, r request, params, result json.RawMessage) (json.RawMessage, *Error) {
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
	again := []member{{"inputResponses", nil}, {"requestState", state}}
	if len(round) > 0 {
		responses, e := c.ask(ctx, r, round)
		if e != nil {
			return nil, e
		}
		again[0].value = responses
	}
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	next, err := setAll(params, again...)
	if err != nil {
		return nil, failed(fmt.Errorf("adding the answers: %w", err))
	}
	return next, nil
}

// questions reads inputRequests, in the order of the text.
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
		name, _ := jsonrpc.Get(raw, "method")
		method, ok := jsonrpc.Text(name)
		if !ok {
			return nil, fmt.Errorf("%w: the question %q has no method", mcpclient.ErrMalformed, key)
		}
		params, _ := jsonrpc.Get(raw, "params")
		// Nobody could report under a token: the request that asked is over.
		params, _ = withoutToken(params)
		round = append(round, Question{Key: key, Method: method, Params: params})
	}
	return round, nil
}

// ask puts a round to the client and gives inputResponses.
func (c *conn) ask(ctx context.Context, r request, round []Question) (json.RawMessage, *Error) {
	if c.client == nil || r.from.Peer == nil {
		e := rpcFault(codeCapability, fmt.Sprintf("the server asks for %s, and there is no client to ask", round[0].Method),
			object(member{"requiredCapabilities", required(round)}))
		e.Sent = true
		return nil, e
	}
	r.clock.hold()
	within, stop := context.WithTimeout(ctx, maxQuestion)
	answers := r.from.Peer.Ask(within, round)
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
	out := make([]member, len(round))
	for i, a := range answers {
		result, e := response(round[i], a)
		if e != nil {
			return nil, e
		}
		out[i] = member{round[i].Key, result}
	}
	responses, err := setAll(json.RawMessage(`{}`), out...)
	if err != nil {
		return nil, failed(fmt.Errorf("putting the answers together: %w", err))
	}
	return responses, nil
}

// response gives what the server gets for one answer. inputResponses has no
// room for errors: a question to a person that came to nothing is one that the
// person left without a choice, and for a model's words or a list of roots
// there is no such word, so the request ends with the error.
func response(q Question, a Answer) (json.RawMessage, *Error) {
	switch {
	case a.Error == nil && a.Result != nil:
		return a.Result, nil
	case q.Method == "elicitation/create":
		return json.RawMessage(`{"action":"cancel"}`), nil
	}
	return nil, &Error{Kind: Failed, Sent: true, RPC: a.Error, Err: fmt.Errorf("the client did not answer %s", q.Method)}
}

// required names the capabilities that a client needs for a round.
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
