package wire

// Values of headers that HTTP answers share, so that an answer allocates none. They are
// never changed.
var (
	JSONType    = []string{"application/json"}
	ProblemType = []string{"application/problem+json"}
	EventType   = []string{"text/event-stream"}
	NoStore     = []string{"no-store"}
	NoSniff     = []string{"nosniff"}
)
