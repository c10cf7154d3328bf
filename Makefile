# The commands of the project; `make` alone lists them. Two set a new machine up: `make quickstart` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# The toolchain that go.mod names, also where GOTOOLCHAIN=local is preset.
export GOTOOLCHAIN := go1.27.4

GOLANGCI      := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOLANGCI_LINT := go run $(GOLANGCI)
HELM_DOCS     := go run github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2
CRD_REF_DOCS  := go run github.com/elastic/crd-ref-docs@v0.3.0

# Go modules with tests of their own, and Bash scripts.
MODULES := . hack/cluster hack/images e2e/probe
SCRIPTS := .ci/run hack/bench hack/deps hack/install hack/keep-report hack/lint-paths hack/quickstart hack/report hack/verify internal/testenv/bound/etcd

# "existing" takes the cluster of KUBECONFIG; anything else, a cluster on this machine.
CLUSTER ?= local
# Nodes of the cluster on this machine, 1 to 3.
NODES ?= 1
# A regular expression that narrows the end-to-end tests.
E2E ?=
# Of `make bench`: which (hack/bench), and instead of its own the numbers of replicas, and Short, Normal or Thorough.
BENCH ?= scale-out
REPLICAS ?=
PRESET ?=
# How long each fuzz target runs.
FUZZTIME ?= 10m

QTLS_CLUSTER := bin/qtls-cluster
TESTRUN      := bin/testrun
# The packages that a cluster of this machine needs.
DEPS         := $(if $(filter existing,$(CLUSTER)),,deps)

##@ Commands

.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print "\n" substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' Makefile

.PHONY: quickstart
quickstart: $(DEPS) ## From nothing to a served post-quantum request (CLUSTER=existing: on the cluster of KUBECONFIG)
ifeq ($(CLUSTER),existing)
	@hack/quickstart
else
	@$(MAKE) --no-print-directory cluster-up
	@KUBECONFIG=$$($(QTLS_CLUSTER) kubeconfig) QTLS_CLUSTER=$(QTLS_CLUSTER) hack/quickstart
endif

.PHONY: cluster-up
cluster-up: deps $(QTLS_CLUSTER) ## Start the local cluster (NODES=1..3)
	@$(QTLS_CLUSTER) status >/dev/null 2>&1 || $(QTLS_CLUSTER) up --nodes=$(NODES)

.PHONY: cluster-down down
cluster-down: $(QTLS_CLUSTER) ## End the local cluster
	@$(QTLS_CLUSTER) down
down: cluster-down ## End everything that these commands started

##@ Tests

.PHONY: test test-lint test-unit test-integration test-chart test-browser test-crypto test-e2e
test: deps $(QTLS_CLUSTER) $(TESTRUN) ## Every test; the last line is `N passed, N failed`
	@E2E='$(E2E)' $(TESTRUN)
test-lint: deps $(TESTRUN) ## Linters, and whether generated files are up to date
	@$(TESTRUN) lint
test-unit: deps $(TESTRUN) ## Tests that need no cluster (configurations are checked by the gateway image's HAProxy)
	@$(TESTRUN) unit
test-integration: deps $(QTLS_CLUSTER) $(TESTRUN) ## Controllers against the real kube-apiserver
	@$(TESTRUN) integration
test-chart: deps $(QTLS_CLUSTER) $(TESTRUN) ## The Helm chart
	@$(TESTRUN) chart
test-browser: deps $(TESTRUN) ## Pages in a headless Chromium, which it installs
	@$(TESTRUN) browser
test-crypto: deps $(TESTRUN) ## Images, and real handshakes with the gateway's HAProxy and OpenSSL
	@$(TESTRUN) crypto
test-e2e: deps $(QTLS_CLUSTER) $(TESTRUN) ## The local cluster, the quickstart and the end-to-end tests on clusters (E2E=REGEXP narrows)
	@E2E='$(E2E)' $(TESTRUN) $(if $(E2E),,cluster) e2e

.PHONY: test-asan
test-asan: deps $(TESTRUN) ## The Rust workspace's tests and HAProxy with AddressSanitizer in them (not in `make test`)
	@$(TESTRUN) asan

.PHONY: fuzz
fuzz: $(TESTRUN) ## Run each fuzz target for FUZZTIME (10m; `make test` gives each 2s)
	@FUZZTIME=$(FUZZTIME) $(TESTRUN) fuzz

##@ Code

.PHONY: build
build: $(QTLS_CLUSTER) ## Build the operator and the agent into bin/
	go build -trimpath -o bin/ ./cmd/...

.PHONY: provider
provider: deps ## Build the OpenSSL provider, oqsprovider.so, and print where it is
	@go -C hack/images run . provider

