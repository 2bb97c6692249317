#!/bin/sh
# Rebuilds engine.wasm. Needs clang 16 or newer with the wasm32 target, its llvm-ar, and rustup.
#   CLANG=clang-19 LLVM_AR=llvm-ar-19 ./build.sh
set -eu
cd "$(dirname "$0")"

export CC_wasm32_unknown_unknown="${CLANG:-clang-16}"
export AR_wasm32_unknown_unknown="${LLVM_AR:-llvm-ar-16}"
export CFLAGS_wasm32_unknown_unknown="-O3 -DNDEBUG"
# The node makes the memory; a megabyte of stack lies below the data, so an overflow traps.
export RUSTFLAGS="-C link-arg=--import-memory -C link-arg=-zstack-size=1048576 -C link-arg=--stack-first -C target-feature=+bulk-memory,+sign-ext,+nontrapping-fptoint,+mutable-globals --remap-path-prefix=$HOME=."

cargo build --release --locked --target wasm32-unknown-unknown
cp target/wasm32-unknown-unknown/release/edgefaas_js_engine.wasm engine.wasm

# State outside of memory would not be in the snapshot: the stack pointer must be the only mutable global.
cargo run --quiet --release --locked --manifest-path check/Cargo.toml -- engine.wasm
