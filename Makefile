# Two targets do all the set-up: `make demo` and `make test`.

# A pipe fails if any of its commands does.
SHELL := bash
.SHELLFLAGS := -o pipefail -c

CARGO ?= cargo
# For the scripts, too: where cargo puts what it builds.
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
SPHX ?= $(RELEASE)/sphx
export SPHX
# What `sphx --version` says of this build; a + for what differs from it.
COMMIT = $(shell git describe --always --exclude '*' --abbrev=8 --dirty=+ 2>/dev/null)
# Where `make install` puts it.
BINDIR ?= $${CARGO_HOME:-$$HOME/.cargo}/bin
# Random links and faults for `make sim` and `make sim-pep`.
SEEDS ?= 2000

# Orders of threads for `make shuttle`.
SCHEDULES ?= 1000

# Runs of 32 streams for `make bench-streams`.
RUNS ?= 100

# What is compared with, for benchmarks: other crates' codes, and QUIC. And streams for tokio.
# Transfers over DPDK are among the tests where its headers are (libdpdk-dev).
DPDK := $(shell pkg-config --atleast-version=22.11 libdpdk 2>/dev/null && echo ,sphinx-cli/dpdk)

FEATURES := sphinx-codes/peers,sphinx-lab/quinn,sphinx-transport/tokio$(DPDK)

# The target triple of this machine.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

# Moves of `make bench-pep-moves`.
MOVES ?= 20

# Fuzz target and time for `make fuzz`.
TARGET ?= sessions
SECONDS ?= 60
# `none` is twice as fast, and finds no misuse of memory but what a check or a crash shows.
SANITIZER ?= address

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: tools
tools:
	@scripts/prerequisites

.PHONY: build
build: tools ## Build the sphx command; its symbols go to target/release/sphx.debug
	SPHINX_COMMIT=$(COMMIT) $(CARGO) build --release --locked --package sphinx-cli
	@scripts/split-symbols $(RELEASE)/sphx

.PHONY: build-small
build-small: tools ## Build sphx without codes, demo, lab, pep, tunnel, server and join, into target/small
	SPHINX_COMMIT=$(COMMIT) $(CARGO) build --release --locked --package sphinx-cli --no-default-features --target-dir target/small
	@scripts/split-symbols target/small/release/sphx

.PHONY: demo
demo: build ## Watch TCP and Sphinx cross the same lossy link
	@$(SPHX) demo $(ARGS)

.PHONY: test
test: tools ## Run every test (CARGO_FLAGS=--release: slower to compile, faster to run)
	$(CARGO) test --workspace --features $(FEATURES) --locked --no-fail-fast $(CARGO_FLAGS)

.PHONY: quick
quick: tools ## The core's tests and a hundred random links: the loop after a change in it
	$(CARGO) test --locked --package sphinx-proto --lib
	SPHINX_SIM_SEEDS=100 $(CARGO) test --locked --package sphinx-proto --test sim random

.PHONY: sim
sim: tools ## Random links, faults and configurations in virtual time (SEEDS=2000)
	SPHINX_SIM_SEEDS=$(SEEDS) $(CARGO) test --release --locked --package sphinx-proto --test sim -- random jitter
	SPHINX_STREAMS_SEEDS=$(SEEDS) $(CARGO) test --release --locked --package sphinx-driver --test streams

.PHONY: kills
kills: tools ## Kill either end of sphx sync fifty times at random moments (needs sshd and rsync; SPHINX_KILLS_SEED=1, SPHINX_KILLS=50; minutes)
	$(CARGO) test --locked --package sphinx-cli --test command $(CARGO_FLAGS) -- --ignored --nocapture fifty_random_kills

.PHONY: long-paths
long-paths: tools ## Windows that grow to 10 Gbit/s at 200 ms and 1 Gbit/s at 600 ms, in virtual time (minutes, 4 GB)
	$(CARGO) test --release --locked --package sphinx-proto --test sim -- long_and_fast --ignored --nocapture

