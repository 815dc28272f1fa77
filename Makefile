# Lockstep: `make demo` shows it, `make test` tests it. `make help` lists the targets.

GOFUMPT_VERSION  := v0.12.0
GOLANGCI_VERSION := v2.15.0

BIN     := $(CURDIR)/.bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
SKIPPED := $(CURDIR)/.cache/skipped-tests.txt
PKG     := github.com/lockstep-kafka/lockstep

# Packages whose tests start real brokers; they run one after the other, so that two cores are enough.
kafka_pkgs = $(shell go list $(TAGS) -f '{{$$p := .ImportPath}}{{range .TestImports}}{{if eq . "$(PKG)/internal/testkafka"}}{{$$p}}{{"\n"}}{{end}}{{end}}{{range .XTestImports}}{{if eq . "$(PKG)/internal/testkafka"}}{{$$p}}{{"\n"}}{{end}}{{end}}' ./... | sort -u)
unit_pkgs  = $(filter-out $(kafka_pkgs),$(shell go list $(TAGS) ./...))

.PHONY: help build demo test test-unit test-long histories test-foreign fuzz bench bench-full bench-growth bench-proxy bench-docs bench-micro bench-gate model haproxy fmt fmt-check lint docs docs-check check tools clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## Build bin/lockstep
	CGO_ENABLED=0 go build -trimpath -ldflags "-X $(PKG)/internal/version.Version=$(VERSION)" -o bin/lockstep ./cmd/lockstep

demo: ## Show a mirror between two embedded clusters; DEMO_SECONDS=20 ends by itself with a check
	@$(MAKE) --no-print-directory -s build
	@exec bin/lockstep demo

# Of each package's tests.
TIMEOUT ?= 15m

test: ## All tests but the long ones, with the race detector, on real Kafka too
	@mkdir -p $(dir $(SKIPPED)) && rm -f $(SKIPPED)
	go vet $(TAGS) ./...
	go test $(TAGS) -race -timeout $(TIMEOUT) $(unit_pkgs)
	@rc=0; LOCKSTEP_SKIPPED=$(SKIPPED) go test $(TAGS) -race -count=1 -p 1 -timeout $(TIMEOUT) $(kafka_pkgs) || rc=$$?; \
	if [ -s $(SKIPPED) ]; then printf '\nReal-Kafka tests that did NOT run on this machine:\n'; cat $(SKIPPED); fi; exit $$rc

test-unit: ## Only the tests that need no real Kafka
	go test $(TAGS) -race $(unit_pkgs)

test-long: TAGS := -tags long
test-long: TIMEOUT := 120m
test-long: test histories ## make test and the long tests (build tag "long"), and make histories

# Without the race detector, which makes them six times slower. HISTORIES=10m looks deeper.
histories: HISTORIES ?= 20s
histories: ## Each property test (rapid) with other histories for HISTORIES (20s): 5 minutes in all
	@dirs=$$(git grep -l 'histories\.Check(' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|'); \
	names=$$(git grep -hE '^func Test|histories\.Check\(' -- '*_test.go' | \
	awk '/^func Test/ { n = $$2; sub(/\(.*/, "", n) } /histories\.Check\(/ { print n }' | sort -u | paste -sd '|' -); \
	LOCKSTEP_HISTORIES=$(HISTORIES) go test -count=1 -timeout 24h -run "^($$names)\$$" $$dirs

test-foreign: ## Public suites of client libraries, at the brokers and through Lockstep; FOREIGN_RUN='TestTxnEtl|TestGroup.*' for some
	go test -tags foreign -count=1 -timeout 60m -run 'TestFranzSuite' ./internal/e2e/foreign -v

fuzz: FUZZTIME ?= 10s
fuzz: ## Each fuzz test for FUZZTIME (10s); what they find is written to testdata/fuzz and runs in make test from then on
	@set -e; for dir in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n 1 dirname | sort -u); do \
	for f in $$(go test -list '^Fuzz' ./$$dir | grep '^Fuzz'); do \
	printf '%s %s\n' "$$dir" "$$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s ./$$dir; done; done

# BENCH=quick measures less; PROFILE=1 adds CPU profiles and flame graphs; BENCH_ONLY=REGEXP picks scenarios. A quick run
# leaves docs/benchmarks.md alone.
bench: ## Lockstep beside what people would use instead, on real brokers: at most 20 minutes; BENCH=quick: 4
	go run ./bench $(if $(filter-out core,$(BENCH)),,-docs docs)

bench-full: ## All of the bench, each part for longer: hours
	BENCH=full go run ./bench -docs docs

bench-growth: ## How time and memory go with partitions, batch size, failovers, connections and groups: 5 minutes
	BENCH=growth go run ./bench -docs docs

bench-proxy: haproxy ## The proxy alone beside HAProxy, direct, and the proxies of BENCH_PROXY_ADDR=name=host:port,…
	BENCH=proxy go run ./bench -docs docs

# A peer of bench-proxy. Without it, and without the rights to install it, the bench names it as left out.
haproxy:
	@[ -x /usr/sbin/haproxy ] || command -v haproxy >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends haproxy; } || true

bench-docs: ## Write docs/benchmarks.md and its charts from bench/results
	go run ./bench -only-docs -docs docs

model: ## Write docs/scaling.md and its charts from bench/model/measured.json; MEASURE=1 measures anew first (10 minutes)
	go run ./bench/model $(if $(MEASURE),-measure)

bench-micro: ## Go benchmarks of the hot paths
	go test -run '^$$' -bench . -benchmem ./protocol/... ./epoch/...

bench-gate: ## Allocations and ratios of the hot paths against internal/benchgate/limits.txt
	go run ./internal/benchgate

tools: $(BIN)/gofumpt-$(GOFUMPT_VERSION) $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## Install the pinned formatter and linter into .bin

$(BIN)/gofumpt-$(GOFUMPT_VERSION):
	GOBIN=$(BIN) go install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
	mv $(BIN)/gofumpt $@

$(BIN)/golangci-lint-$(GOLANGCI_VERSION):
	GOBIN=$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(BIN)/golangci-lint $@

fmt: $(BIN)/gofumpt-$(GOFUMPT_VERSION) ## Format the code
	$< -w $(shell git ls-files -co --exclude-standard '*.go')

fmt-check: $(BIN)/gofumpt-$(GOFUMPT_VERSION)
	@out=$$($< -l $(shell git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then printf 'not formatted (run make fmt):\n%s\n' "$$out"; exit 1; fi

lint: $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## Run the linters
	$< run ./...

docs: ## Write the generated pages of docs/
	go run ./internal/docgen
	go run ./cmd/lockstep reference > docs/cli.md.tmp && mv docs/cli.md.tmp docs/cli.md

docs-check:
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && mkdir "$$tmp/docs" && go build -o "$$tmp/docgen" ./internal/docgen && \
	(cd "$$tmp" && ./docgen) && go run ./cmd/lockstep reference > "$$tmp/docs/cli.md" && for f in "$$tmp"/docs/*; do \
	diff -u "docs/$$(basename "$$f")" "$$f" || { echo "docs/$$(basename "$$f") differs from the code: run make docs"; exit 1; }; done

check: fmt-check lint docs-check ## Format, lint and generated docs, as CI looks at them

clean: ## Remove what was built (the cache of jars and tools stays)
	rm -rf bin
