# The main targets are run and test. The others are parts of them or longer forms.
# They need Go, make, git and npm; tests with Python and Rust need python3 with venv and cargo.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -s -w -X main.version=$(VERSION)
TOOLS    = .cache/bin
TIMEOUT ?= 25m

.PHONY: build guardian run test test-conformance check lint vuln npm npm-soak python rust chain bench bench-go fuzz mutate soak chart image release release-check clean

# The guardian of stdio servers is a program of its own inside toolgate. A toolgate that
# is built without it starts itself as the guardian, which takes ten times as long.
GUARDIAN = internal/sandbox/programs/guardian_$(shell $(GO) env GOARCH)

build: guardian
	$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/toolgate ./cmd/toolgate

guardian:
	CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -ldflags "-s -w" -o $(GUARDIAN) ./internal/guardian/program

# Builds and serves the shipped mcp.json.
run: build
	bin/toolgate serve --config mcp.json

# Every test. A test whose part is missing skips with a reason; with CI=true it fails,
# and such parts are installed by the tests themselves, so that CI=true go test ./...
# needs only what .ci/debian, node and Rust bring. The packages that start whole
# programs, browsers and third-party clients run one after the other, alone. The race
# detector watches all packages but the commands, whose tests start the program hundreds
# of times: internal/peers has toolgate watched as a whole.
WHOLE = cmd/toolgate/internal/cli internal/deploy internal/peers
test: npm python rust guardian
	$(GO) test $(RACE) -timeout $(TIMEOUT) $$($(GO) list ./... | grep -v $(foreach p,$(WHOLE),-e '/$(p)$$'))
	$(GO) test -timeout $(TIMEOUT) ./cmd/toolgate/internal/cli
	$(GO) test $(RACE) -timeout $(TIMEOUT) -p 1 ./internal/deploy ./internal/peers

# The race detector watches all packages but SQLite itself, which is C translated to Go
# and takes seven times as long when it is watched. The driver above it is watched.
RACE = -race $(foreach p,modernc.org/sqlite/lib modernc.org/libc,-gcflags=$(p)=-race=false)

# Rules that tools check.
check: lint vuln
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	TOOLGATE_MEASURE=1 $(GO) test -count=1 -v -run 'TestOneCall$$' ./internal/house
	$(GO) test -count=1 ./internal/house

lint: $(TOOLS)/golangci-lint $(TOOLS)/staticcheck
	$(TOOLS)/staticcheck ./...
	$(TOOLS)/golangci-lint run ./...

vuln: $(TOOLS)/govulncheck
	@sh .ci/vuln $(TOOLS)/govulncheck

# The tools have their own module, so that none of their dependencies is shipped.
$(TOOLS)/golangci-lint $(TOOLS)/staticcheck $(TOOLS)/govulncheck &: .ci/lint/go.mod .ci/lint/go.sum
	mkdir -p $(TOOLS)
	cd .ci/lint && $(GO) build -o ../../$(TOOLS)/ tool
	touch $(TOOLS)/golangci-lint $(TOOLS)/staticcheck $(TOOLS)/govulncheck

# Third-party MCP servers and clients for the tests; npm-soak: large ones (1 GB) that
# only make soak runs.
INSTALLED = /node_modules/.package-lock.json
npm: testdata/npm$(INSTALLED) testdata/npm/chain$(INSTALLED)
npm-soak: testdata/npm/soak$(INSTALLED) testdata/npm/hardhat$(INSTALLED)

testdata/npm$(INSTALLED) testdata/npm/chain$(INSTALLED) testdata/npm/soak$(INSTALLED) testdata/npm/hardhat$(INSTALLED): %$(INSTALLED): %/package-lock.json
	@if command -v npm >/dev/null; then cd $* && npm ci --ignore-scripts --no-audit --no-fund; \
	elif [ "$$CI" = true ]; then echo "npm is missing"; exit 1; \
	else echo "npm is missing: tests with third-party servers and clients are skipped"; fi

# The same of the Python and the Rust world, in testdata/python and testdata/rust. mcp1
# has what needs major version 1 of the official Python SDK. To pin newer versions:
# uv pip compile --universal --python-version 3.11 --generate-hashes --no-header
# --no-annotate mcp2.in -o mcp2.txt, and cargo update.
VENV = testdata/python/venv
python: $(VENV)/mcp1/.installed $(VENV)/mcp2/.installed
$(VENV)/%/.installed: testdata/python/%.txt
	@if python3 -m venv $(VENV)/$* && $(VENV)/$*/bin/python -m pip install -q --no-deps --only-binary :all: --require-hashes -r $<; then touch $@; \
	elif [ "$$CI" = true ]; then exit 1; \
	else echo "Python parts are not installed: tests with them are skipped"; fi

