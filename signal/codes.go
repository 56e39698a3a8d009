package signal

import (
	"fmt"
	"regexp"
	"slices"
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
	CodeConnectionRequired  = "T5_CONNECTION_REQUIRED"        // the caller has no credential at the server
	CodeStopped             = "T5_STOPPED"                    // a person has stopped such calls
	CodeRateLimited         = "T4_RATE_LIMIT_EXCEEDED"        // a bucket is empty
	CodeOverloaded          = "T4_GATE_OVERLOADED"            // too much at once
	CodeToolQuarantined     = "T4_TOOL_QUARANTINED"           // definition changed or refused
	CodeOutputInvalid       = "T4_TOOL_OUTPUT_INVALID"        // result against outputSchema, enforced
	CodeAuditUnavailable    = "T0_AUDIT_UNAVAILABLE"          // no record, no call
	CodeStoreUnavailable    = "T0_STORE_UNAVAILABLE"          // the state cannot be reached or relied on
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

// The codes of the table "Error Code Convention" of seed 002 that no answer of
// this program carries: modules of a kernel around it give them, and their
// errors travel in Results and as causes.
const (
	KernelCachePressure   = "T0_CACHE_PRESSURE_EVICTION"      // evicted under memory pressure
	KernelLowConfidence   = "T1_CLASSIFY_LOW_CONFIDENCE"      // below the threshold, fallback taken
	KernelClassifyTimeout = "T1_CLASSIFY_TIMEOUT"             // the embedding service was too slow
	KernelCycleDetected   = "T2_DECOMPOSE_CYCLE_DETECTED"     // sub-goals depend on each other in a ring
	KernelUnresolvedDeps  = "T3_DAG_COMPILE_UNRESOLVED_DEPS"  // the plan cannot be resolved
	KernelBudgetExhausted = "T5_BUDGET_EXHAUSTED"             // no tokens or compute left
	KernelHallucination   = "T6_HALLUCINATION_DETECTED"       // the output has made-up claims
	KernelOverconfidence  = "T6_OVERCONFIDENCE_DETECTED"      // more confidence than evidence
	KernelLoopDetected    = "T6_LOOP_DETECTED"                // the load monitor saw a loop
	KernelSpawnResources  = "T7_SPAWN_INSUFFICIENT_RESOURCES" // no hardware for another agent
)

type traits struct {
	category Category
	severity Severity
	retry    bool
}

// meanings gives each code its category and severity, from the seed where it has
// them, and whether the same call may pass later. Retry is false wherever the tool may
// have run already: a second attempt is then the caller's own decision.
var meanings = map[traits][]string{
	{Input, Transient, false}: {
		CodeEnvelopeParse, CodeEnvelopeInvalid, CodeEnvelopeMethod, CodeEnvelopeTooLarge, CodeEnvelopeParams,
		CodeEnvelopeVersion, CodeToolNotFound, CodeNotFound, CodeSchemaMismatch, CodeHeaderMismatch,
	},
	{Input, Transient, true}:       {CodeSessionLost},
	{Processing, Transient, false}: {CodeCancelled},
	{Processing, Transient, true}:  {CodeAuditUnavailable, CodeStoreUnavailable},
	{Processing, Degraded, false}:  {KernelLowConfidence, KernelHallucination, KernelOverconfidence, KernelLoopDetected},
	{Processing, Fatal, false}:     {CodeInternal, KernelCycleDetected, KernelUnresolvedDeps},
	{External, Transient, false}:   {CodeToolFailed, CodeToolTimeout},
	{External, Transient, true}:    {CodeUpstreamUnavailable, KernelClassifyTimeout},
	{External, Degraded, false}:    {CodeOutputInvalid},
	{Resource, Transient, true}:    {CodeRateLimited, CodeOverloaded, KernelSpawnResources},
	{Resource, Degraded, false}:    {KernelCachePressure},
	{Resource, Fatal, false}:       {KernelBudgetExhausted},
	{Policy, Transient, true}:      {CodeApprovalExpired, CodeApprovalPending, CodeConnectionRequired},
	{Policy, Fatal, false}:         {CodePolicyDenied, CodeApprovalDenied, CodeStopped, CodeToolQuarantined, CodeUnauthenticated},
}

// ErrorFor makes the KernelError of one of the Code or Kernel constants, with
// the category, severity and retry that belong to it. Any other code is
// ErrInvalidCode, as is any other malformed part with ErrInvalidError.
func ErrorFor(code, message string, source ModuleRef, detail map[string]any, cause *KernelError) (*KernelError, error) {
	for t, codes := range meanings {
		if slices.Contains(codes, code) {
			return CreateError(code, t.category, t.severity, message, source, t.retry, detail, cause)
		}
	}
	return nil, fmt.Errorf("%w: %q is not known", ErrInvalidCode, code)
}

var convention = regexp.MustCompile(`^T[0-7](_[A-Z][A-Z0-9]*){2,}$`)

// ValidCode reports whether code is T{tier}_{MODULE}_{REASON}: tier 0 to 7,
// then at least two words of capitals and digits that start with a capital.
// CodeInternal and CodeStopped are valid too.
func ValidCode(code string) bool {
	return code == CodeInternal || code == CodeStopped || convention.MatchString(code)
}

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
