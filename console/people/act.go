package people

import "github.com/toolgate/toolgate/policy"

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

// CodeUnrecorded is the code of what is not done because it cannot be recorded.
const CodeUnrecorded = "AUDIT_UNAVAILABLE"
