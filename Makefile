# Everything a person or a machine does with this repository. `make help` lists it.

# Recipes run one after the other, also with -j: they share cargo's target folder.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/bash

step := deploy/dev/step
export CARGO_TERM_PROGRESS_WHEN := never

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: ## one real package update from the REST call to the package; KEEP=1 leaves everything running
	@KEEP=$(KEEP) deploy/demo/run demo

.PHONY: demo-image
demo-image: ## an emulated machine that goes to a new image, and comes back from a bad one; KEEP=1 leaves everything running
	@KEEP=$(KEEP) deploy/demo/image demo

.PHONY: test
test: tools format clippy docs deny machete shellcheck snapshots tests ## every gate and every test; what CI runs

.PHONY: tools
tools: ## install what the gates and the tests need, if it is missing
	@deploy/dev/install-tools test

.PHONY: format
format: ## sources are formatted
	@$(step) format cargo fmt --all --check

.PHONY: clippy
clippy: ## clippy pedantic finds nothing
	@$(step) clippy cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: docs
docs: ## the documentation builds without warnings
	@RUSTDOCFLAGS='-D warnings' $(step) docs cargo doc --workspace --no-deps --locked

.PHONY: deny
deny: ## licences, sources, bans and advisories of the dependencies
	@$(step) deny deploy/dev/deny check

.PHONY: machete
machete: ## no dependency is declared and not used
	@$(step) machete cargo machete

.PHONY: shellcheck
shellcheck: ## every script passes shellcheck
	@$(step) shellcheck deploy/dev/scripts check

.PHONY: snapshots
snapshots: ## no snapshot is left unreviewed
	@$(step) snapshots deploy/dev/snapshots check

.PHONY: tests
tests: ## all tests, with their own output; POLLS=n and ROUNDS=n for another size of the long ones
	@SHOW=1 EVENKEEL_HISTORY_POLLS=$(or $(POLLS),100000) EVENKEEL_RACE_ROUNDS=$(or $(ROUNDS),50) EVENKEEL_FUZZ_SECONDS=30 \
	  $(step) tests cargo test --workspace --locked

.PHONY: generate
generate: ## make the committed generated files again (protobuf code, openapi.json)
	@UPDATE_GENERATED=1 $(step) generate cargo test --locked -p evenkeel-proto -p evenkeel-domain -p evenkeel-inventory -p evenkeel-server

.PHONY: bench
bench: ## what a poll costs, with 1,000 and 10,000 hosts (release build)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- poll

.PHONY: bench-fleet
bench-fleet: ## a fleet of nodes over TLS: latency, cost beside an echo, a storm of reports and a restart (NODES=n)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- fleet --nodes $(or $(NODES),10000) --tls --storm 1000 --restart

.PHONY: bench-os
bench-os: ## a sync of a thousand profiles, their documents, and nodes that are told of a newer image (NODES=n)
	@deploy/dev/install-tools demo
	cargo run --release --locked -p evenkeel-bench -- os $(if $(NODES),--nodes $(NODES))

.PHONY: agent
agent: ## the agent as it is shipped: static and small
	@deploy/dev/install-tools build
	@RUSTFLAGS='-C target-feature=+crt-static' $(step) agent cargo build --locked --profile small \
	  --target "$$(rustc -vV | sed -n 's/^host: //p')" -p evenkeel-update-agent
	@ls -l "target/$$(rustc -vV | sed -n 's/^host: //p')/small/evenkeel-agent"

.PHONY: package
package: ## the agent's Debian package, static and small (ARCH=amd64 or arm64; this machine's own unless given)
	@deploy/dev/install-tools package
	@deploy/package/build $(or $(ARCH),$$(dpkg --print-architecture))

.PHONY: test-full
test-full: test test-kill test-cut test-boot test-vm test-image-cut test-schema test-history test-race test-image-stream ## `make test`, and the long tests one by one

.PHONY: test-kill
test-kill: tools ## the agent killed after every journal step, and 1,000 times at random instants, with real apt (ROUNDS=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_KILL_ROUNDS=2 EVENKEEL_KILLS=$(or $(ROUNDS),1000) \
	  $(if $(SEED),EVENKEEL_KILLS_SEED=$(SEED)) \
	  $(step) test-kill cargo test --locked -p evenkeel-tests --test kill --test kill_at_random -- --nocapture

