//! What nodes tell besides where an update stands: how it went, what they wait for, what troubles their agents, and which
//! versions they have heard of.

use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::policy::{PackageRules, PolicySpec, Wish};
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::target::Wish as Told;
use evenkeel_proto::agent::{
    Account, AvailablePackage, Facts, Failed, FailureKind, PhaseSpan, PollRequest, PollResponse,
    ReportRequest, WithheldCause, WithheldPackage,
};
use evenkeel_store::{nodes, policies, versions};
use tonic::Code;

use crate::house::{
    House, TestNode, act, began, downloaded, downloading, facts, finished, report, with,
};

pub const DAY: i64 = 24 * 60;

impl House {
    /// A poll of a node that says what it waits for.
    async fn wait(&self, node: &TestNode, waiting: &str) -> PollResponse {
        let request = self.waits(node, waiting).await;
        self.ask(node, request).await
    }

    async fn waits(&self, node: &TestNode, waiting: &str) -> PollRequest {
        PollRequest {
            facts_digest: self.known(node).await.facts_digest,
            waiting: waiting.to_owned(),
            ..PollRequest::default()
        }
    }

    /// A policy for the newest of everything that is some days old, and a node that may fetch it at any time.
    pub async fn careful(&self, node: &TestNode, min_age_days: u32) {
        let rules = PackageRules {
            min_age_days,
            ..PackageRules::default()
        };
        let spec = PolicySpec::parse("careful", "", Wish::Latest).expect("a policy");
        let spec = spec.ruled(rules).expect("rules");
        let tx = self.tx().await;
        let policy = policies::create(&tx, &spec, self.time()).await;
        tx.commit().await.expect("committed");
        self.assign_to(node.instance, policy.expect("a policy").id)
            .await;
        self.window(node.host, -1, 60 * DAY).await;
    }
}

/// A report of the end of an attempt that had begun, with how it went.
fn ended(news: News, account: Account) -> ReportRequest {
    let all = [
        (1, downloading()),
        (2, downloaded()),
        (3, began()),
        (4, news),
    ];
    let mut told = report(1, evenkeel_domain::id::PolicyId::nth(1), &all);
    told.events[3].account = Some(account);
    told
}

pub fn offers(name: &str, version: &str) -> AvailablePackage {
    AvailablePackage {
        name: name.into(),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: version.into(),
        ..AvailablePackage::default()
    }
}

pub fn with_offers(available: Vec<AvailablePackage>) -> Facts {
    Facts {
        available,
        ..facts()
    }
}

/// The versions that a node was told are old enough.
pub fn settled(answer: PollResponse) -> Vec<String> {
    let target = match answer.decision.and_then(|decision| decision.act) {
        Some(Act::Apply(apply)) => apply.target,
        other => panic!("nothing is to be applied: {other:?}"),
    };
    let Some(Told::Packages(packages)) = target.and_then(|target| target.wish) else {
        panic!("it is updated by packages");
    };
    let known = packages.settled.into_iter();
    known
        .map(|one| format!("{}={}", one.name, one.version))
        .collect()
}

#[tokio::test]
async fn the_last_word_of_an_attempt_says_how_it_went() {
    let house = House::new().await;
    let node = house.node().await;
    let span = |phase: &str, millis, bytes| PhaseSpan {
        phase: phase.into(),
        millis,
        bytes,
    };
    let account = Account {
        phases: vec![span("download", 1_500, 2_048), span("apply", 3_000, 0)],
        remarks: vec!["cron.service was left as it was".into()],
        kept_conffiles: vec!["/etc/curlrc".into()],
        restarted_services: vec!["ssh.service".into()],
        reboot_required: true,
    };
    for _ in 0..2 {
        let told = with(&node.credential, ended(finished(), account.clone()));
        let answer = house.manager.report(told).await.expect("stored");
        assert_eq!(answer.into_inner().acknowledged, 4);
    }
    let run = &house.runs(&node).await[0];
    assert_eq!(run.state.name(), "succeeded");
    let kept = &run.account;
    assert_eq!(kept.phases.len(), 2);
    assert_eq!(
        (kept.phases[0].phase.as_str(), kept.phases[0].bytes),
        ("download", 2_048)
    );
    assert_eq!(kept.remarks, ["cron.service was left as it was"]);
    assert_eq!(kept.kept_conffiles, ["/etc/curlrc"]);
    assert_eq!(kept.restarted_services, ["ssh.service"]);
    assert!(kept.reboot_required);
}

