//! Runs small benchmarks of polls and fleets and checks their reports.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

/// Fields of the report on which readers rely.
const REPORT_FIELDS: [&str; 35] = [
    "hosts",
    "connections",
    "polls_per_second",
    "p50_ms",
    "p99_ms",
    "p99_9_ms",
    "errors",
    "refused",
    "changes",
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
    "dedicated_connections",
    "kib_per_dedicated_connection",
    "long_polls",
    "change_p50_ms",
    "change_p99_ms",
    "reports_p99_ms",
    "lost",
    "first_answer_s",
    "recovered_s",
    "curve",
    "cpu_of_echo_ratio",
    "echo",
    "cache_hit_ratio",
    "faults",
];

/// Runs the fleet benchmark, and returns its report.
fn run_fleet(arguments: &[&str]) -> Value {
    run("fleet", arguments)
}

/// Runs a benchmark, and returns its report.
#[expect(clippy::disallowed_methods, reason = "the test runs the program from outside")]
fn run(benchmark: &str, arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"))
        .arg(benchmark)
        .args(arguments)
        .output()
        .expect("start the benchmark");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect("a JSON object")
}

#[test]
fn a_small_fleet_is_driven_measured_and_reported() {
    let size = ["--nodes", "200", "--registered", "300", "--interval", "1s"];
    let lines = ["--connections", "20", "--multiplexed", "4", "--drivers", "2"];
    let how = ["--duration", "2s", "--storm", "10", "--tls", "--json"];
    let report = run_fleet(&[&size[..], &lines[..], &how[..]].concat());
    for name in REPORT_FIELDS {
        assert!(report.get(name).is_some(), "{name} is missing: {report}");
    }
    let number = |name: &str| report[name].as_f64().unwrap_or(-1.0);
    assert_eq!(report["hosts"], 300);
    assert_eq!(report["nodes"], 200);
    assert_eq!(report["connections"], 24);
    assert_eq!(report["dedicated_connections"], 20);
    assert_eq!((&report["errors"], &report["lost"]), (&0.into(), &0.into()));
    assert!(0.0 < number("polls_per_second"), "{report}");
    assert!(0.0 < number("p50_ms") && number("p50_ms") <= number("p99_9_ms"));
    assert!(0.0 < number("reports_p99_ms"), "{report}");
    let echo = &report["echo"];
    assert!(echo["polls_per_second"].as_f64() > Some(0.0), "{echo}");
    assert_eq!(echo["errors"], 0);
    assert!(0.0 < number("cpu_us_per_unchanged_poll_server"), "{report}");
    assert!(0.0 < number("cpu_of_echo_ratio"), "{report}");
    assert!(report["curve"].as_array().is_some_and(|curve| !curve.is_empty()));
    assert_eq!(report["recovered_s"], Value::Null, "no restart was requested");
}

#[test]
fn the_cost_of_unchanged_polls_is_measured_and_compared_with_an_echo() {
    let report = run("poll", &["--hosts", "200", "--duration", "1s", "--json"]);
    let rounds = report["rounds"].as_array().expect("rounds");
    assert_eq!(rounds.len(), 1, "{report}");
    for figures in [&rounds[0], &report["echo"]] {
        assert_eq!(figures["errors"], 0, "{report}");
        assert!(figures["polls_per_second"].as_f64() > Some(0.0), "{report}");
    }
}

/// The benchmark itself fails if a call of an unaffected node fails, or if a fault did not happen.
#[test]
fn injected_faults_are_reported() {
    let line = "--nodes 100 --interval 1s --connections 20 --multiplexed 4 --duration 1s --no-echo --tls --json \
                --faults loss,return,half-open --fault-share 20 --half-open 8 --fault-duration 2s --away 1s";
    let report = run_fleet(&line.split(' ').collect::<Vec<_>>());
    let faults = report["faults"].as_array().map(Vec::as_slice);
    let Some([loss, half_away, half_open]) = faults else {
        panic!("the report must have three faults: {report}");
    };
    assert_eq!(loss["fault"], "loss");
    assert_eq!(half_away["fault"], "return");
    assert_eq!(half_open["fault"], "half-open");
    for phase in ["without", "with"] {
        for fault in [loss, half_away, half_open] {
            let polls = fault[phase]["polls_per_second"].as_f64();
            assert!(polls.is_some_and(|polls| 0.0 < polls), "{phase}: {fault}");
        }
    }
    assert_eq!(half_away["injected"], 50);
    let recovered = half_away["returned"]["recovered_s"].as_f64();
    assert!(recovered.is_some_and(|after| 0.0 < after), "{half_away}");
    let connections = half_open["connections"].as_array().expect("connections");
    let behaviours: Vec<_> =
        connections.iter().filter_map(|group| group["behaviour"].as_str()).collect();
    assert_eq!(behaviours, ["connect-only", "handshake-only", "half-headers", "half-message"]);
}

