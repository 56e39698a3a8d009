// Package upstream connects to tool servers and keeps them connected. It is the
// only package that starts upstream servers and calls their tools.
//
// A Server supervises one shared connection and, with isolation "session", one
// connection for each downstream session. Package mcpclient carries the
// messages; this package adds what belongs to a session: whom the server's
// questions and notifications concern, the client's capabilities, log level and
// subscriptions, and the tools that the server lists for it.
//
// What a server asks and reports on its own account goes to a Peer: that of the
// request in whose course it came, or else the session's own. On the shared
// connection nobody receives it.
//
// A server is spoken to with a handshake or, from MCP 2026-07-28 on, without one:
//
//	connect ---> server/discover ---> its revisions: no handshake
//	                             ---> anything else, or nothing: initialize
//
// The connection of a client with a session is initialized first, and asked for its
// revisions when the server refuses that.
//
// Without a handshake every request carries its client's description, a question
// of the server is a result (rounds.go), and its notifications come on the stream
// of a listening request (listen.go, subscribe.go). Each session has a connection
// of its own there too: over HTTP that costs nothing, and over stdio a log
// message does not say in the course of which request it came.
//
// A server of type ndjson is a process whose actions appear as tools.
package upstream
