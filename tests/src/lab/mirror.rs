//! The mirror of Debian that this machine uses.

use super::Suite;
use super::disk::try_output;
use super::machine::{command, script};

/// Apt sources of a release with its updates and security updates.
///
/// # Errors
/// A mirror is missing, does not answer, or does not contain the release.
pub fn find_debian_sources(suite: Suite) -> Result<String, String> {
    try_output(command(script("debian-sources")).arg(suite.name()))
}
