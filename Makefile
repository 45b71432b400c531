# All tasks of this repository. `make help` lists the targets.

# Recipes run one after another, even with -j, because they share cargo's target folder.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/bash

step := deploy/dev/step
export CARGO_TERM_PROGRESS_WHEN := never
# Programs that `make tools` installs.
export PATH := $(CURDIR)/target/tools/bin:$(CURDIR)/target/go/bin:$(PATH)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: ## one real package update, from the REST call to the installed package (KEEP=1: leave everything running)
	@KEEP=$(KEEP) deploy/demo/run demo

.PHONY: demo-image
demo-image: ## an emulated machine that is updated to a new image and falls back from a bad one (KEEP=1: leave everything running)
	@KEEP=$(KEEP) deploy/demo/image demo

.PHONY: test
test: tools format deny shear shellcheck snapshots tests ## every gate and every test, as in CI

.PHONY: tools
tools: ## install the missing prerequisites of the gates and the tests
	@deploy/dev/install-tools test

.PHONY: format
format: ## check the formatting of the sources
	@$(step) format cargo fmt --all --check

.PHONY: clippy
clippy: ## check that clippy pedantic has no findings, without a build (make test does it while it builds)
	@$(step) clippy cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: docs
docs: ## build the documentation of the code and check it
	@RUSTDOCFLAGS='-D warnings' $(step) docs cargo doc --workspace --no-deps --locked

.PHONY: deny
deny: ## check licences, sources, bans and advisories of the dependencies
	@$(step) deny deploy/dev/deny check

.PHONY: shear
shear: ## check that every declared dependency is used
	@$(step) shear cargo shear --locked

.PHONY: shellcheck
shellcheck: ## run shellcheck on every script
	@$(step) shellcheck deploy/dev/scripts check

.PHONY: snapshots
snapshots: ## check that every snapshot is reviewed
	@$(step) snapshots deploy/dev/snapshots check

.PHONY: tests
tests: ## all tests, with their output (POLLS=n, ROUNDS=n: size of the long ones)
	@EVENKEEL_HISTORY_POLLS=$(or $(POLLS),20000) EVENKEEL_RACE_ROUNDS=$(or $(ROUNDS),10) EVENKEEL_FUZZ_SECONDS=3 \
	  EVENKEEL_UPGRADE_RUNS=20000 \
	  deploy/dev/run-tests all

.PHONY: generate
generate: ## regenerate the committed generated files (protobuf code, openapi.json, run states, pages of docs/reference, manual pages, evenkeeld.toml)
	@UPDATE_GENERATED=1 $(step) generate cargo test --locked -p evenkeel-proto -p evenkeel-domain -p evenkeel-inventory \
	  --lib --test generated --test rest -- current the_table_in_the_documents
	@UPDATE_GENERATED=1 $(step) reference cargo test --locked -p evenkeel-tests --test reference

.PHONY: bench
bench: ## measure the cost of a poll, with 1,000 and 10,000 hosts (release build)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- poll

.PHONY: bench-fleet
bench-fleet: ## a fleet of nodes over mutual TLS: latency, cost compared with an echo, a storm of reports, a restart (NODES=n)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- fleet --nodes $(or $(NODES),10000) --tls --storm 1000 --restart

.PHONY: bench-os
bench-os: ## a sync of a thousand profiles, their documents, and the notification of nodes about a newer image (NODES=n)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- os $(if $(NODES),--nodes $(NODES))

.PHONY: agent
agent: ## build the agent for release: static and small
	@deploy/dev/install-tools build
	@RUSTFLAGS='-C target-feature=+crt-static' $(step) agent cargo build --locked --profile small \
	  --target "$$(rustc -vV | sed -n 's/^host: //p')" -p evenkeel-update-agent
	@ls -l "target/$$(rustc -vV | sed -n 's/^host: //p')/small/evenkeel-agent"

.PHONY: packages
packages: ## build the Debian packages of the server, the command line and the agent (ARCH=amd64|arm64; default: this machine's)
	@deploy/dev/install-tools package
	@architecture=$(or $(ARCH),$$(dpkg --print-architecture)); programs=$$(deploy/package/build "$$architecture") && \
	  deploy/package/pack "$$architecture" "$$programs" "$${CARGO_TARGET_DIR:-target}/package"

.PHONY: container-images
container-images: ## build the images of the server and the command line for containers in dist/images (ARCH=amd64|arm64)
	@deploy/dev/install-tools container-images
	@architecture=$(or $(ARCH),$$(dpkg --print-architecture)); programs=$$(deploy/package/build "$$architecture") && \
	  deploy/container/build "$$architecture" "$$programs" dist/images

.PHONY: release
release: ## build dist/VERSION: packages for amd64 and arm64, an apt repository, a bill of materials, signatures (RELEASE_KEY=FILE, URL=…)
	@deploy/dev/install-tools release
	@RELEASE_KEY="$(RELEASE_KEY)" URL="$(URL)" deploy/package/release

