//! How fast lists of packages and of vulnerabilities are read.

use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_registry::{Finding, cves, packages};
use serde::Serialize;

use crate::measure::as_f64;
use crate::report::tidy;

/// How many entries a list has.
const ENTRIES: usize = 20_000;

/// How long one kind is read again and again.
const LENGTH: Duration = Duration::from_secs(1);

/// How fast a list of [`ENTRIES`] is read.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Which one.
    pub what: &'static str,
    /// Its size.
    pub mib: f64,
    /// How much of it is read a second.
    pub mib_per_second: f64,
}

/// Reads lists of all kinds, again and again.
pub fn measure() -> anyhow::Result<Vec<Figures>> {
    let of_packages = |text: &str| packages(text.as_bytes()).map(drop);
    let of_cves = |text: &str| cves(text.as_bytes(), None).map(drop);
    Ok(vec![
        speed("packages, the ancestor's JSON", &ancestors(), of_packages)?,
        speed("packages, lines of dpkg", &dpkg(), of_packages)?,
        speed("vulnerabilities, OSV", &osv(), of_cves)?,
    ])
}

fn speed(
    what: &'static str,
    text: &str,
    read: impl Fn(&str) -> Result<(), Finding>,
) -> anyhow::Result<Figures> {
    let (began, mut times) = (Instant::now(), 0_u32);
    while began.elapsed() < LENGTH {
        read(text).ok().context(what)?;
        times += 1;
    }
    let mib = as_f64(text.len() as u64) / f64::from(1 << 20);
    Ok(Figures {
        what,
        mib: tidy(mib),
        mib_per_second: tidy(mib * f64::from(times) / began.elapsed().as_secs_f64()),
    })
}

fn ancestors() -> String {
    let package = |n| {
        format!(
            "{{\"name\":\"package-{n}\",\"version\":\"{n}.0.1-1.emt3\",\"architecture\":\"x86_64\",\"license\":\"MIT\"}}"
        )
    };
    let packages: Vec<_> = (0..ENTRIES).map(package).collect();
    format!("{{\"repo\":[{}]}}", packages.join(",\n"))
}

fn dpkg() -> String {
    let line = |n| format!("package-{n}:amd64\t1:{n}.2.3~rc1-0ubuntu{n}+b1\n");
    (0..ENTRIES).map(line).collect()
}

fn osv() -> String {
    let record = |n| {
        format!(
            "{{\"id\":\"UBUNTU-CVE-2024-{n}\",\"severity\":[{{\"type\":\"Ubuntu\",\"score\":\"low\"}}],\
             \"affected\":[{{\"package\":{{\"name\":\"package-{n}\"}}}}]}}"
        )
    };
    let records: Vec<_> = (0..ENTRIES).map(record).collect();
    format!("[{}]", records.join(","))
}
