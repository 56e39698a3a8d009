// Package mcpclient is the client side of MCP: the bytes that go to a server
// and the bytes that come back. It decodes no tool, result or error; params,
// results and error objects are raw JSON and pass byte for byte.
//
// A Conn carries requests over one of three transports:
//
//	Do(call) ---> line on stdin  ---> line on stdout   OpenStdio
//	         ---> POST           ---> JSON or events   OpenHTTP
//	         ---> POST           ---> one event stream OpenSSE (2024-11-05)
//
//	conn := mcpclient.New(options)
//	defer conn.Close()
//	err := conn.OpenHTTP(address, header, transport)
//	result, err := conn.Initialize(ctx, capabilities, clientInfo)
//	result, e := conn.Do(ctx, &mcpclient.Call{ID: conn.NextID(), Method: "tools/call", Params: params})
//
// A call is sent at most once. Whether its first byte went out is decided by one
// atomic claim, so Error.Sent is false only when no byte can have reached the
// server.
//
// An Endpoint is the layer below: one Streamable HTTP endpoint with its headers,
// its event streams and their resumption. Programs that relay messages with ids
// of their own, such as the stdio bridge, use it directly.
//
// All types are safe for concurrent use unless their comment says otherwise.
package mcpclient
