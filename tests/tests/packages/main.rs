//! Updates of packages that go well and updates that do not, each with real apt and dpkg in a root of Debian 12 and in one
//! of Debian 13, from the REST call to what dpkg says on the node and to what the server keeps of it.
//!
//! Every story is told in both releases at once. All nodes belong to one fleet.

mod download;
mod input;
mod owner;
mod plain;
mod rules;
mod scripts;
mod sources;
mod story;
mod trouble;
