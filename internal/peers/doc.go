// Package peers has only tests. They run the toolgate binary between third-party
// clients and third-party servers, as an operator would deploy it. They also check
// what only whole processes can show: no child process outlives toolgate, every
// acknowledged state survives kill -9 at any point, and an approved call runs once,
// counted at the server, with any number of agents, approvers and toolgates.
//
// The third-party parts come from npm, in testdata/npm/node_modules (make -f .ci/Makefile npm). If
// a part is missing, its tests skip with a reason; with CI=true they fail.
//
// With TOOLGATE_SOAK=1 (make soak) the tests take their long form: every client by
// every route, every step of the kill sweep, many rounds of each race, and holds of
// the default length.
package peers
