//! Machines with faults: no space, read-only file systems, other programs that run, a broken journal,
//! and a copied disk.

use evenkeel_tests::lab::{Member, Repository, Web, describe_output, events, until};

use super::scenario::{
    AGENT_PATH, Stage, WAIT_TIMEOUT, assert_failure, assert_waits, scenarios,
    start_agent_in_background, start_another_apt, wait_for_agent_end, wait_until_downloaded,
    wait_until_dpkg_is_blocked, write_file,
};

scenarios![
    without_room_to_download_the_update_ends_before_it_begins,
    without_room_to_unpack_everything_stays_as_it_was,
    without_inodes_to_unpack_everything_stays_as_it_was,
    without_room_for_the_package_lists_the_update_fails_with_this_cause,
    a_node_with_too_little_room_left_waits,
    a_read_only_system_waits,
    a_read_only_folder_is_reported_with_the_command_that_repairs_it,
    an_agent_that_cannot_write_its_state_changes_nothing_and_fails,
    another_apt_is_waited_for,
    a_wait_for_another_apt_times_out_and_is_reported,
    another_refresh_of_the_lists_is_waited_for_and_is_no_failure,
    an_agent_killed_while_dpkg_runs_waits_for_it_after_its_restart,
    changes_by_another_apt_as_planned_are_accepted,
    changes_by_another_apt_against_the_plan_end_the_update,
    notes_of_an_interrupted_dpkg_do_not_block_an_update,
    a_plan_with_another_state_directory_leaves_the_files_of_an_open_update,
    a_second_agent_is_refused,
    an_unreadable_journal_is_moved_away_and_reported,
    a_machine_copied_from_the_disk_of_a_node_must_enroll,
    a_second_machine_with_the_same_identity_is_rejected,
];

