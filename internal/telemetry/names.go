package telemetry

// The names are those of the semantic conventions for MCP, in development
// (open-telemetry/semantic-conventions-genai). What they do not name is below
// toolgate, but for opa.decision_id, which OPA itself uses.
const (
	scopeName   = "github.com/toolgate/toolgate"
	serviceName = "toolgate"

	keyMethod    = "mcp.method.name"
	keyProtocol  = "mcp.protocol.version"
	keyTool      = "gen_ai.tool.name"
	keyPrompt    = "gen_ai.prompt.name"
	keyOperation = "gen_ai.operation.name"
	keyRequestID = "jsonrpc.request.id"
	keyErrorType = "error.type"
	keyStatus    = "rpc.response.status_code"
	keyNetwork   = "network.transport"
	keyAddress   = "server.address"
	keyPort      = "server.port"
	keyUser      = "user.id"

	keyServer      = "toolgate.server"
	keyAgent       = "toolgate.client"
	keyCode        = "toolgate.error.code"
	keyEffect      = "toolgate.decision.effect"
	keyDecisionID  = "toolgate.decision.id"
	keyOPADecision = "opa.decision_id"
	keyRevision    = "toolgate.policy.revision"
	keyRule        = "toolgate.rule"
	keyTicket      = "toolgate.approval.id"
	keyState       = "toolgate.approval.state"

	operationTool = "execute_tool"
	methodCall    = "tools/call"
	prefix        = "toolgate."                // of the names of stages and events
	nameDecide    = "toolgate.policy.evaluate" // the stage decide

	metricServer = "mcp.server.operation.duration"
	metricClient = "mcp.client.operation.duration"

	metricServerSession = "mcp.server.session.duration"
	metricClientSession = "mcp.client.session.duration"
)

// buckets are the boundaries that the conventions advise, in seconds.
var buckets = []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300}

// transports maps transports of toolgate to values of network.transport. NDJSON, like
// stdio, is spoken over pipes.
var transports = map[string]string{"http": "tcp", "sse": "tcp", "rest": "tcp", "stdio": "pipe", "ndjson": "pipe"}
