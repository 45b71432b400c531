//! Fuzz tests of all parsers of untrusted input, for `EVENKEEL_FUZZ_SECONDS` seconds each (1 if unset).
//!
//! Every input is made from a seed that is printed on a failure; `EVENKEEL_FUZZ_SEED=<number>` begins with it.

mod cron;
#[cfg(test)]
mod driver;
mod eim;
mod filter;
