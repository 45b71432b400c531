//! The fleet benchmark itself: a small one goes all the way and says everything that it should.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

/// What a program that reads the figures relies on.
const NAMES: [&str; 35] = [
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
    "faults",
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
    let echo = &found["echo"];
    assert!(echo["polls_per_second"].as_f64() > Some(0.0), "{echo}");
    assert_eq!(echo["errors"], 0);
    assert!(0.0 < number("cpu_us_per_quiet_poll_server"), "{found}");
    assert!(0.0 < number("cpu_of_echo_ratio"), "{found}");
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

/// The program itself fails if a call fails of a node with which nothing is wrong, or if something did not go wrong.
#[test]
fn what_goes_wrong_on_purpose_is_told_of() {
    let line = "--nodes 100 --interval 1s --kept 20 --multiplexed 4 --for 1s --no-echo --tls --json \
                --faults loss,return,half-open --fault-share 20 --half-open 8 --faults-for 2s --away 1s";
    let found = fleet(&line.split(' ').collect::<Vec<_>>());
    let told = found["faults"].as_array().map(Vec::as_slice);
    let Some([loss, half_away, half_open]) = told else {
        panic!("not one of each: {found}");
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
    let manners: Vec<_> = connections
        .iter()
        .filter_map(|strays| strays["manner"].as_str())
        .collect();
    assert_eq!(
        manners,
        ["connects", "shakes-hands", "half-a-head", "half-a-message"]
    );
}

/// The program fails by itself if something is told twice, is lost, or is dated by a wrong clock.
#[test]
fn the_other_faults_and_a_restart_are_told_of_as_well() {
    let line = "--nodes 100 --interval 1s --kept 20 --multiplexed 4 --for 1s --no-echo --tls --json --restart \
                --faults duplication,reorder,skew,slow-readers --fault-share 20 --slow-readers 8 --faults-for 2s";
    let found = fleet(&line.split_whitespace().collect::<Vec<_>>());
    let told = found["faults"].as_array().expect("faults");
    let names: Vec<_> = told.iter().map(|fault| &fault["fault"]).collect();
    assert_eq!(names, ["duplication", "reorder", "skew", "slow-readers"]);
    for fault in told {
        let injected = fault["injected"].as_u64();
        assert!(injected.is_some_and(|count| 0 < count), "{fault}");
    }
    assert_eq!(
        (&told[2]["lost"], &told[2]["misdated"]),
        (&0.into(), &0.into())
    );
    let recovered = found["recovered_s"].as_f64();
    assert!(recovered.is_some_and(|after| 0.0 < after), "{found}");
}

#[test]
fn a_fleet_that_is_held_hears_of_a_change() {
    let line = "--nodes 100 --interval 1s --kept 100 --for 2s --held --hold 30s --eim 0 --news 0 --servers 2 \
                --change-policy --tls --json";
    let found = fleet(&line.split_whitespace().collect::<Vec<_>>());
    let number = |name: &str| found[name].as_f64().unwrap_or(-1.0);
    // At any instant some have just been answered, and are held again at once.
    assert!((90.0..=100.0).contains(&number("held")), "{found}");
    assert_eq!(found["errors"], 0);
    assert!(0.0 < number("cpu_us_per_node_minute"), "{found}");
    assert!(0.0 < number("change_p50_ms") && number("change_p50_ms") <= number("change_p99_ms"));
    assert_eq!(found["change_missed"], 0);
}

/// The processes that this one started.
fn started_by(parent: u32) -> Vec<(Pid, String)> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let started = all.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything, come the state and the parent.
        let of = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>();
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        (of == Ok(parent)).then(|| Some((Pid::from_raw(pid)?, line)))?
    });
    started.collect()
}

/// Asked to end when it is dropped, whatever became of the test.
struct Running(Child);

impl Running {
    fn ask_to_end(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("its id"), Signal::TERM).ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that was waited for is not there any more.
        if matches!(self.0.try_wait(), Ok(None)) {
            self.ask_to_end();
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the program is looked at from outside"
)]
fn what_a_benchmark_started_ends_with_it_when_it_is_asked_to_end() {
    let benchmark = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"))
        .args(["fleet", "--nodes", "100", "--for", "1h", "--no-echo"])
        .stderr(Stdio::piped())
        .spawn();
    let mut benchmark = Running(benchmark.expect("start the benchmark"));
    let said = benchmark.0.stderr.take().expect("its words");
    let mut said = BufReader::new(said).lines().map_while(Result::ok);
    assert!(said.any(|line| line.starts_with("every node calls")));
    let started = started_by(benchmark.0.id());
    for role in ["\0serve\0", "\0drive\0"] {
        assert!(
            started.iter().any(|(_, line)| line.contains(role)),
            "{started:?}"
        );
    }
    let open = |(pid, _): &(Pid, String)| pidfd_open(*pid, PidfdFlags::empty());
    let handles = started.iter().map(open).collect::<Result<Vec<_>, _>>();
    benchmark.ask_to_end();
    assert_eq!(benchmark.0.wait().expect("its end").code(), Some(143));
    for (handle, who) in handles.expect("they are there").iter().zip(&started) {
        let mut ended = [PollFd::new(handle, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut ended, Some(&patience)), Ok(1), "{who:?} goes on");
    }
}
