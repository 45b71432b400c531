//! Lists of realistic length are read with little memory, and the time is printed. This is a
//! separate program, so its memory can be measured.

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::time::Instant;

use evenkeel_registry::{read_cves, read_packages};

const PACKAGE_COUNT: usize = 20_000;

/// Maximum growth of the process, in KiB.
const MAX_MEMORY_KIB: u64 = 64 * 1024;

#[test]
fn large_lists_are_read_within_bounded_memory() {
    let eim = eim_package_list();
    let lines = dpkg_lines();
    let full = largest_package_list();
    let records = osv_records();
    let (large, fitting) = (too_large_record(), largest_record());
    let before = peak_memory_kib();
    measure("EIM's list", || {
        assert_eq!(read_packages(eim.as_bytes()).expect("a list"), eim);
    });
    measure("lines of dpkg", || {
        let list = read_packages(lines.as_bytes()).expect("a list");
        assert_eq!(list.matches("\"name\":").count(), PACKAGE_COUNT);
    });
    measure("vulnerabilities", || {
        let list = read_cves(records.as_bytes(), None).expect("a list").json;
        assert_eq!(list.matches("\"cve_id\":").count(), PACKAGE_COUNT);
    });
    assert!(read_packages(full.as_bytes()).is_ok());
    let list = read_cves(large.as_bytes(), None).expect("a list");
    assert_eq!(list.json.matches("\"cve_id\":").count(), 1);
    assert!(list.is_truncated, "a record is missing");
    let list = read_cves(fitting.as_bytes(), None).expect("a list");
    assert_eq!(list.json.matches("\"cve_id\":").count(), 1);
    assert!(!list.is_truncated, "the record was read");
    let grown = peak_memory_kib() - before;
    assert!(grown <= MAX_MEMORY_KIB, "grown by {grown} KiB");
}

/// Runs a function and prints its duration.
fn measure(what: &str, read: impl Fn()) {
    let began = Instant::now();
    read();
    let _ = writeln!(stderr(), "{what}: {PACKAGE_COUNT} in {:?}", began.elapsed());
}

fn eim_package_list() -> String {
    let mut list = "{ \"repo\": [".to_owned();
    for n in 0..PACKAGE_COUNT {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            list,
            "{comma}\n  {{ \"name\": \"package-{n}\", \"version\": \"{n}.0.1-1.emt3\", \"architecture\": \"x86_64\", \
             \"license\": \"MIT AND Apache-2.0\", \"size\": {n} }}"
        );
    }
    list + "\n] }\n"
}

fn dpkg_lines() -> String {
    let line = |n: usize| format!("package-{n}:amd64\t1:{n}.2.3~rc1-0ubuntu{n}+b1\n");
    (0..PACKAGE_COUNT).map(line).collect()
}

fn osv_records() -> String {
    let record = |n: usize| {
        format!(
            r#"{{"id":"UBUNTU-CVE-2024-{n}","severity":[{{"type":"Ubuntu","score":"low"}}],
                "affected":[{{"package":{{"name":"package-{n}"}}}}]}}"#
        )
    };
    let records: Vec<_> = (0..PACKAGE_COUNT).map(record).collect();
    format!("[{}]", records.join(","))
}

/// A list with a small record and a record that would take many times its size in memory.
fn too_large_record() -> String {
    let names: Vec<_> = (0..1_000).map(|n| format!("\"a{n}\":1")).collect();
    let names = names.join(",");
    let affected = format!(r#"{{"ecosystem_specific":{{"binaries":[{{{names}}}]}}}}"#);
    let affected = vec![affected.as_str(); 4_000].join(",");
    format!(r#"[{{"id":"CVE-2024-1","affected":[{affected}]}},{{"id":"CVE-2024-2"}}]"#)
}

/// A list with a record just below the limit, of the content that takes the most memory: short
/// names.
fn largest_record() -> String {
    let names = vec!["\"a\":1"; 4_000].join(",");
    let affected = format!(r#"{{"ecosystem_specific":{{"binaries":[{{{names}}}]}}}}"#);
    let affected = vec![affected.as_str(); 174].join(",");
    let list = format!(r#"[{{"id":"CVE-2024-1","affected":[{affected}]}}]"#);
    let limit = 4 * 1024 * 1024;
    assert!((limit - 20_000..limit).contains(&list.len()), "{}", list.len());
    list
}

/// A list just below the size limit.
fn largest_package_list() -> String {
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

/// Peak memory of this process, in KiB.
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a line").parse().expect("a number")
}