PEER = testdata/rust/target/debug/peer
rust: $(PEER)
$(PEER): testdata/rust/Cargo.lock $(wildcard testdata/rust/src/*.rs)
	@if cd testdata/rust && cargo build --quiet --locked; then :; \
	elif [ "$$CI" = true ]; then exit 1; \
	else echo "the Rust peer is not built, which needs Rust 1.88: tests with it are skipped"; fi

# The official MCP conformance suite, directly against a server and again through
# toolgate. A check that passes directly has to pass through toolgate, unless
# testdata/conformance/baseline.json names it. RUNS=5 finds unsteady checks,
# UPDATE=1 rewrites the baseline.
RUNS ?= 1
test-conformance: testdata/conformance/node_modules/.package-lock.json
	TOOLGATE_CONFORMANCE=1 $(GO) test -count=1 -v -timeout $(TIMEOUT) ./internal/conformance -args -runs $(RUNS) $(if $(UPDATE),-update)

testdata/conformance/node_modules/.package-lock.json: testdata/conformance/package-lock.json
	cd testdata/conformance && npm ci --ignore-scripts --no-audit --no-fund --loglevel error

# A governed call beside one through a plain reverse proxy, with real processes, in
# about a quarter of an hour on a quiet machine. Writes the measured part of
# docs/evidence/performance.md and its plots: make bench ARGS='-rounds 3', or
# make bench ARGS='-quick -only "64 clients"' to try out. ARGS=-h lists the flags.
bench: build
	$(GO) run ./internal/testkit/bench $(ARGS)

# Go's benchmarks: times and allocations of single parts.
bench-go:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Every fuzz target for FUZZTIME: make fuzz FUZZTIME=5m
FUZZTIME ?= 20s
fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
		echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; done; done

# Removes each security check once, in PKG or in every package that has some, and
# lists those whose removal no test notices: make mutate PKG=./proxy ARGS='-sample 20'
PKG  ?= $(sort $(dir $(wildcard proxy/*.go audit/*.go policy/*/*.go registry/*.go registry/*/*.go console/*.go \
	internal/guard/*.go internal/wholefile/*.go internal/jsonrpc/*.go internal/schema/*.go internal/keys/*.go internal/store/*.go)))
ARGS ?=
mutate:
	$(GO) run ./internal/testkit/mutate $(ARGS) $(PKG)

# All tests three times, in their long form: TOOLGATE_SOAK=1.
soak: npm npm-soak
	TOOLGATE_SOAK=1 $(GO) test $(RACE) -timeout 2h -count=3 ./...
	cd testdata/chain && $(GO) vet ./... && $(GO) test -count=1 ./... && $(GO) build -o ../../bin/chain .
	TOOLGATE_CHAIN=$(CURDIR)/bin/chain $(GO) test -count=1 ./tools/...
	@if [ -e testdata/npm/hardhat$(INSTALLED) ]; then TOOLGATE_CHAIN=$(CURDIR)/testdata/npm/hardhat/chain.cjs $(GO) test -count=1 ./tools/chain; \
	else echo "Hardhat is not installed: the wallet is not tested with its node"; [ "$$CI" != true ]; fi

# A development chain for manage_wallet at http://127.0.0.1:8545, with a block every
# second: make chain ARGS='-interval 200ms'. It has its own module, so that go-ethereum
# is not shipped.
chain:
	cd testdata/chain && $(GO) build -o ../../bin/chain .
	bin/chain $(ARGS)

# The Helm chart of docs/deploy, with Helm and the types of Kubernetes. They have their
# own module, so that none of their dependencies is shipped.
chart: build
	cd .ci/deploy && $(GO) vet ./... && $(GO) test -count=1 ./...

# The image of docs/deploy/container, with docker or what takes the same arguments:
# make image BUILDER=buildah. AUTHORITIES are the certificates that it trusts.
BUILDER     ?= docker
IMAGE       ?= toolgate
AUTHORITIES ?= /etc/ssl/certs/ca-certificates.crt
CONTEXT      = .cache/image
image: guardian
	rm -rf $(CONTEXT) && mkdir -p $(CONTEXT)/volume
	cp docs/deploy/container/passwd $(CONTEXT)/ && cp $(AUTHORITIES) $(CONTEXT)/ca-certificates.crt
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(CONTEXT)/toolgate ./cmd/toolgate
	$(BUILDER) build --file docs/deploy/container/Dockerfile --tag $(IMAGE) $(CONTEXT)

# Archives for every platform, packages for Debian, bills of materials and checksums, in
# dist: of a commit with a tag the release, of another one a snapshot. SIGN_KEY is the
# gpg key that signs the checksums.
SIGN_KEY ?=
RELEASE   = $(TOOLS)/goreleaser $(TOOLS)/cyclonedx-gomod
release: $(RELEASE)
	PATH="$(CURDIR)/$(TOOLS):$$PATH" SIGN_KEY="$(SIGN_KEY)" goreleaser release --clean \
		--skip=publish $(if $(SIGN_KEY),,--skip=sign) $(if $(shell git describe --exact-match --tags 2>/dev/null),,--snapshot)

# Makes the release of the last commit for one platform twice, in two clones, and looks
# at it. Then the package is installed, upgraded and removed under a systemd of its own.
CHECKED = $(CURDIR)/.cache/checked
release-check: $(RELEASE)
	rm -rf $(CHECKED) && mkdir -p $(CHECKED)
	cd .ci/release && $(GO) vet ./... && PATH="$(CURDIR)/$(TOOLS):$$PATH" TOOLGATE_RELEASE=$(CHECKED) $(GO) test -count=1 -timeout $(TIMEOUT) ./...
	TOOLGATE_RELEASE=$(CHECKED) $(GO) test -count=1 -timeout $(TIMEOUT) -run '^TestPackage$$' ./internal/deploy

# Each bill of materials has the digests of the program that wrote it: its bytes are the
# same everywhere.
$(RELEASE) &: .ci/release/go.mod .ci/release/go.sum
	mkdir -p $(TOOLS)
	cd .ci/release && $(GO) build -o ../../$(TOOLS)/ github.com/goreleaser/goreleaser/v2
	cd .ci/release && CGO_ENABLED=0 $(GO) build -trimpath -o ../../$(TOOLS)/ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
	touch $(RELEASE)

clean:
	rm -rf bin dist .cache .toolgate