.PHONY: test-cut
test-cut: tools ## the power cut at every flush of an update, and 100 times with what was not flushed lost (CUTS=n, SAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_CUT_FLUSHES=$(or $(CUTS),1000000) EVENKEEL_CUT_SAMPLES=$(or $(SAMPLES),100) \
	  $(if $(SEED),EVENKEEL_CUT_SEED=$(SEED)) \
	  $(step) test-cut cargo test --locked -p evenkeel-tests --test cut -- --nocapture

.PHONY: test-boot
test-boot: tools ## the agent's Debian package on a machine that boots with systemd, and reboots when a package asks for it
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 $(step) test-boot \
	  cargo test --locked -p evenkeel-tests --test booted -- --nocapture

.PHONY: test-vm
test-vm: tools ## machines from the firmware on, updated by a real server to every kind of release, good and bad; and power cuts (CUTS=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_VM=all EVENKEEL_VM_CUTS=$(or $(CUTS),10) \
	  $(if $(SEED),EVENKEEL_VM_SEED=$(SEED)) \
	  $(step) test-vm cargo test --locked -p evenkeel-tests --test vm -- --nocapture

.PHONY: test-image-cut
test-image-cut: tools ## the power cut at every write of an image's update, and 40 times a flush with what was not flushed lost (SAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_VM=all EVENKEEL_IMAGE_CUT_SAMPLES=$(or $(SAMPLES),40) \
	  $(if $(SEED),EVENKEEL_IMAGE_CUT_SEED=$(SEED)) \
	  $(step) test-image-cut cargo test --locked -p evenkeel-tests --test image_cut -- --nocapture

.PHONY: test-schema
test-schema: tools ## schemathesis asks for all that /openapi.json says, for ten minutes (MINUTES=n, EXAMPLES=n, SEED=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_SCHEMA_SECONDS=$$(($(or $(MINUTES),10) * 60)) \
	  EVENKEEL_SCHEMA_EXAMPLES=$(or $(EXAMPLES),50) $(if $(SEED),EVENKEEL_SCHEMA_SEED=$(SEED)) \
	  $(step) test-schema cargo test --locked -p evenkeel-tests --test schemathesis -- --nocapture

# The long tests run what is ours optimised, with debug assertions: unoptimised it would take most of their time. What
# others wrote is built as for `make test`.
test-history test-race: export CARGO_PROFILE_DEV_OPT_LEVEL := 2

.PHONY: test-history
test-history: tools ## what two servers record while they are killed is what simulated nodes did (POLLS=n, SEED=n, CROWD=n)
	@SHOW=1 EVENKEEL_HISTORY_POLLS=$(or $(POLLS),1000000) $(if $(SEED),EVENKEEL_HISTORY_SEED=$(SEED)) \
	  EVENKEEL_HISTORY_CROWD=$(or $(CROWD),3) \
	  $(step) test-history cargo test --locked -p evenkeel-tests --test history -- --nocapture

.PHONY: test-race
test-race: tools ## 200 nodes race for the slots of an assignment at two servers that are killed (ROUNDS=n, SEED=n)
	@SHOW=1 EVENKEEL_RACE_ROUNDS=$(or $(ROUNDS),1000) $(if $(SEED),EVENKEEL_RACE_SEED=$(SEED)) \
	  $(step) test-race cargo test --locked -p evenkeel-tests --test race -- --nocapture

# Optimised as well: else its throughput would say nothing.
test-image-stream: export CARGO_PROFILE_DEV_OPT_LEVEL := 2

.PHONY: test-image-stream
test-image-stream: tools ## an image of 1 GiB on its way into a slot: memory, and throughput beside curl | zstd -d (MIB=n)
	@SHOW=1 EVENKEEL_REQUIRE_OS_TESTS=1 EVENKEEL_IMAGE_STREAM_MIB=$(or $(MIB),1024) \
	  $(step) test-image-stream cargo test --locked -p evenkeel-update-agent --test agent -- --nocapture --test-threads=1 \
	  image_stream

.PHONY: clean
clean: ## remove what was built; the Debian roots in the cache folder stay
	cargo clean
