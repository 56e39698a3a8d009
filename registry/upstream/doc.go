// Package upstream connects to tool servers and keeps them connected. It is the
// only place that talks to an upstream.
//
// A connection is one of mcp-go's client transports with a filter below it.
// The filter puts our own bytes on the wire in place of those that mcp-go
// writes, and takes the bytes that arrive before mcp-go decodes them, because
// its types would change both: numbers become floats, `<` becomes an escape,
// error objects lose members. What mcp-go still does is what it does well: to
// match answers to requests, to keep HTTP sessions and streams, to resume them.
//
// What a server asks and tells on its own account goes to a Peer: that of the
// request in whose course it came, or else the home of the session that the
// connection belongs to. Where all sessions share a connection, it goes nowhere.
//
// A server is spoken to with a handshake or, from MCP 2026-07-28 on, without one:
//
//	connect ---> server/discover ---> its revisions: no handshake
//	                             ---> anything else, or nothing: initialize
//
// Without a handshake every request says for whom it is made; a question of the
// server's is a result (rounds.go), and what it tells on its own account comes
// on the stream of a listening request (listen.go, subscribe.go). Each session
// has a connection of its own there too: over HTTP that costs nothing, and over
// stdio a log message does not say in the course of which request it came.
//
// A server of type ndjson is a process too. Only its frames differ: list_actions
// stands for tools/list and invoke for tools/call, and nothing else is sent.
package upstream
