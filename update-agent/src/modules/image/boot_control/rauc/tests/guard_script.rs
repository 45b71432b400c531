//! The guard of an image for RAUC, a script, with the mark that the agent writes.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::runner::HostRunner;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/image/rauc-trial-guard");

/// Status of RAUC on a machine that runs the second slot.
const STATUS: &str = r#"{"compatible":"evenkeel-test","variant":"","booted":"/dev/vda3","boot_primary":"rootfs.1","slots":[{"rootfs.1":{"class":"rootfs","device":"/dev/vda3","type":"raw","bootname":"B","state":"booted","parent":null,"mountpoint":"/","boot_status":"good","slot_status":{"bundle":{"compatible":null}}}},{"rootfs.0":{"class":"rootfs","device":"/dev/vda2","type":"raw","bootname":"A","state":"inactive","parent":null,"mountpoint":null,"boot_status":"good","slot_status":{"bundle":{"compatible":null}}}}]}"#;

/// Programs that the guard starts. Time does not pass.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "rauc",
        "cd \"$EVENKEEL_ROOT\" && [ -e status.json ] || exit 1\n\
         case $* in *json) cat status.json ;; *) echo \"rauc $*\" >> calls ;; esac\n\
         [ ! -e agent ] || exec sh ./agent \"$*\"",
    ),
    ("systemctl", "echo \"systemctl $*\" >> \"$EVENKEEL_ROOT/calls\""),
    ("sleep", "echo \"$1\" >> \"$EVENKEEL_ROOT/slept\""),
    ("sync", ""),
];

/// A change of the machine after its reset.
type ChangeMachine = fn(&FakeRauc);

/// What the guard did.
#[derive(Debug, PartialEq, Eq)]
struct GuardRun {
    calls: Vec<String>,
    /// Seconds until it acted or ended.
    waited: u32,
    is_reset: bool,
}

/// Path of the mark, relative to the root.
const MARK: &str = "var/lib/evenkeel-agent/rauc-armed.json";

/// A machine that runs the slot on trial. The old image had a deadline of 60 s.
async fn machine_on_trial() -> Arc<FakeRauc> {
    let mut fake = FakeRauc::new(3);
    fake.machine.config.health.deadline = Duration::from_mins(1);
    let (fake, boot) = fake.into_control();
    write_and_arm(&fake, &boot).await.unwrap();
    fake.reboot();
    fake.machine.write("status.json", STATUS);
    for (name, script) in PROGRAMS {
        let path = format!("programs/{name}");
        fake.machine.write(&path, format!("#!/bin/sh\n{script}\n"));
        let permissions = fs::Permissions::from_mode(0o755);
        fs::set_permissions(fake.machine.path(&path), permissions).unwrap();
    }
    fake
}

async fn run_guard(fake: &FakeRauc) -> GuardRun {
    let root = fake.machine.paths.root().display().to_string();
    let command = Command::new("/bin/sh", Duration::from_mins(2))
        .with_arguments([SCRIPT])
        .with_variable("EVENKEEL_ROOT", &root)
        .with_variable("PATH", &format!("{root}/programs:/usr/bin:/bin"));
    HostRunner::new(Path::new("/")).run(&command).await.unwrap();
    let read = |file: &str| fs::read_to_string(fake.machine.path(file)).unwrap_or_default();
    // The pauses of the reset are shorter.
    let slept = read("slept").lines().filter(|line| *line == "5").count();
    GuardRun {
        calls: read("calls").lines().map(ToOwned::to_owned).collect(),
        waited: u32::try_from(slept).unwrap() * 5,
        is_reset: read("proc/sysrq-trigger") == "b\n",
    }
}

#[tokio::test]
async fn an_image_whose_agent_does_not_start_is_marked_bad_and_the_machine_is_reset() {
    let fake = machine_on_trial().await;
    let calls = [
        "rauc status mark-active other",
        "rauc status mark-bad booted",
        "systemctl reboot --force --force",
    ];
    let expected =
        GuardRun { calls: calls.map(str::to_owned).to_vec(), waited: 120, is_reset: true };
    assert_eq!(run_guard(&fake).await, expected);
}

