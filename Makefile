# `make help` lists the targets. "work" is Go's pattern for the packages of all
# modules in go.work.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := check

GO ?= go
FUZZTIME ?= 10s
COVERMIN ?= 95
WORLDS ?= 100000
LONG ?= . ./test ./internal/... ./shed ./cmd/retripsim
SEED ?= 1
# An example that hangs must not hang the build; not every system has timeout(1).
TIMEOUT := $(if $(shell command -v timeout),timeout 120)

# The modules with mainly our own code. The others consist mostly of SDKs and
# peers, and building them more than once takes too long.
MODULES = $(shell $(GO) list -m -f '{{.Dir}}/...')
OWN = $(shell printf '%s\n' $(MODULES) | grep -vE '/(examples/cookbook|lab/bench)/\.\.\.$$')

# With the race detector, these take minutes.
SLOW = /(test|shed|internal/(body|budget|decide|fleet|host|replay|spare))$$

# These take other people's servers and plots, and little of ours runs in them.
FOREIGN = /lab(/ops|/figures)?$$

# The root package and the packages of this repository that it imports. Helpers
# of tests aren't among them.
LIBRARY = $(shell $(GO) list -deps -f '{{with .Module}}{{if .Main}}{{$$.ImportPath}}{{end}}{{end}}' .)

.PHONY: help check quick test race lint vuln golangci cover fuzz tables worlds defects examples cross api heavy figures bench instructions weight

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: lint test ## lint and test; the default target

quick: ## vet and the short tests of the root package, test/ and what has changed since the last commit, for the inner loop
	@out=$$(gofmt -d *.go test internal || true); [ -z "$$out" ] || { echo "$$out"; echo 'gofmt -w does this'; exit 1; }
	@pkgs=". ./test $$(git diff --name-only HEAD -- 'internal/*.go' | xargs -r dirname | sort -u | sed 's,^,./,' | tr '\n' ' ')"; \
	echo "$(GO) test -short $$pkgs"; $(GO) vet $$pkgs; $(GO) test -short $$pkgs

test: ## test the root module
	$(GO) test ./...

race: ## test what programs import and lab/world with the race detector, in random order, and what takes minutes -short; with NIGHTLY=1, our own code of all modules in full
	@# doccheck and the list of defects have no goroutines, and all goroutines of retripsim are those of sim.
	$(GO) test -race -shuffle=on $$($(GO) list $(OWN) | grep -vE '/(internal/doccheck|internal/sim|cmd/retripsim|lab/world/defects)$$' $(if $(NIGHTLY),,| grep -vE '$(SLOW)|$(FOREIGN)'))
	$(if $(NIGHTLY),,$(GO) test -race -short -shuffle=on $$($(GO) list $(OWN) | grep -E '$(SLOW)'))
	@# A run of the simulator has one goroutine. These tests make several runs at once, or drive the Transport.
	$(GO) test -race -short -shuffle=on -run 'Transports|Parallel|RunAll' ./internal/sim

lint: ## gofmt, vet, staticcheck, go fix, go mod tidy, misspell, and no real sleeps in tests
	@echo 'gofmt -l .'; out=$$(gofmt -l .); [ -z "$$out" ] || { echo "$$out"; exit 1; }
	$(GO) vet work
	@# The module of the tools stays out of the workspace, because it has versions of its own.
	@echo 'staticcheck work'; tool=$$(GOWORK=off $(GO) -C lab/tools tool -n staticcheck); "$$tool" work
	$(GO) fix -diff work
	@# make heavy tidies its module. For golangci-lint, tidy would
	@# have to fetch the tests of a hundred modules.
	@for mod in $$(find . -name go.mod -not -path '*/testdata/*' -not -path './examples/cookbook/heavy/*' -not -path './lab/tools/golangci/*' | sort); do \
		echo "go mod tidy -diff  # $${mod%/go.mod}"; \
		GOWORK=off $(GO) -C "$${mod%/go.mod}" mod tidy -diff || exit 1; \
	done
	@echo 'misspell'; tool=$$(GOWORK=off $(GO) -C lab/tools tool -n misspell); \
		git ls-files '*.go' '*.md' '*.yml' Makefile .ci | xargs "$$tool" -error
	@echo 'time.Sleep only in tests on virtual time'; \
	files=$$(find . -name '*_test.go' -exec grep -lF 'time.Sleep(' {} +) || true; \
	real=$$([ -z "$$files" ] || grep -LE '"testing/synctest"|[Bb]ubble\(t,' $$files) || true; \
	[ -z "$$real" ] || { echo "$$real"; echo 'sleeps in real time: use a testing/synctest bubble'; exit 1; }

vuln: ## look for known vulnerabilities in what programs import, in Go's database, which it fetches
	@tool=$$(GOWORK=off $(GO) -C lab/tools tool -n govulncheck); \
	"$$tool" ./... ./contrib/fleetredis/... ./contrib/retripotel/...

