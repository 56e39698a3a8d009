# The main targets are run and test; make help lists all. Those that install parts, make
# releases and measure single things are in .ci/Makefile: make -f .ci/Makefile help.
# run and test need Go, make and git; test also needs a C compiler, for the race detector.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -s -w -X main.version=$(VERSION)
# Without grpcnotrace, gRPC's pages of traces keep text/template, and text/template every
# exported method of the program: 18 MB, or 13 MB of a stripped one.
TAGS     = -tags grpcnotrace
TIMEOUT ?= 25m
PARTS    = $(MAKE) --no-print-directory -f .ci/Makefile

.PHONY: run test test-all soak bench check build help
.DEFAULT_GOAL = build

# The guardian of stdio servers is a program of its own inside toolgate. A toolgate that
# is built without it starts itself as the guardian, which takes ten times as long.
GUARDIAN = internal/sandbox/programs/guardian_$(shell $(GO) env GOARCH)
BUILD_GUARDIAN = CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -ldflags "-s -w" -o $(GUARDIAN) ./internal/guardian/program

run: build ## serves the shipped mcp.json
	bin/toolgate serve --config mcp.json

build: ## builds bin/toolgate
	@test -e bin/toolgate || echo "building toolgate: the first build takes a few minutes"
	$(BUILD_GUARDIAN)
	$(GO) build $(TAGS) -trimpath -ldflags "$(LDFLAGS)" -o bin/toolgate ./cmd/toolgate

# The race detector watches the packages of .ci/raced, but not SQLite itself, which is C
# translated to Go and takes seven times as long when it is watched. The driver above
# SQLite is watched.
RACE = -race $(foreach p,modernc.org/sqlite/lib modernc.org/libc modernc.org/memory,-gcflags=$(p)=-race=false)

# At least three packages, or tests of one, at a time: they mostly wait.
ATONCE = $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 3 ? n : 3)))

test: ## proves in 4 minutes what the README promises, without third-party parts
	@echo "testing: the first time, everything is built, which takes a few minutes"
	$(BUILD_GUARDIAN)
	@raced=$$(GO=$(GO) sh .ci/raced) && $(GO) test -short -p $(ATONCE) -timeout $(TIMEOUT) $$($(GO) list ./... | grep -vxF "$$raced") && \
		$(GO) test -short $(RACE) -p $(ATONCE) -timeout $(TIMEOUT) $$raced

# A test whose part is missing skips with a reason; with CI=true it fails. The packages
# that start whole programs, browsers and third-party clients (WHOLE) run after the others,
# two at a time, each with three tests at once at least: they mostly wait for processes. Of
# the others, the race detector watches those in which goroutines start, without the tests
# of .ci/plain. It watches toolgate as a whole where a crowd of clients calls at once.
CLI    = cmd/toolgate/internal/cli
PEERS  = internal/peers
WHOLE  = $(PEERS) internal/conformance internal/deploy $(CLI)
OTHERS = grep -v $(foreach p,$(WHOLE),-e '/$(p)$$')
PLAIN  = ($(shell grep -v '^\#' .ci/plain | paste -sd '|'))
CROWD  = ^TestCrowd$$
test-all: ## runs every test, with third-party servers, clients, databases and browsers
	$(PARTS) -j4 npm python rust keycloak
	$(BUILD_GUARDIAN)
	@raced=$$(GO=$(GO) sh .ci/raced all | $(OTHERS)) && set -x && \
		$(GO) test $(RACE) -timeout $(TIMEOUT) -skip '^$(PLAIN)$$' $$raced && \
		$(GO) test -timeout $(TIMEOUT) $$($(GO) list ./... | $(OTHERS) | grep -vxF "$$raced")
	$(GO) test -timeout $(TIMEOUT) -run '^$(PLAIN)$$' $$(git grep -lE '^func $(PLAIN)\(' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's,^,./,')
	$(GO) test -timeout $(TIMEOUT) -p 2 -parallel $(ATONCE) -skip '$(CROWD)' $(foreach p,$(WHOLE),./$(p))
	$(GO) test $(RACE) -timeout $(TIMEOUT) -run '$(CROWD)' ./$(PEERS)
	$(PARTS) chart

soak: ## runs every test three times, in its long form
	$(PARTS) npm npm-soak
	TOOLGATE_SOAK=1 $(GO) test $(RACE) -timeout 2h -count=3 ./...
	$(PARTS) soak-chain

bench: build ## measures a governed call next to a plain reverse proxy: ARGS=-h lists the flags
	$(GO) run ./internal/testkit/bench $(ARGS)

check: ## checks formatting, linters, known vulnerabilities and the rules of this repository
	$(PARTS) lint vuln
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	TOOLGATE_MEASURE=1 $(GO) test -count=1 -v -run 'TestOneCall$$' ./internal/house
	$(GO) test -count=1 ./internal/house

help: ## lists these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r target line; do printf '%-14s %s\n' "$$target" "$$line"; done
