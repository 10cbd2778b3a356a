# barnabas: what a developer does, one word each. `make` prints this list.

GO      ?= go
BIN     := bin/barnabas
TOOLS   := $(or $(BARNABAS_TOOLS),$(CURDIR)/.tools)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZ    ?= 20s
export BARNABAS_TOOLS := $(TOOLS)

# CI runs every Go test with the race detector.
RACE := $(if $(filter true,$(CI)),-race)
# Everything but the tests of whole clusters, which follow it.
UNIT = $(shell $(GO) list ./... | grep -v /integration)

.DEFAULT_GOAL := help
.PHONY: help build run demo tools unit test race lint chaos-groups fuzz bench bench-znodes bench-idle bench-failover bench-groups generate clean

help: ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/barnabas, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/barnabas

run: build ## start a three-node cluster on this machine (Kafka 9092-9094, ZooKeeper 2181-2183)
	$(BIN) dev --nodes 3

demo: build ## feed the Go sources through old consumers while a broker is killed, and count what was lost
	@if command -v java >/dev/null && command -v mvn >/dev/null; then tools/fetch.sh kafka-0.8.2.2 classes; fi
	$(GO) run ./cli/demo -bin $(BIN) -tools $(TOOLS)

tools: ## fetch what the tests need and no Go module brings (Kafka and ZooKeeper jars, kcat, ...)
	@tools/fetch.sh

unit: ## the pure Go tests, under two minutes
	$(GO) test -short $(UNIT)

test: tools ## all tests: pure Go first, then, whatever that found, whole clusters with real clients
	@status=0; \
	$(GO) run ./tools/gotest $(RACE) -timeout 30m $(UNIT) || status=1; \
	$(GO) run ./tools/gotest $(RACE) -timeout 40m -p 1 ./integration/... || status=1; \
	exit $$status

race: ## the pure Go tests with the race detector
	$(GO) test -race -short $(UNIT)

lint: ## gofmt, vet, staticcheck, import arrows and purity; lists the largest functions and files
	@tools/fetch.sh staticcheck
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); if [ -n "$$out" ]; then echo "gofmt needed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOLS)/bin/staticcheck ./...
	$(GO) test ./internal/lint
	@if [ "$(CI)" = true ]; then $(GO) generate ./... && git diff --exit-code; fi
	@$(GO) run ./tools/largest

chaos-groups: tools ## the fault scenarios of groups at full length
	BARNABAS_LONG=1 $(GO) run ./tools/gotest -timeout 60m -p 1 -run 'TestCoordinatorLost|TestClassicGroupLosesItsCoordinator|TestConsumerGroupLosesItsCoordinator|TestRollingMove|TestSessionsOverKilledLeaders|TestZombieCommit|TestOldMember' ./integration

fuzz: ## run each fuzz target for a while (FUZZ=20s)
	@tools/fuzz.sh $(FUZZ)

bench: ## run the Go benchmarks
	$(GO) test -run '^$$' -bench . -benchmem $(filter-out %/bench/groups,$(UNIT))

bench-znodes: build ## ordered writes per second beside a real ZooKeeper, in one run
	@tools/fetch.sh zookeeper-3.9.5
	$(GO) run ./bench/znodes -bin $(BIN) -zookeeper $(TOOLS)/zookeeper-3.9.5/lib

bench-idle: build ## size of the binary, time to the first topic, CPU and memory of an idle cluster (Linux)
	$(GO) run ./bench/idle -bin $(BIN)

bench-failover: build ## how long producers stand still when a broker is killed or frozen
	$(GO) run ./bench/failover -bin $(BIN)

bench-groups: build ## groups of old and new members, joins and kills, beside Kafka 1.1.1 with ZooKeeper and Kafka 4.4
	@tools/fetch.sh kafka-0.8.2.2 kafka-1.1.1 kafka-4.4 zookeeper-3.9.5 classes
	$(GO) test -v -run '^$$' -bench . -benchtime 1x -timeout 60m ./bench/groups

generate: ## write generated code again; CI fails when that changes anything
	$(GO) generate ./...

clean: ## remove what was built (not what make tools fetched)
	rm -rf bin
