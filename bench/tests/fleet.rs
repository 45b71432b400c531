//! The fleet benchmark itself: a small one goes all the way and says everything that it should.

use std::process::Command;

use serde_json::Value;

/// What a program that reads the figures relies on.
const NAMES: [&str; 34] = [
    "hosts",
    "connections",
    "polls_per_second",
    "p50_ms",
    "p99_ms",
    "p99_9_ms",
    "errors",
    "refused",
    "news",
    "cpu_us_per_poll_server",
    "cpu_us_per_poll_postgres",
    "cpu_us_per_poll_drivers",
    "cpu_us_per_node_minute",
    "rss_mib_server",
    "rss_mib_postgres",
    "vm_rss_mib_server",
    "vm_rss_mib_server_multiplexed",
    "bytes_per_node",
    "nodes",
    "interval_s",
    "measured_s",
    "kept_connections",
    "kib_per_kept_connection",
    "held",
    "change_p50_ms",
    "change_p99_ms",
    "reports_p99_ms",
    "lost",
    "first_answer_s",
    "recovered_s",
    "curve",
    "cpu_of_echo_ratio",
    "echo",
    "hits_share",
];

/// Runs the benchmark, and gives what it found.
#[expect(
    clippy::disallowed_methods,
    reason = "the program is looked at from outside"
)]
fn fleet(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"))
        .arg("fleet")
        .args(arguments)
        .output()
        .expect("start the benchmark");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("a JSON object")
}

#[test]
fn a_small_fleet_is_driven_measured_and_told_of() {
    let size = ["--nodes", "200", "--registered", "300", "--interval", "1s"];
    let lines = ["--kept", "20", "--multiplexed", "4", "--drivers", "2"];
    let how = ["--for", "2s", "--storm", "10", "--tls", "--json"];
    let found = fleet(&[&size[..], &lines[..], &how[..]].concat());
    for name in NAMES {
        assert!(found.get(name).is_some(), "{name} is missing: {found}");
    }
    let number = |name: &str| found[name].as_f64().unwrap_or(-1.0);
    assert_eq!(found["hosts"], 300);
    assert_eq!(found["nodes"], 200);
    assert_eq!(found["connections"], 24);
    assert_eq!(found["kept_connections"], 20);
    assert_eq!((&found["errors"], &found["lost"]), (&0.into(), &0.into()));
    assert!(0.0 < number("polls_per_second"), "{found}");
    assert!(0.0 < number("p50_ms") && number("p50_ms") <= number("p99_9_ms"));
    assert!(0.0 < number("reports_p99_ms"), "{found}");
    assert!(
        found["curve"]
            .as_array()
            .is_some_and(|curve| !curve.is_empty())
    );
    assert_eq!(
        found["recovered_s"],
        Value::Null,
        "nobody asked for a restart"
    );
}
