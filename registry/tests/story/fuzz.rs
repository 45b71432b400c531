//! Feeds mutated documents to their parsers, for `EVENKEEL_FUZZ_SECONDS` seconds each (default 1).
//!
//! Each input is derived from a seed that a failure prints. `EVENKEEL_FUZZ_SEED=<seed>` starts with
//! it.

mod documents;
#[cfg(test)]
#[path = "../../../domain/tests/fuzz/driver.rs"]
mod driver;
