package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/registry"
)

// script is what the tool "talk" says before it answers: first it tells, then it
// asks a round. Without a word the client's answers are its result.
type script struct {
	Home bool // what is said belongs to no request
	Tell []struct {
		Method string
		Params json.RawMessage
	}
	Ask []struct {
		Method string
		Params json.RawMessage
		// Progress is "pass" to have reports told as log messages, or "stop" to
		// give up with the first one.
		Progress string
	}
}

// talk is the behaviour of a server that has something to say on its own
// account.
func talk(ctx context.Context, _ *fakeGate, in *proxyCall, args raw) (raw, *proxyFailure) {
	var s script
	if err := json.Unmarshal(args, &s); err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return s.play(ctx, in, stop), nil
}

// play says what s holds and gives a result with the answers.
func (s *script) play(ctx context.Context, in *proxyCall, stop func()) raw {
	peer := in.Peer
	if s.Home {
		peer = in.Home
	}
	for _, t := range s.Tell {
		peer.Tell(t.Method, t.Params)
	}
	round := make([]registry.Question, len(s.Ask))
	for i, q := range s.Ask {
		round[i] = registry.Question{Key: fmt.Sprint(i), Method: q.Method, Params: q.Params}
		switch q.Progress {
		case "pass":
			round[i].Progress = func(params raw) { peer.Tell("notifications/message", params) }
		case "stop":
			round[i].Progress = func(raw) { stop() }
		}
	}
	var out bytes.Buffer
	out.WriteString(`{"content":[]`)
	for i, a := range peer.Ask(ctx, round) {
		fmt.Fprintf(&out, `,"result %d":%s`, i, orNull(a.Result))
		if a.Error != nil {
			fmt.Fprintf(&out, `,"error %d":%s`, i, a.Error)
		}
	}
	out.WriteString(`}`)
	return out.Bytes()
}

func orNull(r raw) raw {
	if r == nil {
		return raw("null")
	}
	return r
}
