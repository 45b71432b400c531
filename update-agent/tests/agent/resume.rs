//! The agent dies anywhere, and the next one goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::journal::FileJournal;
use evenkeel_update_agent::model::News;
use evenkeel_update_agent::runner::{Command, HostRunner, Runner};

use crate::support::journal::{BreakingJournal, Side};
use crate::support::node::Node;

const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const STORY_WITH_REBOOT: &str =
    "downloading, downloaded, began, reboot begun, verify begun, finished";

/// A step that is marked as done in the log is not taken after that.
fn assert_nothing_is_done_twice(log: &[String]) {
    for (done, work) in [
        (
            "journal done-packages-install",
            &["install", "dpkg --install"][..],
        ),
        ("journal done-packages-mark", &["mark"][..]),
    ] {
        let marked = log.iter().position(|line| line == done).expect(done);
        let again = log[marked..]
            .iter()
            .find(|line| work.contains(&line.as_str()));
        assert_eq!(again, None, "{log:?}");
    }
}

#[tokio::test]
async fn a_death_at_any_write_of_the_journal_changes_nothing_of_the_end() {
    for side in [Side::Before, Side::After] {
        let mut at = 0;
        loop {
            let node = Node::in_window();
            let path = node.place().journal();
            let breaking = |at| Box::new(BreakingJournal::new(&path, &node.system, at, side));
            let first = node.agent_with(breaking(at)).run_once().await;
            let died = first.is_err();
            if died {
                let death = first.unwrap_err();
                assert!(matches!(death, AgentError::Journal(_)), "{death}");
                node.agent_with(breaking(usize::MAX))
                    .run_once()
                    .await
                    .unwrap();
            }

            let context = format!("{side:?} write {at}");
            let listing = node.system.listing();
            assert_eq!(listing, "app 2 installed\nlib 2 installed", "{context}");
            assert!(node.packages().automatic.contains("lib"), "{context}");
            assert_eq!(node.server().story(), STORY, "{context}");
            assert_eq!(node.left_over(), [""; 0], "{context}");
            assert_nothing_is_done_twice(&node.system.take_log());
            if !died {
                assert!(at > 9, "an attempt writes its journal more than {at} times");
                break;
            }
            at += 1;
        }
    }
}

#[tokio::test]
async fn two_deaths_at_writes_of_the_journal_change_nothing_of_the_end() {
    for first in 0..10 {
        for second in (0..10).step_by(3) {
            let node = Node::in_window();
            let path = node.place().journal();
            for at in [first, second, usize::MAX] {
                let journal = BreakingJournal::new(&path, &node.system, at, Side::Before);
                node.agent_with(Box::new(journal)).run_once().await.ok();
            }
            assert_eq!(node.server().story(), STORY, "{first} {second}");
            assert_nothing_is_done_twice(&node.system.take_log());
        }
    }
}

/// Starts agents, of which one dies at a write of the journal, until the attempt is over: on a machine that boots when it
/// is told to, and also at the death if that is a power cut. Whether one died.
async fn live_through(node: &Node, at: usize, side: Side, power_cut: bool) -> bool {
    let path = node.place().journal();
    let left = Arc::new(AtomicUsize::new(at));
    let mut died = false;
    for _ in 0..6 {
        let told = node.machine().told;
        let journal = BreakingJournal::counting(&path, &node.system, &left, side);
        let end = node.agent_with(Box::new(journal)).run_once().await;
        let broke = matches!(end, Err(AgentError::Journal(_)));
        assert!(broke || end.is_ok(), "{end:?}");
        died |= broke;
        if node.machine().told > told || (broke && power_cut) {
            node.boot();
        }
        node.clock.advance(TimeDelta::minutes(5));
    }
    died
}

#[tokio::test]
async fn a_death_at_any_write_of_the_journal_changes_nothing_of_the_end_of_a_reboot() {
    for side in [Side::Before, Side::After] {
        for power_cut in [false, true] {
            let mut at = 0;
            loop {
                let node = Node::in_window();
                node.packages().asks_for_reboot = true;
                let died = live_through(&node, at, side, power_cut).await;

                let context = format!("{side:?} write {at}, power cut: {power_cut}");
                let listing = node.system.listing();
                assert_eq!(listing, "app 2 installed\nlib 2 installed", "{context}");
                let story = node.server().story();
                // A power cut may have been the reboot before it was asked for.
                let expected = if power_cut && story == STORY {
                    STORY
                } else {
                    STORY_WITH_REBOOT
                };
                assert_eq!(story, expected, "{context}");
                assert_eq!(node.left_over(), [""; 0], "{context}");
                assert_nothing_is_done_twice(&node.system.take_log());
                let told = node.machine().told;
                assert!(told == 1 || (power_cut && told == 0), "{context}: {told}");
                if !died {
                    assert!(
                        at > 12,
                        "an attempt writes its journal more than {at} times"
                    );
                    break;
                }
                at += 1;
            }
        }
    }
}

/// Starts an agent that dies while apt has unpacked one package.
async fn die_while_apt_works(node: &Node) {
    node.packages().hang = true;
    let mut agent = node.agent();
    tokio::select! {
        end = agent.run_once() => panic!("it ended: {end:?}"),
        () = node.system.hanging.notified() => {}
    }
    assert_eq!(node.system.listing(), "app 2 unpacked\nlib 1 installed");
}