.PHONY: simulated
simulated: tools ## Write docs/simulated.txt: what the protocol reaches in virtual time (2 minutes)
	$(CARGO) test --release --locked --package sphinx-proto --test sim --no-run
	$(CARGO) test --release --locked --package sphinx-proto --test sim -- --exact table::table --ignored --nocapture 2>/dev/null \
		| grep -vE '^(running|test) |^$$' > docs/simulated.txt.new
	mv docs/simulated.txt.new docs/simulated.txt

.PHONY: sc-multipath
sc-multipath: tools ## Write docs/sc-multipath.txt: unequal paths and a bounded buffer, in virtual time (5 minutes)
	$(CARGO) test --release --locked --package sphinx-proto --test sim --no-run
	$(CARGO) test --release --locked --package sphinx-proto --test sim -- --exact sc_table::table --ignored --nocapture 2>/dev/null \
		| grep -vE '^(running|test) ' | cat -s > docs/sc-multipath.txt.new
	mv docs/sc-multipath.txt.new docs/sc-multipath.txt

.PHONY: sim-pep
sim-pep: tools ## Random paths for kernel-like TCP with an agent in the middle, in virtual time (SEEDS=2000)
	SPHINX_PEP_SEEDS=$(SEEDS) $(CARGO) test --release --locked --package sphinx-pep --test sim random

.PHONY: mutants-pep
mutants-pep: ## Put faults into the TCP agent, one by one: each has to fail a test (minutes)
	scripts/mutants-pep

.PHONY: miri
miri: tools ## Run the tests of sphinx-fec (scalar engine), and of the rings of workers and of AF_XDP, under Miri (minutes; nightly)
	PROPTEST_CASES=2 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-deterministic-floats" $(CARGO) +nightly miri test --locked --package sphinx-fec --lib --tests
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" $(CARGO) +nightly miri test --locked --package sphinx-workers --lib crew
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --locked --package sphinx-xdp --lib ring

.PHONY: tsan
tsan: tools ## Run the tests of threads that share rings, pools and wakers under the thread sanitizer (nightly with rust-src)
	RUSTFLAGS="-Zsanitizer=thread" $(CARGO) +nightly test --locked -Zbuild-std --target-dir target/tsan --target $(HOST) \
		--package sphinx-driver --package sphinx-net --package sphinx-workers --package sphinx-xdp --lib

.PHONY: shuttle
shuttle: tools ## Sessions with three workers each in random orders of threads: epochs change, sessions close (SCHEDULES=1000)
	SPHINX_SCHEDULES=$(SCHEDULES) RUSTFLAGS="--cfg shuttle" $(CARGO) test --locked --target-dir target/shuttle --package sphinx-workers --lib schedules

.PHONY: loom
loom: tools ## Models of the threads that meet at queues, doorbell and wakers, in every order (LOOM_MAX_PREEMPTIONS)
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --target-dir target/loom --package sphinx-net --package sphinx-driver --package sphinx-workers --package sphinx-transport --lib models

.PHONY: asan
asan: tools ## Run the tests of the crates with unsafe code in the product under the address sanitizer (nightly)
	RUSTFLAGS="-Zsanitizer=address" $(CARGO) +nightly test --locked --target-dir target/asan --target $(HOST) --package sphinx-fec --package sphinx-net --lib --tests

.PHONY: test-neon
test-neon: tools ## Run the tests of sphinx-fec on emulated 64-bit ARM (NEON engine)
	@CARGO="$(CARGO)" scripts/test-neon

.PHONY: fuzz
fuzz: tools ## Fuzz one target of docs/fuzzing.md (TARGET=sessions SECONDS=60)
	$(CARGO) +nightly fuzz run --sanitizer $(SANITIZER) $(TARGET) -- -max_total_time=$(SECONDS) -max_len=700 -entropic=0

.PHONY: soak
soak: build ## Ten minutes of random transfers, kills, full disks, unread pipes, bad links (ARGS="--seed 1")
	@scripts/soak $(ARGS)

