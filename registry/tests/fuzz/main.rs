//! What anybody can publish is thrown at what reads it, for `EVENKEEL_FUZZ_SECONDS` seconds each (1 if unset).
//!
//! Every input is made from a number that is shown when it fails; `EVENKEEL_FUZZ_SEED=<number>` begins with it.

mod documents;
#[path = "../../../domain/tests/fuzz/driver.rs"]
mod driver;
