//! A database that was restored from a dump.

use super::own::record;
use super::*;
use crate::history::check::restored::{
    MachineHistory, MachineRecords, ReportedAttempt, check_convergence, check_restored,
};

const MACHINE: Uuid = Uuid::from_u128(100);
const OTHER_MACHINE: Uuid = Uuid::from_u128(200);

const VERSION: &str = "1.1";

fn history(uuid: Uuid, instance: &str) -> MachineHistory {
    MachineHistory { uuid, ids: vec![instance.to_owned()], ..MachineHistory::default() }
}

/// A machine whose attempt 1 was acknowledged up to the third event, and another one without attempts.
fn histories() -> Vec<MachineHistory> {
    let attempt = ReportedAttempt { id: Uuid::from_u128(1), acknowledged: 3 };
    let first = history(MACHINE, "inst-00000001");
    vec![
        MachineHistory { attempts: vec![attempt], installed: vec![VERSION.to_owned()], ..first },
        history(OTHER_MACHINE, "inst-00000002"),
    ]
}

/// The first events of the attempt.
fn run_with_events(count: usize) -> Run {
    let mut run = record();
    run.events.truncate(count);
    run
}

fn records(runs: Vec<Run>) -> MachineRecords {
    let machine = |instance: &str, uuid| (instance.to_owned(), uuid);
    let machines = [machine("inst-00000001", MACHINE), machine("inst-00000002", OTHER_MACHINE)];
    MachineRecords { machines: machines.into(), runs }
}

fn broken_rules(records: &MachineRecords) -> Vec<Rule> {
    let violations = check_restored(&histories(), records);
    violations.into_iter().map(|violation| violation.rule).collect()
}

#[test]
fn records_with_all_acknowledged_events_break_no_rule() {
    for count in [3, 4] {
        assert_eq!(broken_rules(&records(vec![run_with_events(count)])), []);
    }
    let mut by_server = run_with_events(3);
    by_server.events.push(RunEntry { sequence: None, ..by_server.events[2].clone() });
    assert_eq!(broken_rules(&records(vec![by_server])), []);
}

#[test]
fn an_event_from_before_the_dump_that_is_gone_is_found() {
    assert_eq!(broken_rules(&records(vec![run_with_events(2)])), [Rule::NoReportIsLost]);
    assert_eq!(broken_rules(&records(vec![])), [Rule::NoReportIsLost]);
}

#[test]
fn an_attempt_that_is_recorded_again_after_the_restore_is_found() {
    let again = Run { id: "osupdaterun-00000002".into(), ..run_with_events(3) };
    let twice = records(vec![run_with_events(3), again]);
    assert_eq!(broken_rules(&twice), [Rule::NoRunTwice]);
    let mut repeated = run_with_events(3);
    repeated.events.push(repeated.events[2].clone());
    assert_eq!(broken_rules(&records(vec![repeated])), [Rule::NoRunTwice]);
}

#[test]
fn a_run_that_is_recorded_for_another_machine_is_found() {
    let mut mistaken = records(vec![run_with_events(3)]);
    mistaken.machines.insert("inst-00000001".to_owned(), OTHER_MACHINE);
    assert_eq!(broken_rules(&mistaken), [Rule::NoMachineIsMistaken]);
    mistaken.machines.remove("inst-00000001");
    assert_eq!(broken_rules(&mistaken), [Rule::NoMachineIsMistaken], "the instance has no machine");
}

#[test]
fn a_run_that_no_machine_did_is_found() {
    let unknown = Run { attempt: Some(Uuid::from_u128(9)), ..run_with_events(3) };
    let invented = records(vec![run_with_events(3), unknown]);
    assert_eq!(broken_rules(&invented), [Rule::NothingIsInvented]);
}

#[test]
fn an_id_that_was_given_to_two_machines_is_found() {
    let mut histories = histories();
    let before_restore = "inst-00000001".to_owned();
    histories[0].ids.push(before_restore.clone());
    let records = records(vec![run_with_events(3)]);
    assert_eq!(check_restored(&histories, &records), [], "a machine may get its own ID again");
    histories[1].ids.insert(0, before_restore);
    let violations = check_restored(&histories, &records);
    let rules: Vec<_> = violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::NoIdentityTwice]);
}

#[test]
fn a_version_that_was_installed_twice_or_not_at_all_is_found() {
    let ended = Run { state: "succeeded".into(), ..run_with_events(3) };
    let ended = records(vec![ended]);
    let rules = |records: &MachineRecords, installed: &[&str]| {
        let mut history = histories().swap_remove(0);
        history.installed = installed.iter().map(|&version| version.to_owned()).collect();
        let violations = check_convergence(&[history], records, VERSION);
        violations.into_iter().map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert_eq!(rules(&ended, &["1.0", VERSION]), []);
    assert_eq!(rules(&ended, &[VERSION, "1.0", VERSION]), [Rule::NothingTwice]);
    for installed in [vec![], vec![VERSION, "1.0"]] {
        assert_eq!(rules(&ended, &installed), [Rule::FleetConverges]);
    }
    let open = Run { state: "applying".into(), ..run_with_events(3) };
    let failed = Run { state: "failed".into(), ..run_with_events(3) };
    let success = Run { state: "succeeded".into(), ..run_with_events(3) };
    for runs in [vec![], vec![failed], vec![success, open]] {
        assert_eq!(rules(&records(runs), &[VERSION]), [Rule::FleetConverges]);
    }
    let mut unknown = ended.clone();
    unknown.machines.clear();
    assert_eq!(rules(&unknown, &[VERSION]), [Rule::FleetConverges]);
}
