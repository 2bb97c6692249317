//! isolates/js-abi
