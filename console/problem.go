package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/approval"
)

// problem is a refusal as problem details (RFC 7807). Type and Title follow
// from the other members.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Hint   string `json:"hint,omitempty"`
}

// Error returns the detail.
func (p problem) Error() string { return p.Detail }

var notFound = problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no such ticket, or it is not yours to see",
	Hint: "toolgate approval list"}

var tooLargeBody = problem{Status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Detail: "the body may have 64 KiB"}

// refusals maps the errors of package approval to refusals.
var refusals = []struct {
	err error
	problem
}{
	{approval.ErrNotFound, notFound},
	{approval.ErrSelfApproval, problem{Status: http.StatusForbidden, Code: "SELF_APPROVAL", Detail: "nobody decides on a call of their own",
		Hint: "ask somebody else with one of the ticket's roles"}},
	{approval.ErrNotApprover, problem{Status: http.StatusForbidden, Code: "NOT_APPROVER", Detail: "you have none of the roles that may decide on this call"}},
	{approval.ErrPersonRequired, problem{Status: http.StatusForbidden, Code: "POLICY_DENIED", Detail: "a decision counts only where your credential and that of the requester name two persons",
		Hint: "approvals.require_person is set: name the person of each token, and person_claim of each issuer"}},
	{approval.ErrExpired, problem{Status: http.StatusConflict, Code: "EXPIRED", Detail: "the ticket expired before it was decided",
		Hint: "when the agent calls again there is a new ticket"}},
	{approval.ErrNotPending, problem{Status: http.StatusConflict, Code: "NOT_PENDING", Detail: "the ticket is not waiting for a decision",
		Hint: "toolgate approval show says how it was decided"}},
	{approval.ErrNotUnknown, problem{Status: http.StatusConflict, Code: "NOT_UNKNOWN", Detail: "the outcome of the call is not in doubt",
		Hint: "toolgate approval show shows its outcome"}},
	{approval.ErrAlreadyVoted, problem{Status: http.StatusConflict, Code: "ALREADY_VOTED", Detail: "you have voted on this ticket already"}},
	{approval.ErrStaleDigest, problem{Status: http.StatusConflict, Code: "STALE_DIGEST", Detail: "the decision is about other arguments than the ticket has",
		Hint: "read the ticket again and decide on what it shows"}},
	{approval.ErrDoubt, problem{Status: http.StatusConflict, Code: "IN_DOUBT", Detail: "the state cannot be relied on for this ticket: its outcome counts as unknown",
		Hint: "toolgate approval show says why; find out whether the call took effect"}},
	{approval.ErrComparing, problem{Status: http.StatusServiceUnavailable, Code: "APPROVALS_CLOSED", Detail: "the state is being compared with the audit trail",
		Hint: "try again in a few seconds; /readyz?verbose shows when approvals are open"}},
	{approval.ErrReplaced, problem{Status: http.StatusServiceUnavailable, Code: "APPROVALS_CLOSED", Detail: "the state was deleted or replaced while toolgate was using it",
		Hint: "restart toolgate"}},
	{approval.ErrReasonRequired, problem{Status: http.StatusUnprocessableEntity, Code: "REASON_REQUIRED", Detail: "a reason is needed",
		Hint: "give a reason: it is kept, and the agent receives it"}},
}

func problemOf(err error) problem {
	if p, ok := errors.AsType[problem](err); ok {
		return p
	}
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			return known.problem
		}
	}
	if store.Away(err) {
		return problem{Status: http.StatusServiceUnavailable, Code: "STORE_UNAVAILABLE", Detail: "the state of toolgate cannot be reached; nothing was changed, as far as is known",
			Hint: "try again in a few seconds"}
	}
	return problem{Status: http.StatusInternalServerError, Code: "INTERNAL_ERROR", Detail: "internal error", Hint: "the log says why"}
}

func badRequest(detail, hint string) error {
	return problem{Status: http.StatusBadRequest, Code: "BAD_REQUEST", Detail: detail, Hint: hint}
}

// answer writes value as JSON.
func answer(w http.ResponseWriter, value any) error { return answerAs(w, http.StatusOK, value) }

// answerAs is answer with another status.
func answerAs(w http.ResponseWriter, status int, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a reader that went away needs no answer
	return nil
}

// readQuery reads the parameters of a query, each with the function of its name. A
// parameter that is not known or given twice is refused: a filter that was silently
// ignored would show too much.
func readQuery(u *url.URL, known map[string]func(value string) error) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return badRequest("the query cannot be read", "")
	}
	for name, values := range query {
		read := known[name]
		switch {
		case read == nil:
			return badRequest(fmt.Sprintf("there is no parameter %q", Visible(name)), strings.Join(slices.Sorted(maps.Keys(known)), ", ")+" are known")
		case len(values) > 1:
			return badRequest(fmt.Sprintf("%q is given twice", Visible(name)), "")
		}
		if err := read(values[0]); err != nil {
			return err
		}
	}
	return nil
}

// number reads a number from least to most into n, and refuses others with detail.
func number[N int | int64](n *N, least, most int64, detail string) func(string) error {
	return func(value string) error {
		read, err := strconv.ParseInt(value, 10, 64)
		if err != nil || read < least || read > most {
			return badRequest(detail, "")
		}
		*n = N(read)
		return nil
	}
}