#[tokio::test]
async fn an_account_beyond_all_measure_is_cut_and_the_end_is_kept() {
    let house = House::new().await;
    let node = house.node().await;
    let account = Account {
        phases: vec![PhaseSpan::default(); 10_000],
        remarks: vec!["\0r".repeat(1_000); 1_000],
        kept_conffiles: vec!["f".repeat(5_000); 300],
        restarted_services: vec!["s".into(); 10_000],
        reboot_required: false,
    };
    let failed = News::Failed(Failed {
        kind: FailureKind::Limits.into(),
        reason: "the owner allows no removals".into(),
        ..Failed::default()
    });
    let told = with(&node.credential, ended(failed, account));
    house.manager.report(told).await.expect("stored");
    let run = &house.runs(&node).await[0];
    assert_eq!(run.state.name(), "failed");
    let kept = serde_json::to_string(&run.account).expect("JSON");
    assert!(kept.len() < 400_000, "{} bytes", kept.len());
    assert_eq!(
        run.account.restarted_services.last().map(String::as_str),
        Some("… and 9801 more [cut]")
    );
    let told = house.history(run.id).await;
    assert!(told.ends_with("failed->failed"), "{told}");
}

#[tokio::test]
async fn what_a_node_waits_for_is_known_until_it_begins() {
    let house = House::new().await;
    let (node, policy) = house.node_that_waits().await;
    house.pass(11);
    assert_eq!(act(&house.poll_with(&node, 1).await), "apply");
    let attempt = PollRequest {
        attempt: Some(evenkeel_proto::agent::Attempt {
            id: uuid::Uuid::from_u128(1).to_string(),
            last_sequence: 2,
        }),
        ..house.waits(&node, "alice is\nlogged in").await
    };
    assert_eq!(act(&house.ask(&node, attempt.clone()).await), "apply");
    assert_eq!(house.known(&node).await.waiting, "alice is logged in");
    let long = PollRequest {
        waiting: "x".repeat(100_000),
        ..attempt
    };
    house.ask(&node, long).await;
    let waiting = house.known(&node).await.waiting;
    assert!(
        waiting.len() <= 1_000 && waiting.ends_with("[cut]"),
        "{waiting}"
    );
    house.begin(&node, 1, policy, 2).await;
    house.report(&node, 1, policy, &[(3, began())]).await;
    assert_eq!(house.known(&node).await.waiting, "");
}

/// Nodes ask three times a minute: what is known already is neither locked nor written.
#[tokio::test]
async fn a_node_that_still_waits_for_the_same_writes_nothing() {
    let house = House::new().await;
    let node = house.node().await;
    house.wait(&node, "the disk is full").await;
    let (away, _) = house.impatient_replica().await;
    let (same, other) = (
        house.waits(&node, "the disk is full").await,
        house.waits(&node, "").await,
    );
    let busy = house.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    let answer = away.poll(with(&node.credential, same)).await;
    answer.expect("nothing is locked");
    let refused = away.poll(with(&node.credential, other)).await;
    assert_eq!(refused.expect_err("news").code(), Code::Unavailable);
    drop(busy);
    house.wait(&node, "").await;
    assert_eq!(house.known(&node).await.waiting, "");
}

#[tokio::test]
async fn the_troubles_of_an_agent_are_a_condition_until_they_are_over() {
    let house = House::new().await;
    let node = house.node().await;
    let troubles = |all: &[&str]| Facts {
        troubles: all.iter().map(|text| (*text).to_owned()).collect(),
        limits: "hours 22:00-04:00".into(),
        withheld: vec![WithheldPackage {
            name: "linux-image-amd64".into(),
            cause: WithheldCause::Policy.into(),
            ..WithheldPackage::default()
        }],
        ..facts()
    };
    house
        .tell(&node, troubles(&["the journal was set aside", "b"]))
        .await;
    let known = house.known(&node).await;
    let shown: Vec<_> = known.conditions.iter().map(|one| one.kind.name()).collect();
    assert_eq!(shown, ["agent_trouble"]);
    assert_eq!(known.conditions[0].text, "the journal was set aside; b");
    assert_eq!(known.facts["troubles"][1], "b");
    assert_eq!(known.facts["limits"], "hours 22:00-04:00");
    assert_eq!(known.facts["withheld"][0]["cause"], "policy");

    let long = "\0x".repeat(1_000);
    let many: Vec<&str> = (0..1_000).map(|_| long.as_str()).collect();
    house.tell(&node, troubles(&many)).await;
    let known = house.known(&node).await;
    assert!(known.conditions[0].text.len() <= 2_000);
    let kept = known.facts["troubles"].as_array().expect("a list");
    assert_eq!(kept.len(), 20);
    assert_eq!(kept[19], "… and 981 more [cut]");

    house.tell(&node, troubles(&[])).await;
    assert!(house.known(&node).await.conditions.is_empty());
}