.PHONY: release-check
release-check: ## build the packages for amd64 twice, compare their bytes, and build those for arm64
	@deploy/dev/install-tools release
	@SHOW=1 $(step) release-check deploy/package/release-check run

.PHONY: test-full
test-full: test docs test-kill test-cut test-boot test-mirror test-vm test-image-cut test-schema test-postgres test-history test-race test-upgrade test-watch test-fuzz test-random test-image-stream test-rolling test-helm test-containers test-keycloak ## `make test`, then the long tests one after another

# The tests below name the workspace instead of their crate: cargo then chooses the same features for the tests as for the
# programs that they start, and builds every crate once instead of twice.
.PHONY: test-kill
test-kill: tools ## kill the agent after every journal step, and 1,000 times at random, with real apt (ROUNDS=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_KILL_ROUNDS=2 EVENKEEL_KILLS=$(or $(ROUNDS),1000) \
	  $(if $(SEED),EVENKEEL_KILLS_SEED=$(SEED)) \
	  $(step) test-kill cargo test --workspace --locked --test nodes -- --nocapture kill:: kill_at_random::

.PHONY: test-cut
test-cut: tools ## cut the power at every flush of an update of packages and of one with RAUC, and 100 times each with loss of unflushed data (CUTS=n, SAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_CUT_FLUSHES=$(or $(CUTS),1000000) EVENKEEL_CUT_SAMPLES=$(or $(SAMPLES),100) \
	  $(if $(SEED),EVENKEEL_CUT_SEED=$(SEED)) \
	  $(step) test-cut cargo test --workspace --locked --test nodes -- --nocapture cut:: --skip image_cut::

.PHONY: test-boot
test-boot: tools ## the Debian packages on a machine that boots with systemd and reboots when a package requires it
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 $(step) test-boot \
	  cargo test --workspace --locked --test nodes -- --nocapture booted:: booted_package:: booted_server::

.PHONY: test-mirror
test-mirror: tools ## security updates of Debian 12 and 13 from a real mirror, also with a power cut, compared with apt; skipped without a mirror
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_MIRROR=all \
	  $(step) test-mirror cargo test --workspace --locked --test nodes -- --nocapture mirror::

.PHONY: test-vm
test-vm: tools ## virtual machines with firmware, updated by a real server to good and bad releases; and power cuts (CUTS=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_VM=all EVENKEEL_VM_CUTS=$(or $(CUTS),10) \
	  $(if $(SEED),EVENKEEL_VM_SEED=$(SEED)) \
	  $(step) test-vm cargo test --workspace --locked --test nodes -- --nocapture vm::

.PHONY: test-image-cut
test-image-cut: tools ## cut the power at every write of an image update, with systemd-boot and with RAUC and GRUB, and 40 times per flush with loss of unflushed data (SAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_VM=all EVENKEEL_IMAGE_CUT_SAMPLES=$(or $(SAMPLES),40) \
	  $(if $(SEED),EVENKEEL_IMAGE_CUT_SEED=$(SEED)) \
	  $(step) test-image-cut cargo test --workspace --locked --test nodes -- --nocapture image_cut::

.PHONY: test-schema
test-schema: tools ## test every operation of /openapi.json with schemathesis for ten minutes (MINUTES=n, EXAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_SCHEMA_SECONDS=$$(($(or $(MINUTES),10) * 60)) \
	  EVENKEEL_SCHEMA_EXAMPLES=$(or $(EXAMPLES),50) $(if $(SEED),EVENKEEL_SCHEMA_SEED=$(SEED)) \
	  $(step) test-schema cargo test --workspace --locked --test servers -- --nocapture schemathesis::

.PHONY: test-postgres
test-postgres: tools ## run the tests of the store and of the services on newer versions of Postgres (VERSIONS="16 17 18")
	@deploy/dev/install-tools postgres
	@deploy/dev/test-postgres $(or $(VERSIONS),16 17 18)

# The long tests build our own crates with optimisation and debug assertions. Without optimisation, our code would take most
# of their time. Dependencies are built as for `make test`.
test-history test-race test-upgrade test-rolling: export CARGO_PROFILE_DEV_OPT_LEVEL := 2

.PHONY: test-history
test-history: tools ## kill servers, shift clocks, restore dumps, and compare the records with the actions of simulated nodes (POLLS=n, SEED=n, SCALE=n)
	@SHOW=1 EVENKEEL_HISTORY_POLLS=$(or $(POLLS),1000000) $(if $(SEED),EVENKEEL_HISTORY_SEED=$(SEED)) \
	  EVENKEEL_HISTORY_SCALE=$(or $(SCALE),3) \
	  $(step) test-history cargo test --workspace --locked --test servers -- --nocapture history::

