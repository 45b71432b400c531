//! Lists as long as real ones are read with little memory; how long that takes is printed. This is a program of its own, so
//! that what it holds is known.

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::time::Instant;

use evenkeel_registry::{cves, packages};

const PACKAGES: usize = 20_000;

/// How much the process may grow, in KiB.
const MOST_MEMORY: u64 = 64 * 1024;

#[test]
fn lists_of_twenty_thousand_packages_are_read_in_bounds() {
    let ancestors = of_the_ancestor();
    let lines = of_dpkg();
    let full = full();
    let records = records();
    let (large, fitting) = (large_record(), fitting_record());
    let before = peak();
    timed("the ancestor's list", || {
        assert_eq!(packages(ancestors.as_bytes()).expect("a list"), ancestors);
    });
    timed("lines of dpkg", || {
        let list = packages(lines.as_bytes()).expect("a list");
        assert_eq!(list.matches("\"name\":").count(), PACKAGES);
    });
    timed("vulnerabilities", || {
        let list = cves(records.as_bytes(), None).expect("a list").json;
        assert_eq!(list.matches("\"cve_id\":").count(), PACKAGES);
    });
    assert!(packages(full.as_bytes()).is_ok());
    let list = cves(large.as_bytes(), None).expect("a list");
    assert_eq!(list.json.matches("\"cve_id\":").count(), 1);
    assert!(list.cut, "a record is missing");
    let list = cves(fitting.as_bytes(), None).expect("a list");
    assert_eq!(list.json.matches("\"cve_id\":").count(), 1);
    assert!(!list.cut, "the record was read");
    let grown = peak() - before;
    assert!(grown <= MOST_MEMORY, "grown by {grown} KiB");
}

/// Reads, and says how long that took.
fn timed(what: &str, read: impl Fn()) {
    let began = Instant::now();
    read();
    let _ = writeln!(stderr(), "{what}: {PACKAGES} in {:?}", began.elapsed());
}

fn of_the_ancestor() -> String {
    let mut list = "{ \"repo\": [".to_owned();
    for n in 0..PACKAGES {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            list,
            "{comma}\n  {{ \"name\": \"package-{n}\", \"version\": \"{n}.0.1-1.emt3\", \"architecture\": \"x86_64\", \
             \"license\": \"MIT AND Apache-2.0\", \"size\": {n} }}"
        );
    }
    list + "\n] }\n"
}

fn of_dpkg() -> String {
    let line = |n: usize| format!("package-{n}:amd64\t1:{n}.2.3~rc1-0ubuntu{n}+b1\n");
    (0..PACKAGES).map(line).collect()
}

fn records() -> String {
    let record = |n: usize| {
        format!(
            r#"{{"id":"UBUNTU-CVE-2024-{n}","severity":[{{"type":"Ubuntu","score":"low"}}],
                "affected":[{{"package":{{"name":"package-{n}"}}}}]}}"#
        )
    };
    let records: Vec<_> = (0..PACKAGES).map(record).collect();
    format!("[{}]", records.join(","))
}

/// A list with a small record and with one that would become many times as large when it is read.
fn large_record() -> String {
    let names: Vec<_> = (0..1_000).map(|n| format!("\"a{n}\":1")).collect();
    let names = names.join(",");
    let affected = format!(r#"{{"ecosystem_specific":{{"binaries":[{{{names}}}]}}}}"#);
    let affected = vec![affected.as_str(); 4_000].join(",");
    format!(r#"[{{"id":"CVE-2024-1","affected":[{affected}]}},{{"id":"CVE-2024-2"}}]"#)
}

/// A list with one record that is nearly as large as one may be, of what becomes the most in memory: names of one letter.
fn fitting_record() -> String {
    let names = vec!["\"a\":1"; 4_000].join(",");
    let affected = format!(r#"{{"ecosystem_specific":{{"binaries":[{{{names}}}]}}}}"#);
    let affected = vec![affected.as_str(); 174].join(",");
    let list = format!(r#"[{{"id":"CVE-2024-1","affected":[{affected}]}}]"#);
    let limit = 4 * 1024 * 1024;
    assert!(
        (limit - 20_000..limit).contains(&list.len()),
        "{}",
        list.len()
    );
    list
}

/// A list that is nearly as large as one may be.
fn full() -> String {
    let package = format!("{{\"name\":\"a\",\"version\":\"{}\"}}", "1".repeat(160));
    let mut list = String::with_capacity(16 * 1024 * 1024);
    list.push_str("{\"repo\":[");
    for n in 0..85_000 {
        list.push_str(if n == 0 { "" } else { "," });
        list.push_str(&package);
    }
    list.push_str("]}");
    list
}

/// The most memory that this process had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a line").parse().expect("a number")
}
