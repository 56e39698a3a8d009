package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// bodyBytes is the largest request body.
const bodyBytes = 64 << 10

// ticket is approval.Ticket for people. Texts that others wrote are in their
// visible form; arguments is the value, arguments_text what to show.
type ticket struct {
	ID             string          `json:"id"`
	State          approval.State  `json:"state"`
	Requester      string          `json:"requester"`
	RequesterRoles []string        `json:"requester_roles"`
	Client         string          `json:"client,omitempty"`
	Tenant         string          `json:"tenant,omitempty"`
	Server         string          `json:"server"`
	Tool           string          `json:"tool"`
	Exposed        string          `json:"exposed"`
	Fingerprint    string          `json:"fingerprint"`
	Digest         string          `json:"digest"`
	Arguments      json.RawMessage `json:"arguments,omitempty"`
	ArgumentsText  string          `json:"arguments_text"`
	ArgumentBytes  int             `json:"argument_bytes"`
	Revision       string          `json:"policy_revision"`
	Rule           string          `json:"rule"`
	Reason         string          `json:"reason"`
	Roles          []string        `json:"roles"`
	Quorum         int             `json:"quorum"`
	Created        time.Time       `json:"created"`
	Expires        time.Time       `json:"expires"`
	DecisionID     string          `json:"decision_id"`
	TraceID        string          `json:"trace_id"`
	DecidedBy      string          `json:"decided_by,omitempty"`
	DecisionReason string          `json:"decision_reason,omitempty"`
	Note           string          `json:"note,omitempty"`
	Attached       int             `json:"attached"`
	MayDecide      bool            `json:"may_decide"` // whoever asks, as things stand
	Votes          []ballot        `json:"votes,omitempty"`
	History        []change        `json:"history,omitempty"`
}

type ballot struct {
	Subject string    `json:"subject"`
	Approve bool      `json:"approve"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
}

type change struct {
	At     time.Time      `json:"at"`
	Who    string         `json:"who"`
	From   approval.State `json:"from,omitempty"`
	To     approval.State `json:"to"`
	Reason string         `json:"reason,omitempty"`
	Digest string         `json:"digest"`
}

// view shows k to p.
func view(k approval.Ticket, p policy.Principal) ticket {
	t := ticket{
		ID: k.ID, State: k.State, Requester: Visible(k.Principal.Subject), RequesterRoles: k.Principal.Roles,
		Client: Visible(k.Principal.Client), Tenant: Visible(k.Principal.Tenant),
		Server: Visible(k.Server), Tool: Visible(k.Tool), Exposed: Visible(k.Exposed), Fingerprint: k.Fingerprint, Digest: k.Digest,
		ArgumentsText: argumentsText(k), ArgumentBytes: k.ArgumentBytes,
		Revision: k.Revision, Rule: Visible(k.Rule), Reason: Visible(k.Reason), Roles: k.Roles, Quorum: k.Quorum,
		Created: k.Created, Expires: k.Expires, DecisionID: k.DecisionID, TraceID: k.TraceID,
		DecidedBy: Visible(k.DecidedBy), DecisionReason: Visible(k.DecisionReason), Note: Visible(k.Note), Attached: k.Attached,
		MayDecide: k.State == approval.StateProposed && k.MayDecide(p),
	}
	if json.Valid(k.Arguments) {
		t.Arguments = k.Arguments
	}
	for _, b := range k.Votes {
		t.Votes = append(t.Votes, ballot{Subject: Visible(b.Subject), Approve: b.Approve, Reason: Visible(b.Reason), At: b.At})
	}
	for _, c := range k.History {
		t.History = append(t.History, change{At: c.At, Who: Visible(c.Who), From: c.From, To: c.To, Reason: Visible(c.Reason), Digest: c.Digest})
	}
	return t
}

func argumentsText(k approval.Ticket) string {
	if k.Arguments == nil && k.ArgumentBytes > 0 {
		return fmt.Sprintf("(%d bytes, see the ticket)", k.ArgumentBytes)
	}
	return shorten(Visible(string(k.Arguments)))
}

func (c *Console) list(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	f, err := filter(r.URL)
	if err != nil {
		return err
	}
	f.Viewer = p
	found, err := c.opts.Approvals.List(r.Context(), f)
	if err != nil {
		return err
	}
	tickets := []ticket{}
	for _, k := range found {
		if k.VisibleTo(p) {
			tickets = append(tickets, view(k, p))
		}
	}
	return answer(w, map[string]any{"approvals": tickets})
}

// filter reads the query of a list. A parameter that is not known is refused:
// a filter that was silently ignored would show too much.
func filter(u *url.URL) (f approval.Filter, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return f, badRequest("the query cannot be read", "")
	}
	for name, values := range query {
		switch value := values[0]; {
		case len(values) > 1:
			return f, badRequest(fmt.Sprintf("%q is given twice", name), "")
		case name == "state" && (value == "" || slices.Contains(approval.States(), approval.State(value))):
			f.State = approval.State(value)
		case name == "state":
			return f, badRequest(fmt.Sprintf("%q is no state", value), "states are "+stateNames())
		case name == "limit":
			if f.Limit, err = strconv.Atoi(value); err != nil || f.Limit < 1 || f.Limit > 1000 {
				return f, badRequest("limit is a number from 1 to 1000", "")
			}
		default:
			return f, badRequest(fmt.Sprintf("there is no parameter %q", name), "state and limit are known")
		}
	}
	return f, nil
}

func stateNames() string {
	var names []string
	for _, s := range approval.States() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (c *Console) show(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	k, err := c.visible(r, p)
	if err != nil {
		return err
	}
	return answer(w, view(k, p))
}

// visible gives the ticket that the path names. One that p may not see looks
// exactly like one that does not exist.
func (c *Console) visible(r *http.Request, p policy.Principal) (approval.Ticket, error) {
	k, err := c.opts.Approvals.Get(r.Context(), r.PathValue("id"))
	if err == nil && !k.VisibleTo(p) {
		err = notFound
	}
	return k, err
}

func (c *Console) decide(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	action := r.PathValue("action")
	if action != "approve" && action != "deny" {
		return problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "a ticket can be approved or denied", Hint: "POST …/approve or …/deny"}
	}
	vote, err := readVote(w, r)
	if err != nil {
		return err
	}
	if _, err := c.visible(r, p); err != nil {
		return err
	}
	vote.ID, vote.Approver, vote.Approve = r.PathValue("id"), p, action == "approve"
	k, err := c.opts.Approvals.Decide(r.Context(), vote)
	if err != nil {
		return err
	}
	return answer(w, view(k, p))
}

// readVote reads the body of a decision: one JSON object, no member twice and
// none that is not known. Without a body there is neither reason nor digest.
func readVote(w http.ResponseWriter, r *http.Request) (v approval.Vote, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return v, problem{Status: http.StatusUnsupportedMediaType, Code: "NOT_JSON", Detail: "the body must be application/json"}
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytes))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return v, problem{Status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Detail: "the body may have 64 KiB"}
	}
	if err != nil {
		return v, badRequest("the body could not be read", "")
	}
	if len(text) == 0 {
		return v, nil
	}
	var body struct {
		Reason string `json:"reason"`
		Digest string `json:"digest"`
	}
	if err := jsonv2.Unmarshal(text, &body, jsonv2.RejectUnknownMembers(true)); err != nil {
		return v, badRequest("the body is not an object with the texts reason and digest", `{"reason": "…", "digest": "sha256:…"}`)
	}
	return approval.Vote{Reason: body.Reason, Digest: body.Digest}, nil
}
