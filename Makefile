# `make help` lists the targets. "work" is Go's pattern for the packages of all
# modules in go.work.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := check

GO ?= go
FUZZTIME ?= 10s
COVERMIN ?= 95
SOAKTIME ?= 10m
# An example that hangs must not hang the build; not every system has timeout(1).
TIMEOUT := $(if $(shell command -v timeout),timeout 120)

# The modules of our own code. The others are mostly SDKs and peers, and not
# worth the minutes that more than one build of them takes.
OWN = $(shell $(GO) list -m -f '{{.Dir}}/...' | grep -vE '/(examples/[^/]+|peers)/\.\.\.$$')

.PHONY: help check quick golangci bench-diff test race all-modules lint cover fuzz tables mutate soak downloads examples demo cross api sdks stores figures bench bench-save

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

check: lint test ## lint and test: what `make` alone does

quick: ## the inner loop: vet and the short tests of the root package and its walls
	@out=$$(gofmt -l *.go internal); [ -z "$$out" ] || { echo "$$out"; exit 1; }
	$(GO) vet . ./internal/...
	$(GO) test -short . ./internal/...

test: ## test the root module
	$(GO) test ./...

race: ## test the root module with the race detector, in random order
	$(GO) test -race -shuffle=on ./...

all-modules: ## test every module of the workspace, then those of our own code as race does
	$(GO) test work
	@# Its goroutines are those of sim, and its pictures take minutes with the race detector.
	$(GO) test -race -shuffle=on $(filter-out %/cmd/retripsim/...,$(OWN))

lint: ## gofmt, vet, staticcheck, go fix, go mod tidy, misspell, and no real sleeps in tests
	@echo 'gofmt -l .'; out=$$(gofmt -l .); [ -z "$$out" ] || { echo "$$out"; exit 1; }
	$(GO) vet work
	@# The tools' module stays out of the workspace: its versions are its own.
	@echo 'staticcheck work'; tool=$$(GOWORK=off $(GO) -C tools tool -n staticcheck); "$$tool" work
	$(GO) fix -diff work
	@# make sdks and make stores look after the heavy modules; golangci-lint comes
	@# with the tests of a hundred modules, which tidy would have to fetch.
	@for mod in $$(find . -name go.mod -not -path '*/testdata/*' -not -path './examples/sdks/heavy/*' -not -path './lab/stores/*' -not -path './tools/golangci/*' | sort); do \
		echo "go mod tidy -diff  # $${mod%/go.mod}"; \
		GOWORK=off $(GO) -C "$${mod%/go.mod}" mod tidy -diff || exit 1; \
	done
	@echo 'misspell'; tool=$$(GOWORK=off $(GO) -C tools tool -n misspell); \
		git ls-files '*.go' '*.md' '*.yml' Makefile .ci | xargs "$$tool" -error
	@echo 'time.Sleep only in tests on virtual time'; \
	files=$$(find . -name '*_test.go' -exec grep -lF 'time.Sleep(' {} +) || true; \
	real=$$([ -z "$$files" ] || grep -LF '"testing/synctest"' $$files) || true; \
	[ -z "$$real" ] || { echo "$$real"; echo 'sleeps in real time: use a testing/synctest bubble'; exit 1; }

golangci: ## golangci-lint by .golangci.yml, built on first use (minutes)
	tool=$$(GOWORK=off $(GO) -C tools/golangci tool -n golangci-lint); "$$tool" run ./...

cover: ## statement coverage of the root package and its walls; fails below COVERMIN (95) %
	$(GO) test -coverprofile=cover.out -coverpkg=.,./internal/attempt,./internal/body,./internal/replay .
	@$(GO) tool cover -func=cover.out | awk -v min=$(COVERMIN) '/^total:/ { \
		printf "coverage: %s, at least %s%% wanted\n", $$3, min; exit $$3 + 0 < min }'

fuzz: ## each fuzz target of the root package for FUZZTIME (10s)
	@targets=$$($(GO) test -list '^Fuzz' . | { grep '^Fuzz' || true; }); \
	[ -n "$$targets" ] || echo 'no fuzz targets'; \
	for f in $$targets; do \
		echo "$$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) . || exit 1; \
	done

tables: ## every row of the simulator's tables, of which `make test` has the most telling (minutes)
	RETRIP_TABLES=1 $(GO) test -timeout 30m ./sim
	RETRIP_TABLES=1 $(GO) test -timeout 30m -run TestBudget ./cmd/retripsim

mutate: ## break the core in small ways and see which the tests notice (minutes)
	$(GO) run ./lab/mutate

soak: ## load with faults for SOAKTIME (10m): fails unless all that is held stays flat and nothing is lost
	$(GO) run ./lab/cmd/soak -duration $(SOAKTIME)

downloads: ## 100 bodies of 1 GiB through a proxy that cuts them every 10 MiB: each must arrive whole (half an hour)
	$(GO) run ./lab/cmd/downloads

examples: ## run the examples of the root module; each must exit 0
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	for main in examples/*/main.go; do \
		ex=$${main%/main.go}; \
		[ -f "$$main" ] && [ ! -f "$$ex/go.mod" ] || continue; \
		echo "$$ex"; \
		$(GO) build -o "$$dir/example" "./$$ex" || exit 1; \
		$(TIMEOUT) "$$dir/example" </dev/null >"$$dir/out" 2>&1 || \
			{ code=$$?; cat "$$dir/out"; echo "$$ex: exit status $$code"; exit 1; }; \
	done

demo: ## walk through two outages before a real Prometheus: two minutes, then until Ctrl-C
	.ci/tools prometheus
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(GO) build -C ops -o "$$dir/demo" ./demo; \
	PATH="$$PATH:/usr/sbin" "$$dir/demo" -alerts ops/alerts.yml -stay

cross: ## vet our own code for Windows and macOS, and link the tests of the root module
	@for os in windows darwin; do \
		echo "GOOS=$$os"; \
		GOOS=$$os $(GO) vet $(OWN) || exit 1; \
		GOOS=$$os $(GO) test -c -o /dev/null ./... || exit 1; \
	done

api: ## compare the exported API with that of the last version tag
	.ci/api

sdks: ## test the examples with SDKs that take minutes to build
	GOWORK=off $(GO) -C examples/sdks/heavy mod tidy -diff
	GOWORK=off $(GO) -C examples/sdks/heavy vet ./...
	GOWORK=off $(GO) -C examples/sdks/heavy test ./...

stores: ## fetch large objects from an object store and an image registry, which take minutes to build
	GOWORK=off $(GO) -C lab/stores mod tidy -diff
	GOWORK=off $(GO) -C lab/stores vet ./...
	GOWORK=off $(GO) -C lab/stores test ./...

figures: ## make the pictures and tables of docs, or of documents and commands with IN in them, anew from the commands beside them: some minutes
	$(GO) -C cmd/retripsim test -count=1 -run '^TestFigures$$' -timeout 60m . -args -figures=update -in='$(IN)'

bench: ## what retries cost, beside the peers: some minutes
	$(GO) -C bench run ./cmd/peers

bench-diff: ## compare what a request that succeeds costs with the last version tag
	.ci/bench

bench-save: ## bench, and keep the results in bench/results, README.md and docs
	$(GO) -C bench run ./cmd/peers -save

.PHONY: rename rename-check

rename: ## give the module another path, MODULE=example.org/team/name, everywhere
	.ci/rename "$(MODULE)"

rename-check: ## do so in a copy, and see that it holds together
	.ci/rename -check
