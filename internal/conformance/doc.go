// Package conformance has only tests: the official MCP conformance suite, directly
// and through toolgate. Every server scenario runs against a third-party server, and
// again against toolgate in front of that server. Every client scenario runs with a
// third-party client, and again with toolgate between that client and the suite's
// server. One suite runs again with a toolgate that wants a token of an issuer, which a
// proxy adds: the suite sends none to a server, and has no scenarios for protected
// resources. A check that passes directly has to pass through toolgate, unless
// testdata/conformance/baseline.json names it with a reason. The baseline may only
// shrink: a check in it that passes fails the test.
//
// make -f .ci/Makefile conformance installs the suite and runs it alone.
package conformance