#[tokio::test]
async fn a_machine_on_trial_is_reset_even_if_rauc_does_not_work() {
    let fake = machine_on_trial().await;
    fake.machine.write("proc/cmdline", "quiet rauc.slot=B panic=10\n");
    fs::remove_file(fake.machine.path("status.json")).unwrap();
    let run = run_guard(&fake).await;
    assert_eq!(run.calls, ["systemctl reboot --force --force"]);
    assert!(run.is_reset);
}

#[tokio::test]
async fn a_slot_that_is_not_on_trial_is_never_reset() {
    let cases: [(ChangeMachine, u32); 6] = [
        // The image was kept.
        (|fake| fs::remove_file(fake.machine.path(MARK)).unwrap(), 660),
        (|fake| fake.machine.write(MARK, "{"), 660),
        // The machine fell back.
        (|fake| fake.machine.write("proc/cmdline", "rauc.slot=A panic=10\n"), 120),
        (
            |fake| {
                let swapped = STATUS.replace("\"B\"", "\"C\"").replace("\"A\"", "\"B\"");
                fake.machine.write("status.json", swapped.replace("\"C\"", "\"A\""));
            },
            120,
        ),
        // It is not known which slot runs.
        (|fake| fs::remove_file(fake.machine.path("status.json")).unwrap(), 120),
        (|fake| fake.machine.write("run/evenkeel/trial-over", ""), 0),
    ];
    for (number, (change, waited)) in cases.into_iter().enumerate() {
        let fake = machine_on_trial().await;
        change(&fake);
        let expected = GuardRun { calls: Vec::new(), waited, is_reset: false };
        assert_eq!(run_guard(&fake).await, expected, "{number}");
    }
}

#[tokio::test]
async fn an_agent_that_has_started_gets_the_time_that_it_needs() {
    let fake = machine_on_trial().await;
    fake.machine.write("run/evenkeel/trial-seconds", "300");
    let run = run_guard(&fake).await;
    assert_eq!((run.waited, run.is_reset), (300, true));

    let fake = machine_on_trial().await;
    fake.machine.write("run/evenkeel/trial-seconds", "soon");
    assert_eq!(run_guard(&fake).await.waited, 120);
}

/// RAUC may take a minute for each command. An agent that keeps the image in that time has reported
/// that the update succeeded.
#[tokio::test]
async fn an_image_that_is_kept_while_the_guard_calls_rauc_is_not_reset_and_starts_again() {
    let undone = ["rauc status mark-good booted", "rauc status mark-active booted"];
    let cases: [(&str, &[&str]); 3] = [
        ("status --output-format=json", &[]),
        ("status mark-active other", &["rauc status mark-active other"]),
        (
            "status mark-bad booted",
            &["rauc status mark-active other", "rauc status mark-bad booted"],
        ),
    ];
    for (during, done) in cases {
        for keep in [
            format!("rm -f {MARK}"),
            "mkdir -p run/evenkeel; : > run/evenkeel/trial-over".to_owned(),
        ] {
            let fake = machine_on_trial().await;
            fake.machine.write("agent", format!("[ \"$1\" != '{during}' ] || {{ {keep}; }}\n"));
            let run = run_guard(&fake).await;
            let undone: &[&str] = if done.is_empty() { &[] } else { &undone };
            assert_eq!(run.calls, [done, undone].concat(), "{during}: {keep}");
            assert!(!run.is_reset, "{during}: {keep}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_starts_while_the_guard_queries_rauc_gets_its_time() {
    let fake = machine_on_trial().await;
    let start = "mkdir -p run/evenkeel; echo 300 > run/evenkeel/trial-seconds\n";
    fake.machine.write("agent", start);
    let run = run_guard(&fake).await;
    assert_eq!((run.waited, run.is_reset), (420, true));
}
