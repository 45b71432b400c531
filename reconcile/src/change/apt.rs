//! Packages by `apt-get`, for machines whose agent does not change packages itself.

use std::time::Duration;

use super::packages::{PackageFailure, PackageInstaller, PackageRequest, PackageTarget};
use super::programs::run_program;
use crate::machine::{Machine, Program};
use crate::names::package_base_name;
use crate::text::clean_text;

const UPDATE_TIMEOUT: Duration = Duration::from_mins(15);

const CHANGE_TIMEOUT: Duration = Duration::from_hours(2);

/// `env` sets them, because the runner has its own environment. `needrestart` restarts no services:
/// the run does that.
const ENVIRONMENT: [&str; 4] =
    ["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "NEEDRESTART_SUSPEND=1", "NEEDRESTART_MODE=l"];

const CONFIGURE: [&str; 4] = ["dpkg", "--force-confold", "--configure", "-a"];

/// Errors after which a smaller change fails as well.
const GENERAL_ERRORS: [&str; 8] = [
    "Could not get lock",
    "Unable to lock",
    "Unable to acquire the dpkg",
    "No space left",
    "enough free space",
    "Failed to fetch",
    "Unable to fetch",
    "Could not resolve",
];

/// Errors that a current list of packages may correct.
const UNKNOWN_PACKAGE_ERRORS: [&str; 3] =
    ["Unable to locate package", "has no installation candidate", "was not found"];

/// Changed configuration files of packages stay. A document may name an older version.
const OPTIONS: [&str; 7] = [
    "--yes",
    "--allow-downgrades",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "DPkg::Lock::Timeout=120",
    "install",
];

/// Changes packages with `apt-get`.
///
/// All packages are one transaction. If it fails, each package is changed alone, so that a package
/// that does not exist fails alone. Half-configured packages are configured first.
#[derive(Clone, Copy, Debug)]
pub struct AptPackages<'a> {
    pub machine: &'a Machine,
}

impl PackageInstaller for AptPackages<'_> {
    fn apply(&self, request: &PackageRequest) -> Result<Vec<PackageFailure>, String> {
        // A package that cannot be configured fails below, if the request needs it.
        let arguments: Vec<&str> = ENVIRONMENT.into_iter().chain(CONFIGURE).collect();
        let _ = run_program(self.machine, "env", &arguments, CHANGE_TIMEOUT);
        if request.update_lists {
            self.update_lists()?;
        }
        let mut result = self.change(request);
        let is_unknown = |reason: &String| has_one(reason, &UNKNOWN_PACKAGE_ERRORS);
        if result.as_ref().is_err_and(is_unknown) && !request.update_lists {
            // A new image may have no lists.
            self.update_lists()?;
            result = self.change(request);
        }
        let Err(reason) = result else { return Ok(Vec::new()) };
        let parts = list_parts(request);
        if parts.len() == 1 || has_one(&reason, &GENERAL_ERRORS) {
            let names = parts.into_iter().map(|(name, _)| name);
            return Ok(names.map(|name| PackageFailure { name, reason: reason.clone() }).collect());
        }
        let change = |(name, part): (String, PackageRequest)| {
            self.change(&part).err().map(|reason| PackageFailure { name, reason })
        };
        Ok(parts.into_iter().filter_map(change).collect())
    }
}

