//! Machines in trouble: no room, no leave to write, others at work, a journal that makes no sense, and a copy of the disk.

use evenkeel_tests::lab::{Member, Repository, events, told, until};

use crate::story::{
    AGENT, SOON, Stage, agent_beside, another_apt, because, stories, until_all_is_there,
    until_dpkg_is_in_the_middle, until_the_agent_has_ended, waits, write,
};

stories![
    without_room_to_download_the_update_ends_before_it_begins,
    without_room_to_unpack_everything_stays_as_it_was,
    a_node_with_too_little_room_left_waits,
    a_system_that_cannot_be_written_to_waits,
    a_folder_that_cannot_be_written_to_is_told_with_what_a_person_must_do,
    an_agent_that_cannot_write_its_state_changes_nothing_and_says_so,
    another_apt_is_waited_for,
    a_wait_for_another_apt_has_an_end_and_is_told,
    an_agent_killed_beside_a_living_dpkg_waits_for_it_in_its_next_life,
    what_another_apt_did_meanwhile_as_planned_is_taken_for_done,
    what_another_apt_did_meanwhile_against_the_plan_ends_it,
    notes_that_an_interrupted_dpkg_left_do_not_stand_in_the_way,
    a_second_agent_is_refused,
    a_journal_that_makes_no_sense_is_set_aside_and_told,
    a_machine_made_from_a_nodes_disk_is_told_to_enrol,
    a_second_machine_with_the_same_identity_is_not_let_in,
];

fn without_room_to_download_the_update_ends_before_it_begins(stage: &Stage) {
    let own = "/var/lib/evenkeel-agent";
    let node = stage
        .node("node")
        .with_variable("EVENKEEL_AGENT_STATE_DIR", "/var/lib/elsewhere")
        .with_little_room(own, "16m");
    let member = stage.join(node);
    member.want("demo-big=1.1");
    let run = member.update_to("failed");
    because(&run, &["storage"], &[]);
    member.stands(&[("demo-big", "")]);
}

fn without_room_to_unpack_everything_stays_as_it_was(stage: &Stage) {
    let mut member = stage.member();
    member.given(&["demo-big_1.0"]);
    member.node = member.node.with_little_room("/opt/demo", "4m");
    member.want("demo-big=1.1");
    let run = member.update_to("reverted");
    because(&run, &["storage"], &["No space left on device"]);
    member.stands(&[("demo-big", "1.0 installed")]);
}

fn a_node_with_too_little_room_left_waits(stage: &Stage) {
    let node = stage
        .node("node")
        .with_variable("EVENKEEL_AGENT_GATE__MIN_FREE", "1000000GiB");
    let member = stage.join(node);
    member.want("demo-hello=1.1");
    member.order_now();
    waits(&member, "MiB free");
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_system_that_cannot_be_written_to_waits(stage: &Stage) {
    let mut member = stage.member();
    member.want("demo-hello=1.1");
    member.order_now();
    member.node = member.node.with_readonly("/usr");
    waits(&member, "cannot be written to");
    member.stands(&[("demo-hello", "1.0 installed")]);

    member.node = member.node.writable();
    member.go_on_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn a_folder_that_cannot_be_written_to_is_told_with_what_a_person_must_do(stage: &Stage) {
    let mut member = stage.member();
    member.want("demo-hello=1.1");
    member.node = member.node.with_readonly("/opt/demo");
    let run = member.update_to("failed");
    because(&run, &["apply", "storage"], &["demo-hello", "dpkg --"]);
    let found = member.node.found();
    assert_eq!(found.package("demo-hello"), "1.0 half-installed");
    assert!(found.audit.contains("demo-hello"), "{found:#?}");

    member.node = member.node.writable();
    let inside = Repository::INSIDE;
    member.node.sh(&format!(
        "dpkg --install {inside}/pool/demo-hello_1.1_all.deb"
    ));
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn an_agent_that_cannot_write_its_state_changes_nothing_and_says_so(stage: &Stage) {
    let mut member = stage.member();
    member.want("demo-hello=1.1");
    member.order_now();
    member.node = member.node.with_readonly("/var/lib/evenkeel-agent");
    let output = member.agent_once();
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(member.runs().is_empty(), "{:#?}", member.runs());
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn another_apt_is_waited_for(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-slow_1.0"]);
    member.want("demo-hello=1.1");
    member.order_now();
    let other = another_apt(&member.node);
    agent_beside(&member.node);
    // All is there, and only the other apt keeps the agent from beginning.
    until_all_is_there(&member.node);
    member.node.inside(&["rm", "/opt/demo/slow"]);
    until_the_agent_has_ended(&member.node);
    assert!(
        other.log().contains("the other has ended"),
        "{}",
        other.log()
    );
    drop(other);
    assert_eq!(member.only_run()["state"], "succeeded");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-slow", "1.1 installed"),
    ]);
}

fn a_wait_for_another_apt_has_an_end_and_is_told(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-slow_1.0"]);
    member.want("demo-hello=1.1");
    member.order_now();
    let other = another_apt(&member.node);
    let impatient = "EVENKEEL_AGENT_PACKAGES__LOCK_TIMEOUT=1s";
    let output = member
        .node
        .run_inside(&["env", impatient, AGENT, "run", "--once"]);
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("holding dpkg's lock"), "{said}");
    assert!(!events(&member.only_run()).contains(&"began"), "{said}");

    member.node.inside(&["rm", "/opt/demo/slow"]);
    until("the other has ended", SOON, || {
        let log = other.log();
        log.contains("the other has ended").then_some(())
    });
    drop(other);
    member.go_on_to("succeeded");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-slow", "1.1 installed"),
    ]);
}