.PHONY: bench-link
bench-link: build ## Sphinx beside kernel TCP and QUIC on an emulated link (ARGS="--set full")
	$(CARGO) build --release --locked --package sphinx-lab --features quinn
	@$(RELEASE)/bench-link $(ARGS)

.PHONY: bench-veth
bench-veth: build ## Sphinx beside QUIC and TCP at line rate, and tasks beside threads, over a veth pair (root, iproute2, ethtool, iperf3)
	$(CARGO) build --release --locked --package sphinx-lab --features quinn
	@scripts/bench-veth $(ARGS)
	$(CARGO) run --release --locked --package sphinx-transport --features tokio --example tokio_bulk -- --veth

.PHONY: bench-xdp
bench-xdp: build ## AF_XDP beside UDP sockets with and without segmentation, over a veth pair (root, iproute2)
	@scripts/bench-xdp $(ARGS)

.PHONY: test-dpdk
test-dpdk: ## Transfers over DPDK's virtual cards (root, iproute2, libdpdk-dev >= 22.11)
	$(CARGO) test --locked --package sphinx-dpdk --features dpdk $(CARGO_FLAGS)
	$(CARGO) test --locked --package sphinx-cli --features dpdk --test command over_dpdk $(CARGO_FLAGS)

.PHONY: bench-tun
bench-tun: build ## Kernel TCP and ping over sphx tunnel --tun at 6 % loss, RTT 10 and 100 ms (root, iproute2; 6 minutes; ARGS="--seeds 1")
	@scripts/bench-tun $(ARGS)

.PHONY: bench-tunnel
bench-tunnel: build ## sphx tunnel beside ssh, hysteria, kcptun, UDPspeeder and wireguard-go, as far as installed (root, iproute2; 30 minutes; ARGS="--only forward --seeds 1")
	@scripts/bench-tunnel $(ARGS)

.PHONY: bench-fairness
bench-fairness: build ## Shares of one queue beside kernel TCP and beside itself (iperf3; 6 minutes)
	@scripts/bench-fairness $(ARGS)

.PHONY: bench-streams
bench-streams: build ## 32 and 256 streams over loopback: hangs, and speed beside one (RUNS=100)
	@RUNS=$(RUNS) scripts/bench-streams $(ARGS)

.PHONY: bench-sessions
bench-sessions: tools ## Many sessions of one server, on loopback: memory of those at rest, shares of those that send and are sent to (ARGS="IDLE ACTIVE SHARDS SECONDS CPUS CLIENTS")
	$(CARGO) run --release --locked --package sphinx-transport --example load -- $(ARGS)

.PHONY: bench-idle-streams
bench-idle-streams: tools ## One bulk stream beside 9 999 idle ones, in virtual time, and what an idle one costs in memory (minutes)
	SPHINX_STREAMS_IDLE=9999 $(CARGO) test --release --locked --package sphinx-driver --test streams -- idle_streams --nocapture
	$(CARGO) test --release --locked --package sphinx-transport --test idle_streams -- --nocapture

.PHONY: bench-async
bench-async: tools ## Bulk by tasks of tokio beside bulk by threads, over loopback (ARGS="[--veth] MB ROUNDS")
	$(CARGO) run --release --locked --package sphinx-transport --features tokio --example tokio_bulk -- $(ARGS)

.PHONY: bench-flood
bench-flood: build ## A transfer beside 100 000 datagrams of garbage a second (root; ARGS="--time 600 all")
	$(CARGO) build --release --locked --package sphinx-transport --example flood
	@scripts/bench-flood $(ARGS)

.PHONY: bench-resume
bench-resume: build ## A file over loopback, one end killed on the way: what going on costs (ARGS="--bytes 20GB --at 60%")
	@scripts/bench-resume $(ARGS)

.PHONY: bench-cp
bench-cp: build ## Copying over ssh beside send, scp and rsync on one emulated link (root, sshd; ARGS="--bytes 100MB --loss 1%")
	@scripts/bench-cp $(ARGS)

