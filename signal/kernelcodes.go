package signal

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

// ofKernel has category and severity from the seed; a retry may pass where the
// failure is TRANSIENT.
var ofKernel = map[string]traits{
	KernelCachePressure:   {Resource, Degraded, false},
	KernelLowConfidence:   {Processing, Degraded, false},
	KernelClassifyTimeout: {External, Transient, true},
	KernelCycleDetected:   {Processing, Fatal, false},
	KernelUnresolvedDeps:  {Processing, Fatal, false},
	KernelBudgetExhausted: {Resource, Fatal, false},
	KernelHallucination:   {Processing, Degraded, false},
	KernelOverconfidence:  {Processing, Degraded, false},
	KernelLoopDetected:    {Processing, Degraded, false},
	KernelSpawnResources:  {Resource, Transient, true},
}