/// The benchmark itself fails if an attempt is lost, or is dated by a wrong clock.
#[test]
fn other_faults_and_a_restart_are_reported() {
    let line = "--nodes 100 --interval 1s --connections 20 --multiplexed 4 --duration 1s --no-echo --tls --json --restart \
                --faults duplication,reorder,skew,slow-readers --fault-share 20 --slow-readers 8 --fault-duration 2s";
    let report = run_fleet(&line.split_whitespace().collect::<Vec<_>>());
    let faults = report["faults"].as_array().expect("faults");
    let names: Vec<_> = faults.iter().map(|fault| &fault["fault"]).collect();
    assert_eq!(names, ["duplication", "reorder", "skew", "slow-readers"]);
    for fault in faults {
        let injected = fault["injected"].as_u64();
        assert!(injected.is_some_and(|count| 0 < count), "{fault}");
    }
    assert_eq!((&faults[2]["lost"], &faults[2]["misdated"]), (&0.into(), &0.into()));
    let recovered = report["recovered_s"].as_f64();
    assert!(recovered.is_some_and(|after| 0.0 < after), "{report}");
}

#[test]
fn a_fleet_with_long_polls_receives_a_change() {
    let line = "--nodes 100 --interval 1s --connections 100 --duration 2s --long-poll --long-poll-timeout 30s \
                --eim 0 --changes 0 --servers 2 --change-policy --tls --json";
    let report = run_fleet(&line.split_whitespace().collect::<Vec<_>>());
    let number = |name: &str| report[name].as_f64().unwrap_or(-1.0);
    // At any instant, some long polls have just been answered and are reopened at once.
    assert!((90.0..=100.0).contains(&number("long_polls")), "{report}");
    assert_eq!(report["errors"], 0);
    assert!(0.0 < number("cpu_us_per_node_minute"), "{report}");
    assert!(0.0 < number("change_p50_ms") && number("change_p50_ms") <= number("change_p99_ms"));
    assert_eq!(report["change_missed"], 0);
}

/// The child processes of a process.
fn children_of(parent: u32) -> Vec<(Pid, String)> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let started = all.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain any character; the state and the parent come after it.
        let of = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>();
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        (of == Ok(parent)).then(|| Some((Pid::from_raw(pid)?, line)))?
    });
    started.collect()
}

/// A running benchmark. It is terminated when this value is dropped, also if the test fails.
struct RunningBenchmark(Child);

impl RunningBenchmark {
    fn terminate(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("its id"), Signal::TERM).ok();
    }
}

impl Drop for RunningBenchmark {
    fn drop(&mut self) {
        // A process that was waited for no longer exists.
        if matches!(self.0.try_wait(), Ok(None)) {
            self.terminate();
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs the program from outside")]
fn terminating_a_benchmark_ends_its_processes() {
    let benchmark = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"))
        .args(["fleet", "--nodes", "100", "--duration", "1h", "--no-echo"])
        .stderr(Stdio::piped())
        .spawn();
    let mut benchmark = RunningBenchmark(benchmark.expect("start the benchmark"));
    let stderr = benchmark.0.stderr.take().expect("standard error is piped");
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("every node calls")));
    let started = children_of(benchmark.0.id());
    for role in ["\0serve\0", "\0drive\0"] {
        assert!(started.iter().any(|(_, line)| line.contains(role)), "{started:?}");
    }
    let open = |(pid, _): &(Pid, String)| pidfd_open(*pid, PidfdFlags::empty());
    let handles = started.iter().map(open).collect::<Result<Vec<_>, _>>();
    benchmark.terminate();
    assert_eq!(benchmark.0.wait().expect("the benchmark ends").code(), Some(143));
    for (handle, who) in handles.expect("the processes exist").iter().zip(&started) {
        let mut ended = [PollFd::new(handle, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut ended, Some(&timeout)), Ok(1), "{who:?} did not end");
    }
}
