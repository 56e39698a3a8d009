package console

import (
	"context"
	"encoding/json"
	"iter"
	"net"
	"net/http"
	"slices"

	"github.com/toolgate/toolgate/policy"
)

// The names of acts.
const (
	ActSignIn        = "sign_in"
	ActSignInRefused = "sign_in_refused"
	ActSignOut       = "sign_out"
	ActVoteRefused   = "vote_refused"
	ActTrailRead     = "trail_read"
	ActArgumentsRead = "arguments_read"
	ActServerRestart = "server_restarted"
	ActProfile       = "profile_taken"
	ActStop          = "calls_stopped"
	ActResume        = "calls_resumed"
	ActPolicyTried   = "policy_tried"
	ActTrailVerified = "trail_verified"
	ActTrailExported = "trail_exported"

	ActDefinitionAccepted = "definition_accepted"
	ActDefinitionRefused  = "definition_refused"
	ActSessionEnded       = "session_ended"
	ActTokenMade          = "token_made"
	ActTokenRevoked       = "token_revoked"

	ActConnect        = "connection_begun"
	ActConnected      = "connection_made"
	ActConnectRefused = "connection_refused"
	ActDisconnect     = "connection_revoked"
)

// An Act is something that a person did or tried at this listener and that changed no
// ticket.
type Act struct {
	Name       string
	Principal  policy.Principal // the zero Principal is nobody
	Source     string           // IP address that the request came from
	Credential string           // bearer, session, token or provider
	Ticket     string           // that the act is about, "" = none
	Server     string           // that the act is about, "" = none
	Tool       string           // of Server, by its name there, that the act is about; "" = none
	Call       string           // whose arguments are read, "" = none
	Query      string           // what was searched for, without values of arguments; "" = nothing
	Profile    string           // that was taken, "" = none
	Connection string           // that was revoked, "" = none
	Stop       string           // what was stopped and why, or which stop ended; "" = none
	Reason     string           // why it was refused, "" = it was not
	Why        string           // what it was for, "" = not said
	Added      []string         // things that it brings, as the record names them
	Removed    []string         // things that it takes away
}

// codeUnrecorded is the code of what is not done because it cannot be recorded.
const codeUnrecorded = "AUDIT_UNAVAILABLE"

// record records an act of the sender of r, whom a page knows by the session and all else by a bearer token
// unless the act says otherwise. What must not happen without a record fails
// with its error; for refusals the log has the cause.
func (c *Console) record(r *http.Request, a Act) error {
	if c.opts.Record == nil {
		return nil
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		a.Source = host
	}
	if a.Credential == "" {
		a.Credential = "bearer"
		if ours(r.URL.Path) {
			a.Credential = "session"
		}
	}
	if err := c.opts.Record(a); err != nil {
		c.opts.Log.Error("recording an act", "act", a.Name, "subject", a.Principal.Subject, "error", err)
		return problem{Status: http.StatusServiceUnavailable, Code: codeUnrecorded, Detail: "this cannot be recorded, so it is not done", Hint: "the log says why"}
	}
	return nil
}

// recordVote records a refused vote or finding on a ticket.
func (c *Console) recordVote(r *http.Request, p policy.Principal, ticket string, err error) {
	if err != nil {
		_ = c.record(r, Act{Name: ActVoteRefused, Principal: p, Ticket: Visible(ticket), Reason: problemOf(err).Code})
	}
}

var notAuditor = problem{Status: http.StatusForbidden, Code: "NOT_AUDITOR", Detail: "the policy does not let you read the audit trail", Hint: "see data.trail of the policy"}

// trailRight returns which records p may read. It fails closed: the log has the cause.
func (c *Console) trailRight(ctx context.Context, p policy.Principal) policy.TrailRight {
	if c.opts.TrailRight == nil {
		return policy.TrailNone
	}
	right, err := c.opts.TrailRight(ctx, p)
	if err != nil {
		c.opts.Log.Error("asking who reads the trail", "subject", p.Subject, "error", err)
		return policy.TrailNone
	}
	return right
}

// readable returns the lines of the trail that p may read: the last n of them, and with
// follow those written later. Reading is recorded first.
func (c *Console) readable(ctx context.Context, r *http.Request, p policy.Principal, n int, follow bool) (iter.Seq2[[]byte, error], error) {
	right := c.trailRight(ctx, p)
	act := Act{Name: ActTrailRead, Principal: p}
	if right == policy.TrailNone {
		return nil, c.recordRefusal(r, act, notAuditor)
	}
	if err := c.record(r, act); err != nil {
		return nil, err
	}
	if right == policy.TrailAll {
		return c.opts.Audit(ctx, n, follow), nil
	}
	return c.decidable(ctx, p, n, follow), nil
}

// recordRefusal records that act was refused, and returns err, which says why. The log has the cause
// when that cannot be recorded.
func (c *Console) recordRefusal(r *http.Request, act Act, err error) error {
	act.Reason = problemOf(err).Code
	_ = c.record(r, act)
	return err
}

// mayDecide returns a function that reports whether p may decide on a ticket. It remembers its answers.
func (c *Console) mayDecide(ctx context.Context, p policy.Principal) func(ticket string) bool {
	may := map[string]bool{}
	return func(ticket string) bool {
		if _, known := may[ticket]; !known {
			k, err := c.opts.Approvals.Get(ctx, ticket)
			may[ticket] = err == nil && k.MayDecide(p)
		}
		return may[ticket]
	}
}

// decidable yields the records of the calls that p may decide on: the last n among the
// last maxLines of all, and with follow later ones.
func (c *Console) decidable(ctx context.Context, p policy.Principal, n int, follow bool) iter.Seq2[[]byte, error] {
	may := c.mayDecide(ctx, p)
	mine := func(line []byte) bool {
		var record struct{ Ticket string }
		return json.Unmarshal(line, &record) == nil && record.Ticket != "" && may(record.Ticket)
	}
	return func(yield func([]byte, error) bool) {
		var last [][]byte
		for line, err := range c.opts.Audit(ctx, maxLines, false) {
			if err != nil {
				yield(nil, err)
				return
			}
			if mine(line) {
				last = append(last, slices.Clone(line))
			}
		}
		for _, line := range last[max(0, len(last)-n):] {
			if !yield(line, nil) {
				return
			}
		}
		if !follow {
			return
		}
		for line, err := range c.opts.Audit(ctx, 0, true) {
			if (err != nil || mine(line)) && !yield(line, err) {
				return
			}
		}
	}
}