fn an_agent_killed_beside_a_living_dpkg_waits_for_it_in_its_next_life(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-slow_1.0"]);
    member.want("demo-slow=1.1");
    member.order_now();
    let script = "touch /opt/demo/slow; /srv/evenkeel-agent run & echo $! > /run/agent; wait; exec sleep 1000";
    let boot = member.node.start(&["sh", "-c", script]);
    until_dpkg_is_in_the_middle(&member.node);
    member
        .node
        .inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);
    agent_beside(&member.node);
    // dpkg still waits, and so does the agent.
    let audit = member.node.inside(&["dpkg", "--audit"]);
    assert!(audit.contains("demo-slow"), "{audit}");
    member.node.inside(&["rm", "/opt/demo/slow"]);
    until_the_agent_has_ended(&member.node);
    drop(boot);
    assert_eq!(member.only_run()["state"], "succeeded");
    member.stands(&[("demo-slow", "1.1 installed")]);
}

/// A node that has prepared an update of `demo-hello` and does not begin yet.
fn prepared(stage: &Stage) -> Member<'static> {
    let member = stage.member();
    write(&member.node, "/etc/evenkeel/inhibit", "not yet\n");
    member.want("demo-hello=1.1");
    member.order_now();
    waits(&member, "not yet");
    member
}

fn what_another_apt_did_meanwhile_as_planned_is_taken_for_done(stage: &Stage) {
    let member = prepared(stage);
    member
        .node
        .sh("apt-get -q -y install demo-hello=1.1; rm /etc/evenkeel/inhibit");
    member.go_on_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn what_another_apt_did_meanwhile_against_the_plan_ends_it(stage: &Stage) {
    let member = prepared(stage);
    member
        .node
        .sh("apt-get -q -y remove demo-hello; rm /etc/evenkeel/inhibit");
    let run = member.go_on_to("failed");
    because(&run, &["plan"], &["demo-hello", "someone else"]);
    member.stands(&[("demo-hello", "")]);
}

/// As after a power cut at the end of somebody else's update.
fn notes_that_an_interrupted_dpkg_left_do_not_stand_in_the_way(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-hello_1.0", "demo-alone_1.0"]);
    member
        .node
        .sh("cd /var/lib/dpkg/updates; dpkg-query -s demo-alone > 0000; : > tmp.i; ! apt-get -q -y check");
    member.want("demo-hello=1.1");
    member.update_to("succeeded");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-alone", "1.0 installed"),
    ]);
    member
        .node
        .sh("apt-get -q -y check; test -z \"$(ls /var/lib/dpkg/updates)\"");
}

fn a_second_agent_is_refused(stage: &Stage) {
    let member = stage.member();
    let first = member.start_agent(&["run"]);
    until("the first agent is at work", SOON, || {
        first.log().contains("agent started").then_some(())
    });
    let output = member.node.run_inside(&[AGENT, "run", "--once"]);
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("another evenkeel-agent is at work here"),
        "{said}"
    );
}

fn a_journal_that_makes_no_sense_is_set_aside_and_told(stage: &Stage) {
    let member = stage.member();
    let journal = "/var/lib/evenkeel-agent/journal.json";
    write(&member.node, journal, "{\"format\":1,\"attempt\":{\"att");
    member.want("demo-hello=1.1");
    member.update_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
    let aside = member.node.sh(&format!("cat {journal}.corrupt-0"));
    assert_eq!(aside, "{\"format\":1,\"attempt\":{\"att");
    let trouble = member.condition("agent_trouble");
    assert!(trouble.contains("journal"), "{trouble:?}");
}

fn a_machine_made_from_a_nodes_disk_is_told_to_enrol(stage: &Stage) {
    // Firmware says nothing of a container, so the machine id decides.
    let node = stage.node("node").with_variable("container", "lab");
    let member = stage.join(node);
    member.want("demo-hello=1.1");
    member.order_now();
    let other = "fedcba9876543210fedcba9876543210\n";
    write(&member.node, "/etc/machine-id", other);
    let output = member.agent_once();
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains(&member.host) && said.contains("enroll"),
        "{said}"
    );
    assert!(member.runs().is_empty(), "{:#?}", member.runs());
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_second_machine_with_the_same_identity_is_not_let_in(stage: &Stage) {
    let member = stage.member();
    let path = format!("/compute/hosts/{}", member.host);
    let host = stage.fleet.rest.get(&path);
    let uuid = host["uuid"].as_str().expect("a uuid");
    let second = stage.node("second");
    let server = stage.fleet.server.address("southbound");
    let output = stage.fleet.enrol(&second, &server, &["--uuid", uuid]);
    let said = told(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("another machine is enrolled"), "{said}");

    // The first one goes on.
    member.want("demo-hello=1.1");
    member.update_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
}
