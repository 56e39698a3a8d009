// Package conformance is tests only: the official MCP conformance suite as a
// gate. It runs every server scenario directly against a server that nobody
// here wrote, and again through the toolgate binary in front of that server;
// and every client scenario with a client that nobody here wrote, and again
// with toolgate between that client and the suite's server.
// What passes directly has to pass through toolgate, but for the checks that
// testdata/conformance/baseline.json names with a reason. That list may only
// shrink: a check in it that passes fails the test too.
//
// make test-conformance installs the suite and runs it; without
// TOOLGATE_CONFORMANCE=1 it is skipped.
package conformance
