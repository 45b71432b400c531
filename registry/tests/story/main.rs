//! Tests of the registry client against registries, folders and files.

mod bad_input;
mod bundle;
mod conformance;
mod fuzz;
mod images;
mod layout;
mod mirror;
mod moving;
mod profiles;
mod tries;
mod trust;
