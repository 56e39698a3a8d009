package signal

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The kernel codes that an answer to an agent can carry. proxy/wire has one
// row for each.
const (
	CodeEnvelopeParse       = "T0_ENVELOPE_PARSE"             // not JSON
	CodeEnvelopeInvalid     = "T0_ENVELOPE_INVALID"           // JSON, but no message we take
	CodeEnvelopeMethod      = "T0_ENVELOPE_METHOD"            // no such method
	CodeEnvelopeTooLarge    = "T0_ENVELOPE_TOO_LARGE"         // beyond a limit of the codec
	CodeEnvelopeParams      = "T0_ENVELOPE_PARAMS"            // the params are not what the method takes
	CodeEnvelopeVersion     = "T0_ENVELOPE_VERSION"           // a revision that is not served
	CodeToolNotFound        = "T4_TOOL_NOT_FOUND"             // unknown or hidden
	CodeNotFound            = "T4_SUBJECT_NOT_FOUND"          // no such resource, prompt or task
	CodeSchemaMismatch      = "T0_VALIDATION_SCHEMA_MISMATCH" // arguments, or a body, against their schema
	CodePolicyDenied        = "T5_IDENTITY_VIOLATION"         // the policy says no
	CodeApprovalDenied      = "T5_APPROVAL_DENIED"            // a person said no
	CodeApprovalExpired     = "T5_APPROVAL_EXPIRED"           // nobody answered in time
	CodeApprovalPending     = "T5_APPROVAL_PENDING"           // people have not decided yet
	CodeRateLimited         = "T4_RATE_LIMIT_EXCEEDED"        // a bucket is empty
	CodeOverloaded          = "T4_GATE_OVERLOADED"            // too much at once
	CodeToolQuarantined     = "T4_TOOL_QUARANTINED"           // definition changed or refused
	CodeOutputInvalid       = "T4_TOOL_OUTPUT_INVALID"        // result against outputSchema, enforced
	CodeAuditUnavailable    = "T0_AUDIT_UNAVAILABLE"          // no record, no call
	CodeCancelled           = "T4_CALL_CANCELLED"             // by the caller
	CodeUnauthenticated     = "T0_IDENTITY_UNAUTHENTICATED"   // no principal
	CodeSessionLost         = "T0_SESSION_LOST"               // unknown or ended session
	CodeHeaderMismatch      = "T0_HEADER_MISMATCH"            // headers contradict the body
	CodeToolFailed          = "T4_TOOL_EXECUTION_FAILED"      // the tool's own failure
	CodeToolTimeout         = "T4_TOOL_TIMEOUT"               // no answer within the deadline
	CodeUpstreamUnavailable = "T4_UPSTREAM_UNAVAILABLE"       // nothing was sent
	// CodeInternal is the one exception to the convention: it has no module,
	// because a reader outside is to learn none.
	CodeInternal = "T0_INTERNAL"
)

type traits struct {
	category Category
	severity Severity
	retry    bool
}

// known gives each code its meaning. Retry is false wherever the tool may have
// run already: a second attempt is then the caller's own decision.
var known = map[string]traits{
	CodeEnvelopeParse:       {Input, Transient, false},
	CodeEnvelopeInvalid:     {Input, Transient, false},
	CodeEnvelopeMethod:      {Input, Transient, false},
	CodeEnvelopeTooLarge:    {Input, Transient, false},
	CodeEnvelopeParams:      {Input, Transient, false},
	CodeEnvelopeVersion:     {Input, Transient, false},
	CodeToolNotFound:        {Input, Transient, false},
	CodeNotFound:            {Input, Transient, false},
	CodeSchemaMismatch:      {Input, Transient, false},
	CodePolicyDenied:        {Policy, Fatal, false},
	CodeApprovalDenied:      {Policy, Fatal, false},
	CodeApprovalExpired:     {Policy, Transient, true},
	CodeApprovalPending:     {Policy, Transient, true},
	CodeRateLimited:         {Resource, Transient, true},
	CodeOverloaded:          {Resource, Transient, true},
	CodeToolQuarantined:     {Policy, Fatal, false},
	CodeOutputInvalid:       {External, Degraded, false},
	CodeAuditUnavailable:    {Processing, Transient, true},
	CodeCancelled:           {Processing, Transient, false},
	CodeUnauthenticated:     {Policy, Fatal, false},
	CodeSessionLost:         {Input, Transient, true},
	CodeHeaderMismatch:      {Input, Transient, false},
	CodeToolFailed:          {External, Transient, false},
	CodeToolTimeout:         {External, Transient, false},
	CodeUpstreamUnavailable: {External, Transient, true},
	CodeInternal:            {Processing, Fatal, false},
}

// ErrorFor makes the KernelError of one of the Code or Kernel constants, with
// the category, severity and retry that belong to it. Any other code is
// ErrInvalidCode, as is any other malformed part with ErrInvalidError.
func ErrorFor(code, message string, source ModuleRef, detail map[string]any, cause *KernelError) (*KernelError, error) {
	t, ok := known[code]
	if !ok {
		t, ok = ofKernel[code]
	}
	if !ok {
		return nil, fmt.Errorf("%w: %q is not known", ErrInvalidCode, code)
	}
	return CreateError(code, t.category, t.severity, message, source, t.retry, detail, cause)
}

var convention = regexp.MustCompile(`^T[0-7](_[A-Z][A-Z0-9]*){2,}$`)

// ValidCode reports whether code is T{tier}_{MODULE}_{REASON}: tier 0 to 7,
// then at least two words of capitals and digits that start with a capital.
// CodeInternal is valid too.
func ValidCode(code string) bool { return code == CodeInternal || convention.MatchString(code) }

// sourceCode names an error after the place it comes from.
func sourceCode(source ModuleRef, reason string) string {
	words := strings.FieldsFunc(strings.ToUpper(source.Module), func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
	for i, w := range words {
		if w[0] <= '9' {
			words[i] = "M" + w
		}
	}
	if len(words) == 0 {
		words = []string{"MODULE"}
	}
	return "T" + strconv.Itoa(source.Tier) + "_" + strings.Join(words, "_") + "_" + reason
}