fn without_room_to_download_the_update_ends_before_it_begins(stage: &Stage) {
    let own = "/var/lib/evenkeel-agent";
    let node = stage
        .node("node")
        .with_variable("EVENKEEL_AGENT_STATE_DIR", "/var/lib/elsewhere")
        .with_small_filesystem(own, "16m");
    let member = stage.join(node);
    member.assign_packages("demo-big=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["storage"], &[]);
    member.assert_packages(&[("demo-big", "")]);
}

fn without_room_to_unpack_everything_stays_as_it_was(stage: &Stage) {
    assert_not_unpacked(stage, "4m");
}

fn without_inodes_to_unpack_everything_stays_as_it_was(stage: &Stage) {
    assert_not_unpacked(stage, "200m,nr_inodes=100");
}

/// `demo-big` has 20 MB in 400 files.
fn assert_not_unpacked(stage: &Stage, size: &str) {
    let mut member = stage.member();
    member.install_files(&["demo-big_1.0"]);
    member.node = member.node.with_small_filesystem("/opt/demo", size);
    member.assign_packages("demo-big=1.1");
    let run = member.update_to("reverted");
    assert_failure(&run, &["storage"], &["No space left on device"]);
    member.assert_packages(&[("demo-big", "1.0 installed")]);
}

fn without_room_for_the_package_lists_the_update_fails_with_this_cause(stage: &Stage) {
    // apt 3 only links to the lists of a repository in a folder, so this one has an address.
    let repository = stage.repository();
    let web = Web::serve(repository.folder());
    let repository = repository.with_url(format!("http://{}", web.address()));
    repository.publish("demo-hello_1.1");
    let node = stage.node("node").with_small_filesystem("/var/lib/apt/lists", "4k");
    let member = stage.join_with_source(node, &repository);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["storage"], &["No space left on device"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_node_with_too_little_room_left_waits(stage: &Stage) {
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_GATE__MIN_FREE", "1000000GiB");
    let member = stage.join(node);
    member.order_packages("demo-hello=1.1");
    assert_waits(&member, "MiB free");
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_read_only_system_waits(stage: &Stage) {
    let mut member = stage.member();
    member.order_packages("demo-hello=1.1");
    member.node = member.node.with_readonly("/usr");
    assert_waits(&member, "is read-only");
    member.assert_packages(&[("demo-hello", "1.0 installed")]);

    member.node = member.node.writable();
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_read_only_folder_is_reported_with_the_command_that_repairs_it(stage: &Stage) {
    let mut member = stage.member();
    member.assign_packages("demo-hello=1.1");
    member.node = member.node.with_readonly("/opt/demo");
    let run = member.update_to("failed");
    assert_failure(&run, &["apply", "storage"], &["demo-hello", "dpkg --"]);
    let status = member.node.dpkg_status();
    assert_eq!(status.package("demo-hello"), "1.0 half-installed");
    assert!(status.audit.contains("demo-hello"), "{status:#?}");

    member.node = member.node.writable();
    let inside = Repository::INSIDE;
    member.node.sh(&format!("dpkg --install {inside}/pool/demo-hello_1.1_all.deb"));
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn an_agent_that_cannot_write_its_state_changes_nothing_and_fails(stage: &Stage) {
    let mut member = stage.member();
    member.order_packages("demo-hello=1.1");
    member.node = member.node.with_readonly("/var/lib/evenkeel-agent");
    let output = member.agent_once();
    let text = describe_output(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("Read-only file system"), "{text}");
    assert!(member.runs().is_empty(), "{:#?}", member.runs());
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn another_apt_is_waited_for(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-hello=1.1");
    let other = start_another_apt(&member.node);
    start_agent_in_background(&member.node);
    // Everything is downloaded, and only the other apt keeps the agent from starting.
    wait_until_downloaded(&member.node);
    member.node.succeed_inside(&["rm", "/opt/demo/slow"]);
    wait_for_agent_end(&member.node);
    assert!(other.log().contains("the other has ended"), "{}", other.log());
    drop(other);
    assert_eq!(member.only_run()["state"], "succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("demo-slow", "1.1 installed")]);
}

fn a_wait_for_another_apt_times_out_and_is_reported(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-hello=1.1");
    let other = start_another_apt(&member.node);
    let impatient = "EVENKEEL_AGENT_PACKAGES__LOCK_TIMEOUT=1s";
    let output = member.node.run_inside(&["env", impatient, AGENT_PATH, "run", "--once"]);
    let text = describe_output(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("holding dpkg's lock"), "{text}");
    assert!(!events(&member.only_run()).contains(&"began"), "{text}");
    let decision = member.decision();
    assert!(decision.to_string().contains("holding dpkg's lock"), "{decision:#}");

    member.node.succeed_inside(&["rm", "/opt/demo/slow"]);
    until("the other has ended", WAIT_TIMEOUT, || {
        let log = other.log();
        log.contains("the other has ended").then_some(())
    });
    drop(other);
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("demo-slow", "1.1 installed")]);
}

/// Locks the package lists as `apt-get update` does, until the boot ends.
const LISTS_HOLDER: &str = r#"
use Fcntl;
open(my $file, "+>", "/var/lib/apt/lists/lock") or die;
my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die;
open(my $held, ">", "/run/held") or die; close($held);
sleep(1000);
"#;

fn another_refresh_of_the_lists_is_waited_for_and_is_no_failure(stage: &Stage) {
    let member = stage.member();
    member.order_packages("demo-hello=1.1");
    let other = member.node.start(&["perl", "-e", LISTS_HOLDER]);
    until("the lists are locked", WAIT_TIMEOUT, || {
        let output = member.node.run_inside(&["test", "-e", "/run/held"]);
        output.status.success().then_some(())
    });
    let impatient = "EVENKEEL_AGENT_PACKAGES__LOCK_TIMEOUT=1s";
    let output = member.node.run_inside(&["env", impatient, AGENT_PATH, "run", "--once"]);
    let text = describe_output(&output);
    assert!(text.contains("holding the lock of the package lists"), "{text}");
    assert!(member.runs().is_empty(), "{:#?}", member.runs());
    drop(other);

    // The window is still open, so the update is made in it.
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn an_agent_killed_while_dpkg_runs_waits_for_it_after_its_restart(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-slow=1.1");
    let script = "touch /opt/demo/slow; /srv/evenkeel-agent run & echo $! > /run/agent; wait; exec sleep 1000";
    let boot = member.node.start(&["sh", "-c", script]);
    wait_until_dpkg_is_blocked(&member.node);
    member.node.succeed_inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);
    start_agent_in_background(&member.node);
    // dpkg is still blocked, so the agent waits.
    let audit = member.node.succeed_inside(&["dpkg", "--audit"]);
    assert!(audit.contains("demo-slow"), "{audit}");
    member.node.succeed_inside(&["rm", "/opt/demo/slow"]);
    wait_for_agent_end(&member.node);
    drop(boot);
    assert_eq!(member.only_run()["state"], "succeeded");
    member.assert_packages(&[("demo-slow", "1.1 installed")]);
}

/// A node that has prepared an update of `demo-hello` and does not start it yet.
fn prepare_member(stage: &Stage) -> Member<'static> {
    let member = stage.member();
    write_file(&member.node, "/etc/evenkeel/inhibit", "not yet\n");
    member.order_packages("demo-hello=1.1");
    assert_waits(&member, "not yet");
    member
}

fn changes_by_another_apt_as_planned_are_accepted(stage: &Stage) {
    let member = prepare_member(stage);
    member.node.sh("apt-get -q -y install demo-hello=1.1; rm /etc/evenkeel/inhibit");
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn changes_by_another_apt_against_the_plan_end_the_update(stage: &Stage) {
    let member = prepare_member(stage);
    member.node.sh("apt-get -q -y remove demo-hello; rm /etc/evenkeel/inhibit");
    let run = member.run_agent_to("failed");
    assert_failure(&run, &["plan"], &["demo-hello", "another program"]);
    member.assert_packages(&[("demo-hello", "")]);
}

/// State after a power cut at the end of an update by another program.
fn notes_of_an_interrupted_dpkg_do_not_block_an_update(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-hello_1.0", "demo-alone_1.0"]);
    member
        .node
        .sh("cd /var/lib/dpkg/updates; dpkg-query -s demo-alone > 0000; : > tmp.i; ! apt-get -q -y check");
    member.assign_packages("demo-hello=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("demo-alone", "1.0 installed")]);
    member.node.sh("apt-get -q -y check; test -z \"$(ls /var/lib/dpkg/updates)\"");
}

fn a_plan_with_another_state_directory_leaves_the_files_of_an_open_update(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-slow=1.1");
    let script = "touch /opt/demo/slow; /srv/evenkeel-agent run & wait; exec sleep 1000";
    let boot = member.node.start(&["sh", "-c", script]);
    wait_until_dpkg_is_blocked(&member.node);
    let list = ["ls", "/var/lib/evenkeel-agent/archives"];
    let files = member.node.succeed_inside(&list);
    assert!(files.contains("demo-slow_1.1_all.deb"), "{files}");

    let plan = [AGENT_PATH, "plan", "--state-dir", "/root/other"];
    let text = describe_output(&member.node.run_inside(&plan));
    assert!(text.contains("is in progress"), "{text}");
    assert_eq!(member.node.succeed_inside(&list), files);

    member.node.succeed_inside(&["rm", "/opt/demo/slow"]);
    until("the update is done", WAIT_TIMEOUT, || {
        (member.only_run()["state"] == "succeeded").then_some(())
    });
    drop(boot);
    member.assert_packages(&[("demo-slow", "1.1 installed")]);
}

fn a_second_agent_is_refused(stage: &Stage) {
    let member = stage.member();
    let first = member.start_agent(&["run"]);
    until("the first agent runs", WAIT_TIMEOUT, || {
        first.log().contains("agent started").then_some(())
    });
    let output = member.node.run_inside(&[AGENT_PATH, "run", "--once"]);
    let text = describe_output(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("another evenkeel-agent is running"), "{text}");
}

fn an_unreadable_journal_is_moved_away_and_reported(stage: &Stage) {
    let member = stage.member();
    let journal = "/var/lib/evenkeel-agent/journal.json";
    write_file(&member.node, journal, "{\"format\":1,\"attempt\":{\"att");
    member.assign_packages("demo-hello=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let moved = member.node.sh(&format!("cat {journal}.corrupt-0"));
    assert_eq!(moved, "{\"format\":1,\"attempt\":{\"att");
    let condition = member.condition_message("agent_error");
    assert!(condition.contains("journal"), "{condition:?}");
}

fn a_machine_copied_from_the_disk_of_a_node_must_enroll(stage: &Stage) {
    // A container has no firmware UUID, so the machine ID decides.
    let node = stage.node("node").with_variable("container", "lab");
    let member = stage.join(node);
    member.order_packages("demo-hello=1.1");
    let other = "fedcba9876543210fedcba9876543210\n";
    write_file(&member.node, "/etc/machine-id", other);
    let output = member.agent_once();
    let text = describe_output(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains(&member.host) && text.contains("enroll"), "{text}");
    assert!(member.runs().is_empty(), "{:#?}", member.runs());
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_second_machine_with_the_same_identity_is_rejected(stage: &Stage) {
    let member = stage.member();
    let path = format!("compute/hosts/{}", member.host);
    let host = stage.fleet.rest.get(&path);
    let uuid = host["uuid"].as_str().expect("a uuid");
    let second = stage.node("second");
    let server = stage.fleet.server.address("southbound");
    let output = stage.fleet.enroll(&second, &server, &["--uuid", uuid]);
    let text = describe_output(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("another machine is enrolled"), "{text}");

    // The first machine still works.
    member.assign_packages("demo-hello=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}