.PHONY: test-race
test-race: tools ## 200 nodes race for the slots of an assignment while two servers are killed repeatedly (ROUNDS=n, SEED=n)
	@SHOW=1 EVENKEEL_RACE_ROUNDS=$(or $(ROUNDS),1000) $(if $(SEED),EVENKEEL_RACE_SEED=$(SEED)) \
	  $(step) test-race cargo test --workspace --locked --test servers -- --nocapture race::

.PHONY: test-upgrade
test-upgrade: tools ## migrate 1,000,000 runs with 10,000,000 events while nodes poll and pg_dump reads everything (RUNS=n)
	@SHOW=1 EVENKEEL_UPGRADE_RUNS=$(or $(RUNS),1000000) \
	  $(step) test-upgrade cargo test --workspace --locked --test servers -- --nocapture upgrade::

.PHONY: test-rolling
test-rolling: tools ## three replicas behind HAProxy and nginx: restarts, an upgrade and a promotion of the database with 2,000 polls a second (POLLS_PER_SECOND=n, SECONDS=n, MIN_PERCENT=n)
	@SHOW=1 EVENKEEL_ROLLING_POLLS_PER_SECOND=$(or $(POLLS_PER_SECOND),2000) EVENKEEL_ROLLING_SECONDS=$(or $(SECONDS),15) \
	  EVENKEEL_ROLLING_MIN_PERCENT=$(or $(MIN_PERCENT),80) \
	  $(step) test-rolling cargo test --workspace --locked --test servers -- --nocapture --test-threads=1 rolling::

.PHONY: test-watch
test-watch: tools ## watch 10,000 changes of four writers while the server is killed three times, and open 1,000 streams without reading them (CHANGES=n, WATCHERS=n, SEED=n)
	@SHOW=1 EVENKEEL_WATCHED_CHANGES=$(or $(CHANGES),10000) EVENKEEL_SLOW_WATCHERS=$(or $(WATCHERS),1000) \
	  $(if $(SEED),EVENKEEL_WATCH_SEED=$(SEED)) \
	  $(step) test-watch cargo test --workspace --locked --test servers --test evenkeeld -- --nocapture watch:: slow_watchers::

.PHONY: test-fuzz
test-fuzz: tools ## feed mutated inputs to each parser of untrusted documents and outputs for a minute (SECONDS=n)
	@SHOW=1 EVENKEEL_FUZZ_SECONDS=$(or $(SECONDS),60) \
	  $(step) test-fuzz cargo nextest run --profile long --locked -p evenkeel-domain -p evenkeel-registry \
	  -p evenkeel-update-agent -E 'binary(fuzz) or test(/(^|::)fuzz::/)'

.PHONY: test-random
test-random: tools ## 10,400 random attempts to reach another project, and 120,000 random windows compared with a watched clock
	@SHOW=1 EVENKEEL_ISOLATION_ATTEMPTS=5200 EVENKEEL_SCHEDULE_WINDOWS=120000 \
	  $(step) test-random cargo nextest run --profile long --locked -p evenkeel-domain -p evenkeel-inventory \
	  -E 'test(/^isolation::/) or test(windows_match_those_of_a_watched_clock)'

.PHONY: test-containers
test-containers: tools ## every command of docs/containers.md with podman: start, users, a node, Prometheus, upgrade, backup, restore
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_CONTAINERS=all \
	  $(step) test-containers cargo test --workspace --locked --test servers -- --nocapture containers::

.PHONY: test-keycloak
test-keycloak: tools ## logins at a real Keycloak with the realm of docs/identity-providers.md: browser, device code, groups, logout
	@deploy/dev/install-tools keycloak
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_KEYCLOAK=all \
	  $(step) test-keycloak cargo test --workspace --locked --test servers -- --nocapture oidc::keycloak::

# Also optimised: otherwise the measured throughput is meaningless.
test-image-stream: export CARGO_PROFILE_DEV_OPT_LEVEL := 2

.PHONY: test-image-stream
test-image-stream: tools ## write an image of 1 GiB into a slot: memory, and throughput compared with curl | zstd -d (MIB=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_IMAGE_STREAM_MIB=$(or $(MIB),1024) \
	  $(step) test-image-stream cargo test --locked -p evenkeel-update-agent --test agent -- --nocapture --test-threads=1 \
	  image_stream

.PHONY: test-helm
test-helm: tools ## render the Helm chart, decode and check its objects, and start its services with the rendered files
	@deploy/dev/install-tools helm
	@programs=$$(deploy/dev/test-programs build) && SHOW=1 EVENKEEL_TEST_PROGRAMS=$$programs GOTOOLCHAIN=local \
	  $(step) test-helm go -C tests/lab/helm test -count=1 -timeout 30m ./...

.PHONY: clean
clean: ## remove the build output; the Debian roots in the cache folder stay
	cargo clean
