//! Packages by `apt-get`, for machines whose agent does not change packages itself.

use std::time::Duration;

use super::packages::{PackageFailure, PackageInstaller, PackageRequest, PackageTarget};
use super::programs::run_program;
use crate::machine::{Machine, Program};

const UPDATE_TIMEOUT: Duration = Duration::from_mins(15);

const CHANGE_TIMEOUT: Duration = Duration::from_hours(2);

/// `env` sets them, because the runner has its own environment.
const ENVIRONMENT: [&str; 3] = ["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get"];

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
        let _ = run_program(self.machine, "dpkg", &["--configure", "-a"], CHANGE_TIMEOUT);
        if request.update_lists {
            let arguments: Vec<&str> = ENVIRONMENT.into_iter().chain(["update"]).collect();
            run_program(self.machine, "env", &arguments, UPDATE_TIMEOUT).map_err(|error| {
                format!("cannot update the lists of packages: {}", rename(&error))
            })?;
        }
        let Err(reason) = self.change(request) else { return Ok(Vec::new()) };
        let mut parts = list_parts(request);
        if let [(name, _)] = parts.as_mut_slice() {
            return Ok(vec![PackageFailure { name: std::mem::take(name), reason }]);
        }
        let change = |(name, part): (String, PackageRequest)| {
            self.change(&part).err().map(|reason| PackageFailure { name, reason })
        };
        Ok(parts.into_iter().filter_map(change).collect())
    }
}

impl AptPackages<'_> {
    fn change(self, request: &PackageRequest) -> Result<(), String> {
        let mut arguments: Vec<String> =
            ENVIRONMENT.into_iter().chain(OPTIONS).map(str::to_owned).collect();
        arguments.extend(request.install.iter().map(|target| match &target.version {
            Some(version) => format!("{}={version}", target.name),
            None => target.name.clone(),
        }));
        arguments.extend(request.remove.iter().map(|name| format!("{name}-")));
        self.check_removals(&arguments, request)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run_program(self.machine, "env", &arguments, CHANGE_TIMEOUT).map_err(|error| rename(&error))
    }

    /// Simulates the change, and refuses it if it would remove other packages.
    fn check_removals(self, arguments: &[String], request: &PackageRequest) -> Result<(), String> {
        let mut arguments = arguments.to_vec();
        arguments.insert(ENVIRONMENT.len(), "--simulate".to_owned());
        let program = Program { name: "env".to_owned(), arguments, timeout: CHANGE_TIMEOUT };
        let output = self.machine.programs.run(&program).map_err(|error| error.to_string())?;
        let base = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        let text = String::from_utf8_lossy(&output.stdout);
        let removed = text.lines().filter_map(|line| line.strip_prefix("Remv "));
        let removed = removed.filter_map(|line| line.split(' ').next()).map(base);
        let others: Vec<String> = removed
            .filter(|name| !request.remove.iter().any(|allowed| base(allowed) == *name))
            .collect();
        if others.is_empty() {
            return Ok(());
        }
        Err(format!("apt would also remove {}", others.join(", ")))
    }
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

    /// A machine with the packages `web` and `tool`, which depends on `base`.
    #[derive(Clone, Default)]
    struct AptModel(Arc<Mutex<Vec<String>>>);

    impl ProgramRunner for AptModel {
        fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
            let words = &program.arguments[..];
            let has = |word: &str| words.iter().any(|other| other == word);
            let mut output = ProgramOutput::default();
            let start = words.iter().position(|word| word == "install").unwrap_or(0);
            if has("--simulate") {
                if has("base-") {
                    output.stdout = b"Remv tool [1]\nRemv base:amd64 [1]\nInst web (1)\n".to_vec();
                }
                return Ok(output);
            }
            self.0.lock().unwrap().push(words[start..].join(" "));
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
        let update = "DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get update";
        assert_eq!(calls, ["--configure -a", update, "install web lib=1:2 old-"]);
        assert_eq!(result, Ok(Vec::new()));
    }

    #[test]
    fn a_package_that_does_not_exist_fails_alone() {
        let (calls, result) = apply(&request(&[("none", None), ("web", None)], &[]));
        assert_eq!(calls[1..], ["install none web", "install none", "install web"]);
        let failures = result.unwrap();
        assert_eq!(failures.len(), 1);
        let reason = "apt-get failed with status 100: E: Unable to locate package none";
        assert_eq!((failures[0].name.as_str(), failures[0].reason.as_str()), ("none", reason));
    }

    #[test]
    fn no_package_is_removed_that_the_request_does_not_name() {
        let (calls, result) = apply(&request(&[], &["base"]));
        assert_eq!(calls, ["--configure -a"]);
        assert_eq!(result.unwrap()[0].reason, "apt would also remove tool");
        let (calls, _) = apply(&request(&[], &["base", "tool"]));
        assert_eq!(calls[1], "install base- tool-");
    }
}
