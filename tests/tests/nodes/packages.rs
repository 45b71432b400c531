//! Successful and failing updates of packages, with real apt and dpkg in roots of Debian 12 and
//! Debian 13, from the REST call to the state of dpkg on the node and the record on the server.
//!
//! Every scenario runs in both releases at the same time. All nodes belong to one fleet.

mod basic;
mod configuration;
mod download;
mod input;
mod kernels;
mod machine_faults;
mod marks;
mod owner;
mod redirects;
mod rules;
mod scenario;
mod scripts;
mod sources;