.PHONY: bench-sync
bench-sync: build ## Trees over ssh: sync beside rsync on one emulated link, lossless and at 1 % (root, sshd, rsync; ARGS="--files 1000 --tree 10000 --big 100MB")
	@scripts/bench-sync $(ARGS)

.PHONY: bench-emulator
bench-emulator: tools ## Exactness, rate and CPU time of the link emulator on this machine
	$(CARGO) run --release --locked --package sphinx-link --example accuracy -- $(ARGS)

.PHONY: bench-pep
bench-pep: tools ## Kernel TCP over a lossy hop, with and without an agent (root, iproute2; 3 minutes)
	$(CARGO) run --release --locked --package sphinx-pep --example kernels -- $(ARGS)

.PHONY: bench-thin
bench-thin: tools ## Messages of thin streams over a link that loses packets, with and without RDB (root; ARGS="FLOWS SECONDS PERCENT RUNS")
	$(CARGO) run --release --locked --package sphinx-pep --example thin -- $(ARGS)

.PHONY: bench-thin-cost
bench-thin-cost: tools ## What the agent for thin streams costs: processor time, and latency without loss (root, iproute2; ARGS="FLOWS SECONDS RUNS")
	$(CARGO) run --release --locked --package sphinx-pep --example thin_cost -- $(ARGS)

.PHONY: bench-pep-gaps
bench-pep-gaps: build ## What a connection feels when the agent is killed or stopped (root, iproute2; 10 minutes; ARGS=ROUNDS)
	@scripts/bench-pep-gaps $(ARGS)

.PHONY: bench-pep-moves
bench-pep-moves: tools ## A mobile host goes to and fro between two base stations with agents, between kernels: time-outs of the sender (root, iproute2; MOVES=20)
	SPHINX_MOVES=$(MOVES) $(CARGO) test --release --locked --package sphinx-cli --test command -- --nocapture mobile_host_moves

.PHONY: bench-codes
bench-codes: tools ## Speed of every erasure code beside other crates, ratios with intervals (ARGS="--n 100 --code rlc --peer leopard=PROGRAM")
	$(CARGO) run --release --locked --package sphinx-codes --features peers --example codes -- bench --rounds 10 $(ARGS)

.PHONY: bench-instructions
bench-instructions: tools ## Instructions per coded block, and per packet of the TCP agent, counted by callgrind
	@CARGO="$(CARGO)" scripts/bench-instructions

.PHONY: results
results: build ## Measure every figure and render docs/results (a day; ends with 1 where a claim does not hold, which some do not)
	$(CARGO) build --release --locked --package sphinx-lab --features quinn
	status=0; $(SPHX) lab figure all || status=1; $(SPHX) lab report || status=1; scripts/check-report && exit $$status

.PHONY: lab-quick
lab-quick: build ## The paper's figures in less than six minutes, with the claims that must hold
	@scripts/lab-quick

.PHONY: lint
lint: tools ## Formatting, clippy, documentation, licences (CARGO_FLAGS=--release shares what a release build has built)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features $(FEATURES) --locked $(CARGO_FLAGS) -- --deny warnings
	$(CARGO) clippy --package sphinx-fec --no-default-features --all-targets --locked $(CARGO_FLAGS) -- --deny warnings
	$(CARGO) clippy --package sphinx-cli --no-default-features --all-targets --locked $(CARGO_FLAGS) -- --deny warnings
	$(CARGO) clippy --package sphinx-cli --no-default-features --features pep --locked $(CARGO_FLAGS) -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --features $(FEATURES) --no-deps --locked --document-private-items $(CARGO_FLAGS)
	@$(CARGO) metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 >/dev/null
	@scripts/check-security
	@scripts/index-decisions --check
	@scripts/deny

.PHONY: install
install: build ## Install sphx into ~/.cargo/bin, or BINDIR
	install -D -m 755 $(RELEASE)/sphx "$(BINDIR)/sphx"

.PHONY: clean
clean: ## Remove what was built
	$(CARGO) clean
