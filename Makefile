# The everyday commands. The gate that a change must pass is .ci/run.

.PHONY: run bench bench-kafka test test-kafka chaos lint doc deny

# The main job, on a Postgres that it starts itself.
run:
	cargo run --example quickstart

# Every test: unit, integration, examples, doctests. Finds or starts a Postgres and a Kafka; for Kafka it needs Java 17,
# Maven, a C compiler, make and zlib's headers. ARGS goes to the tests.
test:
	cargo test --workspace --no-fail-fast -- $(ARGS)
	cargo test --package outbox-pg --features tokio-postgres,diesel-async,sea-orm --test drivers -- $(ARGS)

# The Kafka transport alone.
test-kafka:
	cargo test --package outbox-kafka --features client --no-fail-fast

# Five minutes of faults by a random seed, which is printed; then the history of it is checked. Not part of the gate.
chaos:
	cargo run --package outbox-chaos -- run

# Every number beside its floor, in one run; wants a quiet machine, and takes minutes. `make bench ONLY="drain publish"`
# runs some; OUTBOX_BENCH_EVENTS and OUTBOX_BENCH_ROUNDS size them. Results: target/bench/.
bench:
	cargo bench --bench outbox -- $(ONLY)

# The Kafka transport beside a plain producer, and Postgres to a topic: make bench-kafka ONLY="guard postgres".
bench-kafka:
	cargo bench --package outbox-kafka --features client --bench throughput -- $(ONLY)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Licences, banned crates, sources. Advisories need the network: `cargo deny check advisories`.
deny:
	cargo deny check bans licenses sources
