package page

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/identity"
)

// A Handler answers a request, or returns the reason for a refusal, which the console
// writes. A Handler that returns an error must not have written anything.
type Handler func(w http.ResponseWriter, r *http.Request) error

// A CallerHandler is a handler that knows its caller.
type CallerHandler func(w http.ResponseWriter, r *http.Request, p policy.Principal) error

// Answers returns a handler that answers with what h returns.
func Answers[T any](h func(r *http.Request, p policy.Principal) (T, error)) CallerHandler {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		found, err := h(r, p)
		if err != nil {
			return err
		}
		return Answer(w, found)
	}
}

// NoQuery returns h for requests without a query, and refuses others.
func NoQuery(h CallerHandler) CallerHandler {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		if err := ReadQuery(r.URL, nil); err != nil {
			return err
		}
		return h(w, r, p)
	}
}

// Answer writes value as JSON.
func Answer(w http.ResponseWriter, value any) error { return AnswerAs(w, http.StatusOK, value) }

// AnswerAs is Answer with another status.
func AnswerAs(w http.ResponseWriter, status int, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a reader that went away needs no answer
	return nil
}

// Parts returns a handler that answers with the part of a list that ask returns, under a name.
func Parts[L interface{ Object(string) map[string]any }](name string, ask func(*http.Request, policy.Principal) (L, error)) CallerHandler {
	return Answers(func(r *http.Request, p policy.Principal) (map[string]any, error) {
		found, err := ask(r, p)
		return found.Object(name), err
	})
}

// Routes are the handlers of paths, by method.
type Routes map[string]map[string]Handler

// Problem is a refusal as problem details (RFC 7807). Type and Title follow
// from the other members.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Hint   string `json:"hint,omitempty"`
}

// Error returns the detail.
func (p Problem) Error() string { return p.Detail }

// NoTicket is the refusal of a ticket that does not exist, or that somebody may not see.
var NoTicket = Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no such ticket, or it is not yours to see",
	Hint: "toolgate approval list"}

// TooLarge is the refusal of a body that is larger than 64 KiB.
var TooLarge = Problem{Status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Detail: "the body may have 64 KiB"}

// refusals maps the errors of package approval to refusals.
var refusals = []struct {
	err error
	Problem
}{
	{approval.ErrNotFound, NoTicket},
	{approval.ErrSelfApproval, Problem{Status: http.StatusForbidden, Code: "SELF_APPROVAL", Detail: "nobody decides on a call of their own",
		Hint: "ask somebody else with one of the ticket's roles"}},
	{approval.ErrNotApprover, Problem{Status: http.StatusForbidden, Code: "NOT_APPROVER", Detail: "you have none of the roles that may decide on this call"}},
	{approval.ErrPersonRequired, Problem{Status: http.StatusForbidden, Code: "POLICY_DENIED", Detail: "a decision counts only where your credential and that of the requester name two persons",
		Hint: "approvals.require_person is set: name the person of each token, and person_claim of each issuer"}},
	{approval.ErrExpired, Problem{Status: http.StatusConflict, Code: "EXPIRED", Detail: "the ticket expired before it was decided",
		Hint: "when the agent calls again there is a new ticket"}},
	{approval.ErrNotPending, Problem{Status: http.StatusConflict, Code: "NOT_PENDING", Detail: "the ticket is not waiting for a decision",
		Hint: "toolgate approval show says how it was decided"}},
	{approval.ErrNotUnknown, Problem{Status: http.StatusConflict, Code: "NOT_UNKNOWN", Detail: "the outcome of the call is not in doubt",
		Hint: "toolgate approval show shows its outcome"}},
	{approval.ErrAlreadyVoted, Problem{Status: http.StatusConflict, Code: "ALREADY_VOTED", Detail: "you have voted on this ticket already"}},
	{approval.ErrStaleDigest, Problem{Status: http.StatusConflict, Code: "STALE_DIGEST", Detail: "the decision is about other arguments than the ticket has",
		Hint: "read the ticket again and decide on what it shows"}},
	{approval.ErrDoubt, Problem{Status: http.StatusConflict, Code: "IN_DOUBT", Detail: "the state cannot be relied on for this ticket: its outcome counts as unknown",
		Hint: "toolgate approval show says why; find out whether the call took effect"}},
	{approval.ErrComparing, Problem{Status: http.StatusServiceUnavailable, Code: "APPROVALS_CLOSED", Detail: "the state is being compared with the audit trail",
		Hint: "try again in a few seconds; /readyz?verbose shows when approvals are open"}},
	{approval.ErrReplaced, Problem{Status: http.StatusServiceUnavailable, Code: "APPROVALS_CLOSED", Detail: "the state was deleted or replaced while toolgate was using it",
		Hint: "restart toolgate"}},
	{approval.ErrReasonRequired, Problem{Status: http.StatusUnprocessableEntity, Code: "REASON_REQUIRED", Detail: "a reason is needed",
		Hint: "give a reason: it is kept, and the agent receives it"}},
}

// ProblemOf returns the refusal for err, INTERNAL_ERROR for an error that it does not know.
func ProblemOf(err error) Problem {
	if p, ok := errors.AsType[Problem](err); ok {
		return p
	}
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			return known.Problem
		}
	}
	if store.Away(err) {
		detail := "the state of toolgate cannot be reached; nothing was changed, as far as is known"
		if identity.KindOf(err) == identity.Unfetched {
			detail = "the keys of the token's issuer cannot be had yet"
		}
		return Problem{Status: http.StatusServiceUnavailable, Code: "STORE_UNAVAILABLE", Detail: detail, Hint: "try again in a few seconds"}
	}
	return Problem{Status: http.StatusInternalServerError, Code: "INTERNAL_ERROR", Detail: "internal error", Hint: "the log says why"}
}

// BadRequest is the refusal of a request that cannot be read.
func BadRequest(detail, hint string) error {
	return Problem{Status: http.StatusBadRequest, Code: "BAD_REQUEST", Detail: detail, Hint: hint}
}
