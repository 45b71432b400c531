//! Packages: the interface to the package manager.

use evenkeel_configuration::document::PackageState;
use serde::{Deserialize, Serialize};

/// Installs and removes packages. The agent does this together with its updates.
pub trait PackageInstaller: Send + Sync {
    /// Makes packages as requested, in one transaction. Packages that are as requested already are
    /// no failures, so that a request can be repeated after a kill. An implementation keeps changed
    /// configuration files of packages, and removes no package that the request does not name.
    ///
    /// Returns the packages that are not as requested.
    ///
    /// # Errors
    /// No package has changed: why, as a sentence without a full stop.
    fn apply(&self, request: &PackageRequest) -> Result<Vec<PackageFailure>, String>;
}

/// Packages to install and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageRequest {
    /// Whether the sources of packages have changed, so that the lists of packages are outdated.
    pub update_lists: bool,
    pub install: Vec<PackageTarget>,
    /// Names, with an architecture if the document has it.
    pub remove: Vec<String>,
}

/// A package to install or to repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageTarget {
    pub name: String,
    /// `None`: any version. An installed version stays.
    pub version: Option<String>,
}

impl PackageTarget {
    pub(crate) fn from_entry(name: &str, state: &PackageState) -> Self {
        let version = Some(&state.version).filter(|version| *version != PackageState::ANY);
        Self { name: name.to_owned(), version: version.cloned() }
    }
}

/// A package that is not as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageFailure {
    /// The name in the request.
    pub name: String,
    /// Why, as a sentence without a full stop.
    pub reason: String,
}

/// A machine whose packages cannot be changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPackages;

impl PackageInstaller for NoPackages {
    fn apply(&self, _request: &PackageRequest) -> Result<Vec<PackageFailure>, String> {
        Err("packages cannot be changed here".to_owned())
    }
}
