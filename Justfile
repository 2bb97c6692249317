# The steps of .ci/run, one by one. None of them is needed: plain cargo does the same.

default: fmt clippy test

# The greenhouse, live
dev:
    cargo run --release -- dev examples/greenhouse

fmt:
    cargo fmt --all --check
    cargo fmt --manifest-path crates/sdk/Cargo.toml --all --check

clippy:
    cargo clippy --release --workspace --all-targets -- -D warnings

test:
    cargo test --release --workspace

deny:
    cargo deny check

# What is shipped: one optimised, stripped binary
dist:
    cargo build --profile dist

# The node for 64-bit ARM, and functions on it under emulation
cross:
    .ci/cross

# Parts (criterion), then the whole beside its peers
bench:
    cargo bench --workspace
    cargo run --release -p edgefaas-benches --bin end-to-end
    cargo run --release -p edgefaas-benches --bin photons

# The JavaScript engine from its sources (needs clang and lld)
js-engine:
    crates/isolates/js-engine/build.sh

# Tarball, Debian package, image and sums of what is shipped, in target/packages; `just package --arch aarch64` for 64-bit ARM
package *options:
    packaging/build {{options}}
