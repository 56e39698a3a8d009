// Package jsonrpc reads and writes JSON-RPC 2.0 messages without changing their
// bytes.
//
// A proxy that judges a message must judge what its peer will read. Two JSON
// parsers can read one text in two ways: which of two members "amount" counts,
// whether "Amount" is one of them, what a lone surrogate stands for. Decode
// therefore makes one strict pass over the bytes and refuses every text with
// more than one reading. What it accepts has exactly one, and is sent as it is:
//
//	m, err := jsonrpc.Decode(body, jsonrpc.Limits{})
//	if err != nil {
//		return err // a *Fault: what is wrong, where, and the id if it is certain
//	}
//	name, ok := m.Param("name") // found by the pass, not searched again
//
// The pass accepts with a lexer of its own, and jsontext says why it refuses; tests hold
// the two to the same texts.
//
// Set and Delete edit one member of an object and keep every other byte, so a
// message is never marshalled again. The pass takes time linear in the text,
// n log n in the number of names of one object, and copies the text once.
//
// All functions are safe for concurrent use. A Message may be read by several
// goroutines as long as none writes to its bytes.
package jsonrpc