#[tokio::test]
async fn a_death_in_the_middle_of_apt_is_repaired_from_the_kept_files() {
    let node = Node::in_window();
    die_while_apt_works(&node).await;
    node.system.take_log();
    // The window has closed meanwhile. What has begun is finished.
    node.server().open = false;

    node.run_once().await.unwrap();

    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().story(), STORY);
    let log = node.system.take_log();
    assert_eq!(
        log[..3],
        ["dpkg --install", "dpkg --configure", "mark"],
        "{log:?}"
    );
    assert!(node.packages().automatic.contains("lib"));
}

#[tokio::test]
async fn a_death_in_the_middle_of_a_failing_update_ends_truthfully() {
    let node = Node::in_window();
    node.packages().broken.insert("app".into());
    die_while_apt_works(&node).await;
    node.run_once().await.unwrap_err();
    let server = node.server();
    let News::Failed {
        failure, results, ..
    } = &server.only_attempt().last().unwrap().news
    else {
        panic!("a failure")
    };
    assert!(
        failure.log.contains("app: postinst fails on purpose"),
        "{failure:?}"
    );
    assert_eq!(results[0].state, "half-configured");
    assert_eq!(results[1].version, "2");
}

#[tokio::test]
async fn a_death_after_the_kept_files_are_gone_is_told_as_an_interruption() {
    let node = Node::in_window();
    die_while_apt_works(&node).await;
    let archives = node.place().inside("/var/lib/evenkeel-agent/archives");
    std::fs::remove_dir_all(archives).unwrap();
    node.run_once().await.unwrap_err();
    let server = node.server();
    let end = &server.only_attempt().last().unwrap().news;
    insta::assert_debug_snapshot!(end.failure().map(|failure| failure.kind), @r"
    Some(
        Interrupted,
    )
    ");
}

#[tokio::test]
async fn an_answer_that_is_lost_is_asked_for_again_and_the_report_stays_the_same() {
    let node = Node::in_window();
    for lost in 1..6 {
        node.server().lost_answers = lost;
        while node.run_once().await.is_err() {}
        assert_eq!(node.server().story(), STORY);
        let server = node.server();
        assert!(
            server.arrived > server.only_attempt().len(),
            "some came twice"
        );
    }
}

#[tokio::test]
async fn a_journal_that_makes_no_sense_does_not_hold_the_agent_up() {
    let node = Node::in_window();
    std::fs::write(node.place().journal(), "{\"format\":1,").unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.left_over(), ["journal.json.corrupt-0"]);
    let troubles = node.server().facts.as_ref().unwrap().troubles.clone();
    assert!(
        troubles[0].contains("journal.json.corrupt-0"),
        "{troubles:?}"
    );
    assert_eq!(FileJournal::look(&node.place().journal()).unwrap(), None);
}

/// Locks as dpkg does, says so, and holds on until the file `go` is there.
const HOLD: &str = r#"
use Fcntl;
open(my $file, "+>", "$ARGV[0]/var/lib/dpkg/lock") or die;
my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
fcntl($file, F_SETLK, $lock) or die;
open(my $said, ">", "$ARGV[0]/held") or die; close($said);
select(undef, undef, undef, 0.01) until -e "$ARGV[0]/go";
"#;

#[tokio::test]
async fn an_update_that_outlives_its_deadline_is_waited_for_and_not_called_failed() {
    let node = Node::in_window();
    node.packages().slow = true;
    let root = node.place().root().to_owned();
    let dpkg = async {
        node.system.hanging.notified().await;
        let folder = root.display().to_string();
        let hold = Command::new("perl", Duration::from_mins(1)).with(["-e", HOLD, &folder]);
        HostRunner::new(Path::new("/")).run(&hold).await.unwrap()
    };
    let agent = async {
        let mut agent = node.agent();
        let error = agent.run_once().await.unwrap_err();
        assert!(matches!(error, AgentError::Attempt(_)), "{error}");
        assert_eq!(node.server().story(), "downloading, downloaded, began");
        // Whatever the server says meanwhile, what has begun is neither cancelled nor begun again.
        node.server().target = None;
        agent.run_once().await.unwrap_err();
        assert_eq!(node.server().story(), "downloading, downloaded, began");
        assert_eq!(node.system.listing(), "app 2 unpacked\nlib 1 installed");
        let told = || node.server().waiting.last().unwrap().clone();
        assert!(told().starts_with("another program is at work"));
        std::fs::write(root.join("go"), "").unwrap();
        agent.run_once().await.unwrap();
        assert_eq!(told(), "");
    };
    let both = Box::pin(async { tokio::join!(dpkg, agent) });
    let both = tokio::time::timeout(Duration::from_mins(1), both).await;
    let (ended, ()) = both.expect("a dpkg and an agent that waits for it");
    assert!(ended.succeeded(), "{ended:?}");
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().begins, 1);
}

/// Leave was given, the power went, and it came back after the window: what was not begun does not begin.
#[tokio::test]
async fn a_node_that_comes_back_after_its_window_does_not_begin_to_change() {
    let mut late = 0;
    for at in 0..12 {
        let node = Node::in_window();
        node.server().before = Some(node.clock.now() + TimeDelta::hours(1));
        let path = node.place().journal();
        let journal = BreakingJournal::new(&path, &node.system, at, Side::After);
        if node.agent_with(Box::new(journal)).run_once().await.is_ok() {
            break;
        }
        let log = node.system.take_log();
        let saw = |what: &str| log.iter().any(|line| line == what);
        if !saw("journal began") || saw("install") {
            continue;
        }
        late += 1;
        node.clock.advance(TimeDelta::hours(2));
        node.agent().run_once().await.unwrap_err();
        assert_eq!(
            node.server().story(),
            "downloading, downloaded, began, reverted"
        );
        assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
        assert_eq!(node.left_over(), [""; 0]);
    }
    assert!(late > 0, "no death hit the moment");
}
