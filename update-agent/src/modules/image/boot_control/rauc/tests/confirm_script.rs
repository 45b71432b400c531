//! The script that confirms boots of a machine that is not enrolled.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::runner::HostRunner;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/image/rauc-confirm-boot");

/// Programs that the script starts. The root file system is the device 1.
const PROGRAMS: [(&str, &str); 2] = [
    ("rauc", "echo \"$*\" > \"$EVENKEEL_ROOT/call\""),
    (
        "stat",
        "cd \"$EVENKEEL_ROOT\" || exit 1\n\
         case $* in '-f '*) cat kind ;; *\"$EVENKEEL_ROOT/\") echo 1 ;; *) cat device ;; esac",
    ),
];

/// A machine whose state is on a mounted partition.
fn new_machine() -> BootMachine {
    let machine = BootMachine::new();
    machine.write("kind", "ext2/ext3\n");
    machine.write("device", "2\n");
    for (name, script) in PROGRAMS {
        let path = format!("programs/{name}");
        machine.write(&path, format!("#!/bin/sh\n{script}\n"));
        let permissions = fs::Permissions::from_mode(0o755);
        fs::set_permissions(machine.path(&path), permissions).unwrap();
    }
    machine
}

/// Runs the script. Returns its exit status, and what RAUC was called with.
async fn run_script(machine: &BootMachine, arguments: &[&str]) -> (Option<i32>, String) {
    let root = machine.paths.root().display().to_string();
    let command = Command::new("/bin/sh", Duration::from_mins(2))
        .with_arguments([SCRIPT])
        .with_arguments(arguments.iter().copied())
        .with_variable("EVENKEEL_ROOT", &root)
        .with_variable("PATH", &format!("{root}/programs:/usr/bin:/bin"));
    let output = HostRunner::new(Path::new("/")).run(&command).await.unwrap();
    (output.status, fs::read_to_string(machine.path("call")).unwrap_or_default())
}

#[tokio::test]
async fn a_boot_is_confirmed_if_the_state_is_anywhere_on_a_mounted_partition() {
    let confirmed = (Some(0), "status mark-good\n".to_owned());
    let cases: [&[&str]; 2] = [&[], &["/data/agent/state"]];
    for arguments in cases {
        assert_eq!(run_script(&new_machine(), arguments).await, confirmed, "{arguments:?}");
    }
}

#[tokio::test]
async fn only_the_agent_confirms_boots_of_a_node_that_is_enrolled_or_on_trial() {
    let cases: [(&[&str], &str); 2] =
        [(&[], "var/lib/evenkeel-agent"), (&["/data/agent"], "data/agent")];
    for (arguments, folder) in cases {
        for file in ["node.json", "rauc-armed.json"] {
            let machine = new_machine();
            machine.write(&format!("{folder}/{file}"), "{}");
            let run = run_script(&machine, arguments).await;
            assert_eq!(run, (Some(0), String::new()), "{folder}/{file}");
        }
    }
}

/// An image on trial looks like one of a machine that is not enrolled then.
#[tokio::test]
async fn no_boot_is_confirmed_while_the_partition_with_the_state_is_not_mounted() {
    for (file, content) in [("device", "1\n"), ("device", ""), ("kind", "tmpfs\n")] {
        let machine = new_machine();
        machine.write(file, content);
        let run = run_script(&machine, &[]).await;
        assert_eq!(run, (Some(1), String::new()), "{file}: {content}");
    }
}