golangci: ## golangci-lint by .ci/golangci.yml on the modules that programs import, built on first use (minutes)
	@tool=$$(GOWORK=off $(GO) -C lab/tools/golangci tool -n golangci-lint); \
	for mod in . contrib/fleetredis contrib/retripotel; do \
		echo "golangci-lint  # $$mod"; (cd "$$mod" && "$$tool" run --config '$(CURDIR)/.ci/golangci.yml' ./...) || exit 1; \
	done

cover: ## statement coverage of the root package and the packages that it imports; fails below COVERMIN (95) %
	$(GO) test -short -coverprofile=cover.out -coverpkg=$$(echo $(LIBRARY) | tr ' ' ,) ./test $(LIBRARY)
	@$(GO) tool cover -func=cover.out | awk -v min=$(COVERMIN) '/^total:/ { \
		printf "coverage: %s, at least %s%% wanted\n", $$3, min; exit $$3 + 0 < min }'

fuzz: ## run each fuzz target of the root package, test/ and internal/ for FUZZTIME (10s)
	@grep -o '^func Fuzz[A-Za-z0-9_]*' *_test.go test/*_test.go internal/*/*_test.go | while IFS=': ' read -r file _ f; do \
		dir=./$$(dirname "$$file"); echo "$$dir $$f"; \
		$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null || exit 1; \
	done

tables: ## test every row, seed and step of the long tests in LONG (all packages); `make test` tests only the most important (minutes)
	RETRIP_TABLES=1 $(GO) test -timeout 30m $(LONG)

worlds: ## run WORLDS (100 000) random worlds from SEED (1) on, which test all promises at once, on all processors
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(GO) test -c -o "$$dir/world" ./lab/world; \
	n=$$(nproc); each=$$((($(WORLDS) + n - 1) / n)); pids=(); \
	for i in $$(seq 0 $$((n - 1))); do \
		"$$dir/world" -test.run 'TestWorlds$$' -test.timeout 2h -test.v -worlds $$each -seed $$(($(SEED) + i * each)) & pids+=($$!); \
	done; \
	failed=0; for pid in "$${pids[@]}"; do wait "$$pid" || failed=1; done; exit $$failed

defects: ## put each defect of lab/world/defects into the library, and count the random worlds (at most WORLDS, 5000) that find it (half an hour)
	$(GO) run ./lab/world/defects -worlds $(if $(filter file,$(origin WORLDS)),5000,$(WORLDS))

examples: ## run the examples of the root module side by side; each must exit 0
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; pids=(); failed=0; \
	$(GO) build -o "$$dir/" $$(printf './%s ' $$(dirname examples/*/main.go)); \
	for main in examples/*/main.go; do \
		ex=$$(basename "$${main%/main.go}"); echo "$$ex"; \
		{ $(TIMEOUT) "$$dir/$$ex" </dev/null >"$$dir/$$ex.out" 2>&1 || \
			{ code=$$?; cat "$$dir/$$ex.out"; echo "$$ex: exit status $$code"; exit 1; }; } & pids+=($$!); \
	done; \
	for pid in "$${pids[@]}"; do wait "$$pid" || failed=1; done; exit $$failed

cross: ## build the root module for the systems that differ most, or with NIGHTLY=1 for four more, and vet what programs import for Windows, macOS and 32 bits
	for system in linux/386 windows/amd64 plan9/amd64 js/wasm $(if $(NIGHTLY),linux/arm64 darwin/arm64 freebsd/amd64 wasip1/wasm); do \
		echo "$$system"; GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build -trimpath ./... || exit 1; \
	done
	$(if $(NIGHTLY),for system in linux/386 windows/amd64 darwin/arm64; do \
		echo "vet $$system"; GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) vet -trimpath ./... ./contrib/fleetredis/... ./contrib/retripotel/... || exit 1; \
	done)

api: ## compare the exported API with that of the last version tag
	.ci/api

heavy: ## test the examples whose SDKs take minutes to build, and fetch large objects from an object store and an image registry
	GOWORK=off $(GO) -C examples/cookbook/heavy mod tidy -diff
	GOWORK=off $(GO) -C examples/cookbook/heavy vet ./...
	GOWORK=off $(GO) -C examples/cookbook/heavy test ./...

figures: ## draw the pictures of docs/img that show figures (a minute)
	$(GO) -C lab/figures run .

bench: ## measure what retries cost with retrip and its peers (minutes), with ARGS=-save, on a quiet machine
	$(GO) -C lab/bench run . $(ARGS)

instructions: ## count the instructions of requests with valgrind, and fail if there are too many (minutes)
	$(GO) -C lab/bench run . -instructions

weight: ## how large retrip and its peers make a small program
	$(GO) -C lab/bench run . -weight $(ARGS)