fn has_one(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

impl AptPackages<'_> {
    fn update_lists(self) -> Result<(), String> {
        let arguments: Vec<&str> = ENVIRONMENT.into_iter().chain(["apt-get", "update"]).collect();
        run_program(self.machine, "env", &arguments, UPDATE_TIMEOUT)
            .map_err(|error| format!("cannot update the lists of packages: {}", rename(&error)))
    }

    fn change(self, request: &PackageRequest) -> Result<(), String> {
        let mut arguments: Vec<String> = OPTIONS.into_iter().map(str::to_owned).collect();
        if request.remove.is_empty() {
            arguments.insert(0, "--no-remove".to_owned());
        }
        arguments.extend(request.install.iter().map(|target| match &target.version {
            Some(version) => format!("{}={version}", target.name),
            None => target.name.clone(),
        }));
        arguments.extend(request.remove.iter().map(|name| format!("{name}-")));
        self.check_simulation(&arguments, request)?;
        let environment = ENVIRONMENT.into_iter().chain(["apt-get"]);
        let arguments: Vec<&str> =
            environment.chain(arguments.iter().map(String::as_str)).collect();
        run_program(self.machine, "env", &arguments, CHANGE_TIMEOUT).map_err(|error| rename(&error))
    }

    /// Simulates the change, and refuses it if it would remove other packages, or select packages
    /// by a pattern: a name that apt does not know is a regular expression.
    fn check_simulation(
        self,
        arguments: &[String],
        request: &PackageRequest,
    ) -> Result<(), String> {
        let words = ENVIRONMENT.into_iter().chain(["apt-get", "--simulate"]);
        let arguments = words.map(str::to_owned).chain(arguments.iter().cloned()).collect();
        let program = Program { name: "env".to_owned(), arguments, timeout: CHANGE_TIMEOUT };
        let output = self.machine.programs.run(&program).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status != 0 {
            let error = clean_text(errors.trim().lines().last().unwrap_or_default());
            return Err(format!("apt-get failed with status {}: {error}", output.status));
        }
        let mut lines = text.lines().chain(errors.lines());
        if lines.any(|line| has_one(line, &[" for regex '", " for glob '", " for task '"])) {
            return Err("apt knows no package with this name, and selects others".to_owned());
        }
        let removed = text.lines().filter_map(|line| line.strip_prefix("Remv "));
        let removed: Vec<&str> = removed.filter_map(|line| line.split(' ').next()).collect();
        if count_removals(&text) != Some(removed.len()) {
            return Err("the output of the simulation by apt-get is not complete".to_owned());
        }
        let others: Vec<&str> = removed
            .into_iter()
            .map(package_base_name)
            .filter(|name| !request.remove.iter().any(|other| package_base_name(other) == *name))
            .collect();
        if others.is_empty() {
            return Ok(());
        }
        Err(format!("apt would also remove {}", others.join(", ")))
    }
}

