//! Output of apt and dpkg for packages without dependencies.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_update_agent::modules::packages::hex;
use evenkeel_update_agent::runner::{DeadlineAction, Output, RunError};
use sha2::{Digest, Sha256};

pub fn success_output(stdout: impl Into<String>) -> Output {
    Output { status: Some(0), stdout: stdout.into(), stderr: String::new() }
}

pub fn deadline_error(action: DeadlineAction) -> RunError {
    RunError::Deadline {
        program: "apt-get".into(),
        after: Duration::from_mins(1),
        action,
        output: String::new(),
    }
}

pub fn error_output(text: &str) -> Output {
    Output { status: Some(100), stdout: text.into(), stderr: String::new() }
}

pub fn content(name: &str, version: &str) -> String {
    format!("the package {name} in version {version}")
}

/// The package and version of `/folder/NAME_VERSION_all.deb`.
pub fn parse_path(path: &str) -> (String, String) {
    let file = path.rsplit('/').next().unwrap();
    let mut parts = file.split('_').map(str::to_owned);
    (parts.next().unwrap(), parts.next().unwrap())
}

pub fn parse_order(order: &str) -> (String, String) {
    let (name, version) = order.split_once('=').unwrap();
    (name.to_owned(), version.to_owned())
}

/// Output of `apt-cache show` for some versions.
pub fn show_records(orders: &[&str]) -> Output {
    let mut text = String::new();
    for order in orders {
        let (name, version) = parse_order(order);
        writeln!(
            text,
            "Package: {name}\nArchitecture: all\nVersion: {version}\nInstalled-Size: 5\n"
        )
        .unwrap();
    }
    success_output(text)
}

pub fn print_uris(orders: &[&str]) -> Output {
    let mut text = String::new();
    for order in orders {
        let (name, version) = parse_order(order);
        let content = content(&name, &version);
        let digest = hex(&Sha256::digest(&content));
        let file = format!("{name}_{version}_all.deb");
        writeln!(text, "'http://x/{file}' {file} {} SHA256:{digest}", content.len()).unwrap();
    }
    success_output(text)
}