.PHONY: demo-kpqc
demo-kpqc: deps ## The KpqC cases with the gateway's HAProxy: handshakes counted, certificate sizes, times by level
	@go -C hack/images run . handshake demo

.PHONY: bench-crypto
bench-crypto: deps ## HAProxy's CPU for a handshake with and without the fast path, and single operations of every algorithm
	@go -C hack/images run . handshake cost
	@go -C hack/images run . handshake operations

.PHONY: bench-resumption
bench-resumption: deps ## HAProxy's CPU for full and resumed handshakes: hybrid, classical RSA-4096 and post-quantum only
	@go -C hack/images run . handshake resumption

.PHONY: bench-hsm
bench-hsm: deps ## Handshakes with keys in HSMs: what each way to a token costs, and what a slow one does, with ASYNC and without
	@go -C hack/images run . handshake hsm

# A benchmark of the cluster of KUBECONFIG, as NAMESPACE/NAME.
BENCHMARK ?=
.PHONY: bench
bench: export BENCH := $(BENCH)
bench: export REPLICAS := $(REPLICAS)
bench: export PRESET := $(PRESET)
bench: $(DEPS) $(QTLS_CLUSTER) ## Measure how a gateway scales; the report is in out/ (BENCH=matrix REPLICAS=1,2,4 PRESET=Normal CLUSTER=existing)
ifeq ($(CLUSTER),existing)
	@hack/bench
else
	@if $(QTLS_CLUSTER) status >/dev/null 2>&1; then \
	    KUBECONFIG=$$($(QTLS_CLUSTER) kubeconfig) QTLS_CLUSTER=$(QTLS_CLUSTER) hack/bench; \
	else \
	    QTLS_CLUSTER=$(QTLS_CLUSTER) $(QTLS_CLUSTER) run --nodes=$(NODES) -- hack/bench; \
	fi
endif

.PHONY: report
report: ## Fetch the report of a benchmark into out/ (BENCHMARK=NAMESPACE/NAME)
	@hack/report '$(BENCHMARK)'

.PHONY: images
images: deps ## Build the container images
	go -C hack/images run . build

.PHONY: generate
generate: ## Make what is made from the algorithm table and the code: definitions, rights, the chart's files, reference pages
	go run ./hack/algorithms
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd paths=./api/... output:crd:dir=config/crd
	go tool controller-gen rbac:roleName=qtls-operator paths='./controllers/...;./internal/...;./cmd/...' output:rbac:dir=config/rbac
	go run ./hack/chartfiles
	go run ./hack/reference
	$(HELM_DOCS) --chart-search-root=charts --log-level=warning
	$(CRD_REF_DOCS) --source-path=api --config=hack/crd-ref-docs.yaml --renderer=markdown --output-path=docs/reference/api.md --log-level=ERROR

.PHONY: verify
verify: ## Check that `make generate` would change nothing
	@hack/verify

.PHONY: lint lint-go lint-rust lint-shell lint-paths
lint: lint-go lint-rust lint-shell lint-paths ## Run the linters
lint-go:
	@failed=0; for m in $(MODULES); do echo "golangci-lint $$m"; (cd $$m && $(GOLANGCI_LINT) run --config="$(CURDIR)/.golangci.yml" ./...) || failed=1; done; exit $$failed
	@echo "golangci-lint k6" # where its OpenSSL is
	@go run -exec 'go -C $(CURDIR)/hack/images run . k6 --' $(GOLANGCI) run --config=/src/.golangci.yml ./...
lint-rust:
	@go -C hack/images run . cargo -- fmt --check
	@go -C hack/images run . cargo -- fmt --check --manifest-path kryoptic/Cargo.toml
	@go -C hack/images run . cargo -- clippy --release --locked --all-targets --package oqsprovider -- -D warnings
	@go -C hack/images run . cargo -- clippy --release --locked --all-targets --workspace --exclude oqsprovider -- -D warnings
	@go -C hack/images run . cargo -- clippy --release --locked --manifest-path kryoptic/Cargo.toml -- -D warnings
lint-shell:
	@shellcheck $(SCRIPTS)
lint-paths:
	@hack/lint-paths

.PHONY: format
format: ## Format the Go and Rust code
	@for m in $(MODULES) k6; do (cd $$m && $(GOLANGCI_LINT) fmt --config="$(CURDIR)/.golangci.yml"); done
	@go -C hack/images run . cargo -write -- fmt

.PHONY: deps
deps:
	@hack/deps

# Go knows best what is to be built anew.
.PHONY: $(QTLS_CLUSTER) $(TESTRUN)
$(QTLS_CLUSTER):
	@go -C hack/cluster build -trimpath -o '$(CURDIR)/$@' .
$(TESTRUN):
	@go build -trimpath -o $@ ./hack/testrun