#[tokio::test]
async fn the_suites_of_what_could_be_updated_are_kept() {
    let house = House::new().await;
    let node = house.node().await;
    let curl = AvailablePackage {
        suites: vec!["bookworm-security".into(); 1_000],
        ..offers("curl", "2")
    };
    house
        .tell(&node, with_offers(vec![curl, offers("jq", "2")]))
        .await;
    let known = house.known(&node).await.os_update_available;
    let kept: serde_json::Value = serde_json::from_str(&known).expect("a list");
    assert_eq!(kept[0]["suites"].as_array().map(Vec::len), Some(20));
    assert_eq!(kept[0]["suites"][0], "bookworm-security");
    assert_eq!(kept[1].get("suites"), None);
}

#[tokio::test]
async fn a_version_is_old_enough_when_the_server_first_heard_of_it_some_days_ago() {
    let house = House::new().await;
    let (node, other) = (house.nth_node(1).await, house.nth_node(2).await);
    house.careful(&node, 7).await;
    // Another node hears of it first: that counts for the whole project.
    house
        .tell(&other, with_offers(vec![offers("curl", "2")]))
        .await;
    house.pass(5 * DAY);
    let both = || vec![offers("curl", "2"), offers("jq", "2")];
    let nothing: [&str; 0] = [];
    let answer = house.tell(&node, with_offers(both())).await;
    assert_eq!(settled(answer), nothing);
    house.pass(2 * DAY);
    assert_eq!(settled(house.poll(&node).await), ["curl=2"]);
    // A newer one does not take the older one away.
    let newer = vec![offers("curl", "3"), offers("jq", "2")];
    let answer = house.tell(&node, with_offers(newer)).await;
    assert_eq!(settled(answer), ["curl=2"]);
    house.pass(5 * DAY);
    assert_eq!(settled(house.poll(&node).await), ["curl=2", "jq=2"]);
    house.pass(2 * DAY);
    let all = ["curl=2", "curl=3", "jq=2"];
    assert_eq!(settled(house.poll(&node).await), all);
    // What the node could not update is not told.
    house
        .tell(&other, with_offers(vec![offers("vim", "2")]))
        .await;
    house.pass(8 * DAY);
    assert_eq!(settled(house.poll(&node).await), all);
}

/// With leave for removals it may be brought one day, so its age counts from now on.
#[tokio::test]
async fn what_is_withheld_grows_old_all_the_same() {
    let house = House::new().await;
    let node = house.node().await;
    house.careful(&node, 7).await;
    let kept_back = WithheldPackage {
        name: "linux".into(),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: "2".into(),
        cause: WithheldCause::KeptBack.into(),
        ..WithheldPackage::default()
    };
    let told = Facts {
        withheld: vec![kept_back],
        ..with_offers(vec![offers("curl", "2")])
    };
    let answer = house.tell(&node, told).await;
    assert!(settled(answer).is_empty());
    house.pass(7 * DAY);
    assert_eq!(settled(house.poll(&node).await), ["curl=2", "linux=2"]);
}

/// A node tells its facts when they change, and a server of an older release kept no versions of them.
#[tokio::test]
async fn what_an_older_server_was_told_grows_old_from_the_next_poll_on() {
    let house = House::new().await;
    let node = house.node().await;
    house.careful(&node, 7).await;
    house
        .tell(&node, with_offers(vec![offers("curl", "2")]))
        .await;
    let unnoted = "BEGIN; SET LOCAL evenkeel.tenant = '*'; DELETE FROM package_versions; COMMIT";
    house.store.unprepared(unnoted).await.expect("removed");
    house.pass(7 * DAY);
    assert!(settled(house.poll(&node).await).is_empty());
    house.pass(6 * DAY);
    assert!(settled(house.poll(&node).await).is_empty());
    house.pass(DAY);
    assert_eq!(settled(house.poll(&node).await), ["curl=2"]);
}

#[tokio::test]
async fn a_policy_that_asks_for_no_age_tells_no_versions() {
    let house = House::new().await;
    let node = house.node().await;
    house.careful(&node, 0).await;
    house
        .tell(&node, with_offers(vec![offers("curl", "2")]))
        .await;
    house.pass(30 * DAY);
    assert!(settled(house.poll(&node).await).is_empty());
}

#[tokio::test]
async fn versions_that_no_node_tells_of_any_more_are_swept_after_a_year() {
    let house = House::new().await;
    let told = async |version: &str| {
        let one = FoundVersion {
            name: "curl".into(),
            architecture: "amd64".into(),
            version: version.into(),
        };
        let tx = house.tx().await;
        let noted = versions::see(&tx, &[one], house.time()).await;
        assert_eq!(noted.expect("noted"), 1);
        tx.commit().await.expect("committed");
    };
    told("1").await;
    house.pass(399 * DAY);
    told("2").await;
    assert_eq!(house.sweep(Settings::default()).await.versions, 0);
    house.pass(2 * DAY);
    assert_eq!(house.sweep(Settings::default()).await.versions, 1);
    assert_eq!(house.sweep(Settings::default()).await.versions, 0);
}