/// The number of removals in the summary of apt: `0 upgraded, 1 newly installed, 2 to remove and`.
fn count_removals(text: &str) -> Option<usize> {
    let (before, _) = text.split_once(" to remove and ")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// The error of the program that `env` has run.
fn rename(error: &str) -> String {
    error.replacen("env", "apt-get", 1)
}

/// Each package of a request alone.
fn list_parts(request: &PackageRequest) -> Vec<(String, PackageRequest)> {
    let install = |target: &PackageTarget| {
        let part = PackageRequest { install: vec![target.clone()], ..PackageRequest::default() };
        (target.name.clone(), part)
    };
    let remove = |name: &String| {
        let part = PackageRequest { remove: vec![name.clone()], ..PackageRequest::default() };
        (name.clone(), part)
    };
    request.install.iter().map(install).chain(request.remove.iter().map(remove)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::machine::{ProgramError, ProgramOutput, ProgramRunner};

    const CONFIGURE_CALL: &str = "dpkg --force-confold --configure -a";

    /// A machine with the packages `web` and `tool`, which depends on `base`.
    #[derive(Clone, Default)]
    struct AptModel(Arc<Mutex<Vec<String>>>);

    impl ProgramRunner for AptModel {
        fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
            let words = &program.arguments[..];
            let has = |word: &str| words.iter().any(|other| other == word);
            let mut output = ProgramOutput::default();
            if has("--simulate") {
                let text = if has("base-") {
                    "0 upgraded, 0 newly installed, 2 to remove and 0 not upgraded.\n\
                     Remv tool [1]\nRemv base:amd64 [1]\nInst web (1)\n"
                } else if has("cut-") {
                    "0 upgraded, 0 newly installed, 2 to remove and 0 not upgraded.\nRemv cut [1]\n"
                } else if has("php8.2") {
                    "Note, selecting 'php8x2' for regex 'php8.2'\n\
                     0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.\n"
                } else {
                    "0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n"
                };
                output.stdout = text.as_bytes().to_vec();
                return Ok(output);
            }
            let start =
                words.iter().position(|word| matches!(&**word, "install" | "apt-get" | "dpkg"));
            let start = words.iter().position(|word| word == "install").or(start);
            self.0.lock().unwrap().push(words[start.unwrap_or(0)..].join(" "));
            if has("locked") {
                output.status = 100;
                output.stderr = b"E: Could not get lock /var/lib/dpkg/lock-frontend\n".to_vec();
            }
            if has("none") {
                output.status = 100;
                output.stderr = b"E: Unable to locate package none\n".to_vec();
            }
            Ok(output)
        }
    }

    fn apply(request: &PackageRequest) -> (Vec<String>, Result<Vec<PackageFailure>, String>) {
        let model = AptModel::default();
        let programs = Box::new(model.clone());
        let machine = Machine { root: "/".into(), programs };
        let result = AptPackages { machine: &machine }.apply(request);
        let calls = model.0.lock().unwrap().clone();
        (calls, result)
    }

    fn request(install: &[(&str, Option<&str>)], remove: &[&str]) -> PackageRequest {
        let target = |(name, version): &(&str, Option<&str>)| PackageTarget {
            name: (*name).to_owned(),
            version: version.map(str::to_owned),
        };
        PackageRequest {
            update_lists: false,
            install: install.iter().map(target).collect(),
            remove: remove.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn packages_are_changed_in_one_transaction() {
        let mut request = request(&[("web", None), ("lib", Some("1:2"))], &["old"]);
        request.update_lists = true;
        let (calls, result) = apply(&request);
        assert_eq!(calls, [CONFIGURE_CALL, "apt-get update", "install web lib=1:2 old-"]);
        assert_eq!(result, Ok(Vec::new()));
    }

    #[test]
    fn a_package_that_does_not_exist_fails_alone() {
        let (calls, result) = apply(&request(&[("none", None), ("web", None)], &[]));
        let first = "install none web";
        assert_eq!(calls[1..], [first, "apt-get update", first, "install none", "install web"]);
        let failures = result.unwrap();
        assert_eq!(failures.len(), 1);
        let reason = "apt-get failed with status 100: E: Unable to locate package none";
        assert_eq!((failures[0].name.as_str(), failures[0].reason.as_str()), ("none", reason));
    }

    #[test]
    fn no_package_is_removed_that_the_request_does_not_name() {
        let (calls, result) = apply(&request(&[], &["base"]));
        assert_eq!(calls, [CONFIGURE_CALL]);
        assert_eq!(result.unwrap()[0].reason, "apt would also remove tool");
        let (calls, _) = apply(&request(&[], &["base", "tool"]));
        assert_eq!(calls[1], "install base- tool-");
    }

    #[test]
    fn a_simulation_that_is_not_understood_changes_nothing() {
        for (install, remove, reason) in
            [(&[("php8.2", None)][..], &[][..], "selects others"), (&[], &["cut"], "not complete")]
        {
            let (calls, result) = apply(&request(install, remove));
            assert_eq!(calls, [CONFIGURE_CALL]);
            let failure = result.unwrap().remove(0).reason;
            assert!(failure.contains(reason), "{failure}");
        }
    }

    #[test]
    fn an_error_that_concerns_all_packages_is_not_repeated_for_each() {
        let (calls, result) = apply(&request(&[("locked", None), ("web", None)], &[]));
        assert_eq!(calls[1..], ["install locked web"]);
        assert_eq!(result.unwrap().len(), 2);
    }
}
