package mcp

import (
	"crypto/hmac"
	"encoding/base64"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/signal"
)

// With other replicas, clients without a session get the ID of a server's task with the replica that
// runs it, for the principal that began it:
//
//	ID "." base64url(Options.Replica, HMAC)

const (
	taskMACBytes = 16
	taskEnding   = 1 + (8+taskMACBytes)/3*4 // of what follows the server's ID
)

// taskID returns the ID under which who gets the task with an ID of a server at a replica.
func (n *stateSigner) taskID(id string, replica [8]byte, who policy.Principal) string {
	sum := digestOf("task", id, string(replica[:]), who.Subject, who.Tenant)
	return id + "." + base64.RawURLEncoding.EncodeToString(append(replica[:], n.mac(sum[:])[:taskMACBytes]...))
}

// readTaskID returns the server's ID and the replica of a task. It returns false for an ID that
// taskID did not return for who.
func (n *stateSigner) readTaskID(text string, who policy.Principal) (id string, replica [8]byte, ok bool) {
	end := len(text) - taskEnding
	if end < 0 {
		return "", replica, false
	}
	raw, _ := base64.RawURLEncoding.DecodeString(text[end+1:])
	copy(replica[:], raw)
	return text[:end], replica, hmac.Equal([]byte(text), []byte(n.taskID(text[:end], replica, who)))
}

// ownTask gives x the server's ID of the task that it is about. It refuses x when the task was at a
// replica that is gone. Any other ID is for the gate to judge.
func (s *statelessServer) ownTask(x *exchange) (a answer, ok bool) {
	if s.opts.PassOn == nil || x.row.named != "taskId" {
		return answer{}, true
	}
	m := *x.call.Message
	text, _ := m.TextParam("taskId")
	id, replica, given := s.signer.readTaskID(text, x.call.Principal)
	switch {
	case !given:
		return answer{}, true
	case replica != s.opts.Replica:
		return s.refuse(x, signal.CodeToolFailed, "the replica that ran the task is gone, and the task with it; whether the task took effect is unknown"), false
	}
	m.SetParams(setIn(m.Params, jsonrpc.Quote(id), "taskId"))
	x.call.Message = &m
	return answer{}, true
}

// passOn passes x on to the replica that has its call or its task, and reports whether it is
// answered.
func (s *statelessServer) passOn(w http.ResponseWriter, r *http.Request, x *exchange, body []byte) bool {
	if x.denied != nil || x.call.Message == nil {
		return false
	}
	var owner [8]byte
	var ok bool
	if x.row.named == "taskId" {
		text, _ := x.call.Message.TextParam("taskId")
		_, owner, ok = s.signer.readTaskID(text, x.call.Principal)
	} else {
		text, _ := jsonrpc.TextAt(x.call.Message.Params, "requestState")
		c, err := s.signer.read(text)
		copy(owner[:], c.Call[:])
		ok = err == nil
	}
	return ok && owner != s.opts.Replica && s.opts.PassOn(w, r, body, owner)
}
