// Package peers is tests only: clients and servers that nobody here wrote, and
// the toolgate binary between them, as an operator would put it there. It also
// holds what only whole processes can show: that no child outlives them, that
// what was promised before a kill -9 holds after it, wherever it strikes, and
// that what people approve runs once, counted at the server, however many agents,
// approvers and toolgates there are at once.
//
// The third-party parts come from npm, into testdata/npm/node_modules. Where
// one is missing its tests skip with a reason; with CI=true they fail.
package peers
