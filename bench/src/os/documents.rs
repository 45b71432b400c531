//! Speed of reading package lists and CVE lists.

use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_registry::{Finding, read_cves, read_packages};
use serde::Serialize;

use crate::measure::as_f64;
use crate::report::round_figure;

/// Number of entries per list.
const ENTRIES_PER_LIST: usize = 20_000;

/// How long lists of each kind are read.
const READ_DURATION: Duration = Duration::from_secs(1);

/// Speed of reading a list of [`ENTRIES_PER_LIST`].
#[derive(Debug, Serialize)]
pub struct DocumentFigures {
    /// Kind of the list.
    pub what: &'static str,
    /// Size of the list, in MiB.
    pub mib: f64,
    /// Speed, in MiB per second.
    pub mib_per_second: f64,
}

/// Reads lists of all kinds repeatedly.
pub fn measure() -> anyhow::Result<Vec<DocumentFigures>> {
    let of_packages = |text: &str| read_packages(text.as_bytes()).map(drop);
    let of_cves = |text: &str| read_cves(text.as_bytes(), None).map(drop);
    Ok(vec![
        measure_speed("packages, EIM's JSON", &eim_packages(), of_packages)?,
        measure_speed("packages, dpkg list", &dpkg_packages(), of_packages)?,
        measure_speed("CVEs, OSV", &osv_records(), of_cves)?,
    ])
}

fn measure_speed(
    what: &'static str,
    text: &str,
    read: impl Fn(&str) -> Result<(), Finding>,
) -> anyhow::Result<DocumentFigures> {
    let (began, mut times) = (Instant::now(), 0_u32);
    while began.elapsed() < READ_DURATION {
        read(text).ok().context(what)?;
        times += 1;
    }
    let mib = as_f64(text.len() as u64) / f64::from(1 << 20);
    Ok(DocumentFigures {
        what,
        mib: round_figure(mib),
        mib_per_second: round_figure(mib * f64::from(times) / began.elapsed().as_secs_f64()),
    })
}

fn eim_packages() -> String {
    let package = |n| {
        format!(
            "{{\"name\":\"package-{n}\",\"version\":\"{n}.0.1-1.emt3\",\"architecture\":\"x86_64\",\"license\":\"MIT\"}}"
        )
    };
    let packages: Vec<_> = (0..ENTRIES_PER_LIST).map(package).collect();
    format!("{{\"repo\":[{}]}}", packages.join(",\n"))
}

fn dpkg_packages() -> String {
    let line = |n| format!("package-{n}:amd64\t1:{n}.2.3~rc1-0ubuntu{n}+b1\n");
    (0..ENTRIES_PER_LIST).map(line).collect()
}

fn osv_records() -> String {
    let record = |n| {
        format!(
            "{{\"id\":\"UBUNTU-CVE-2024-{n}\",\"severity\":[{{\"type\":\"Ubuntu\",\"score\":\"low\"}}],\
             \"affected\":[{{\"package\":{{\"name\":\"package-{n}\"}}}}]}}"
        )
    };
    let records: Vec<_> = (0..ENTRIES_PER_LIST).map(record).collect();
    format!("[{}]", records.join(","))
}
