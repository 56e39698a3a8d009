// Package signal defines the types that all parts of toolgate share: Signal, the
// immutable unit of data; Result, what a function returns; and KernelError, a
// failure as data (seed 002).
//
// A function receives Signals and returns a Result. It never returns half an
// answer: a Result is ok, partial (signals and an error), error (an error, no
// signals to use) or skip. Compose says what a reader does with each:
//
//	next := signal.Compose(result)
//	if next.Stop != nil {
//		return signal.Fail(next.Stop, metrics) // next.Retry: the same call may pass later
//	}
//	use(next.Signals)
//
// Errors carry a code, T{tier}_{MODULE}_{REASON}, from which category, severity and
// retry follow (ErrorFor), and the chain of their causes (WrapError).
//
// The bridges map these types to and from other protocols: FromToolResult and
// SignalToToolCall for MCP, ResultToHTTPResponse and HTTPRequestToSignal for HTTP,
// SignalToNotification for the bus, ErrorToJSONRPC and ErrorToProblemDetails for
// errors. They are pure: the package knows no transport, and all its functions are
// safe for concurrent use.
package signal
