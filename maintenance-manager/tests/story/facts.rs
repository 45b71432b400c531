//! What is known of nodes: images, packages, boots, conditions, and leave that is given ahead.

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Wish as WireWish;
use evenkeel_proto::agent::{
    BootedImage, Facts, PollRequest, PollResponse, StaleService, WithheldCause, WithheldPackage,
};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{contents, policies};
use sha2::Digest as _;

use crate::fleet::{image, naming, sample, window};
use crate::house::{House, act, downloaded, downloading, facts, finished, reason};

fn sha256(text: &str) -> [u8; 32] {
    sha2::Sha256::digest(text).into()
}

fn with_packages(text: &str) -> Facts {
    Facts {
        packages_digest: sha256(text).to_vec(),
        ..facts()
    }
}

#[tokio::test]
async fn what_was_cut_of_an_old_agents_update_is_said_until_the_next_update() {
    let house = House::new().await;
    let old = house.old_node(1).await;
    let policy = house.policy(&old.as_node(), "demo-hello=1.1").await;
    let long = UpdateStatus {
        status_detail: "x".repeat(200_000),
        ..sample(S::Failed)
    };
    for said in [sample(S::UpToDate), sample(S::Started), long] {
        house.say(&old, said).await;
    }
    let cut = [ConditionKind::DetailCut];
    assert_eq!(house.conditions(old.instance).await, cut);
    let node = house.takes_over(&old).await;
    for _ in 0..2 {
        house.pass(1);
        house.tell(&node, facts()).await;
        assert_eq!(house.conditions(old.instance).await, cut);
    }
    house.pass(1);
    let events = [(1, downloading()), (2, finished())];
    house.report(&node, 1, policy, &events).await;
    house.tell(&node, facts()).await;
    assert_eq!(house.conditions(old.instance).await, []);
}

const LIST: &str = r#"{"repo":[{"name":"apt","version":"2.6.1","architecture":"amd64"}]}"#;

#[tokio::test]
async fn a_list_of_packages_is_asked_for_once_and_kept_once_for_all_who_have_it() {
    let house = House::new().await;
    let (one, two) = (house.nth_node(1).await, house.nth_node(2).await);
    assert!(house.tell(&one, with_packages(LIST)).await.want_packages);
    assert!(house.poll(&one).await.want_packages, "until it is there");
    let list = |text: &str| PollRequest {
        packages: text.into(),
        ..PollRequest::default()
    };
    assert!(
        house.ask(&one, list("{\"repo\":[]}")).await.want_packages,
        "another one"
    );
    assert!(!house.ask(&one, list(LIST)).await.want_packages);
    assert!(!house.poll(&one).await.want_packages);
    let answer = house.tell(&two, with_packages(LIST)).await;
    assert!(!answer.want_packages, "the other node has sent it");
    assert_eq!(house.known(&two).await.packages_digest, Some(sha256(LIST)));
    let tx = house.tx().await;
    let kept = contents::get(&tx, &sha256(LIST)).await.expect("an answer");
    assert_eq!(kept.as_deref(), Some(LIST));
    drop(tx);

    let newer = LIST.replace("2.6.1", "2.6.2");
    assert!(house.tell(&one, with_packages(&newer)).await.want_packages);
    assert_eq!(
        house.known(&one).await.packages_digest,
        Some(sha256(LIST)),
        "what was known stays until the new list is there"
    );
}

#[tokio::test]
async fn what_is_withheld_and_why_a_reboot_is_required_is_known() {
    let house = House::new().await;
    let node = house.node().await;
    let said = Facts {
        reboot_required: true,
        reboot_reasons: vec!["the kernel 6.1.0-30 is installed and 6.1.0-29 runs".into()],
        withheld: vec![WithheldPackage {
            name: "docker.io".into(),
            cause: WithheldCause::Hold.into(),
            ..WithheldPackage::default()
        }],
        stale_services: vec![StaleService {
            name: "ssh.service".into(),
            files: vec!["/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into()],
        }],
        ..facts()
    };
    house.tell(&node, said).await;
    let known = house.known(&node).await.facts;
    assert_eq!(
        known["rebootReasons"][0],
        "the kernel 6.1.0-30 is installed and 6.1.0-29 runs"
    );
    assert_eq!(known["withheld"][0]["cause"], "hold");
    assert_eq!(known["staleServices"][0]["name"], "ssh.service");
}

/// Two machines were made from one disk: each of them says its own boot, again and again.
#[tokio::test]
async fn two_machines_with_one_identity_are_shown() {
    let house = House::new().await;
    let node = house.node().await;
    let boots = async |boot: &str| {
        let boot_id = boot.to_owned();
        let said = Facts { boot_id, ..facts() };
        house.tell(&node, said).await;
        let kinds = house.conditions(node.instance).await;
        kinds.iter().any(|kind| kind.name() == "two_machines")
    };
    assert!(!boots("boot-1").await);
    assert!(!boots("boot-2").await, "a reboot");
    assert!(!boots("boot-2").await);
    assert!(boots("boot-1").await, "no machine goes back to a boot");
    assert!(boots("boot-2").await);
    assert!(!boots("boot-3").await, "a reboot ends the suspicion");
    assert!(boots("boot-2").await, "until the next proof");
}

#[tokio::test]
async fn leave_is_given_ahead_for_nodes_that_cannot_ask() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 60, 120).await;
    house
        .window(node.host, 30 * 24 * 60, 30 * 24 * 60 + 60)
        .await;
    let grant = |answer: PollResponse| answer.decision.and_then(|decision| decision.grant);
    let given = grant(house.poll(&node).await).expect("with what is to be fetched");
    assert_eq!(given.target_digest, policy.to_string());
    assert_eq!(
        given.windows.len(),
        1,
        "what lies behind the week is not granted"
    );
    let seconds = |time: Option<prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
    let now = crate::house::NOON.timestamp();
    assert_eq!(seconds(given.windows[0].start), now + 3_600);
    assert_eq!(seconds(given.expires), now + 7 * 86_400);
    let fetched = [(1, downloading()), (2, downloaded())];
    house.report(&node, 1, policy, &fetched).await;
    assert!(grant(house.poll_with(&node, 1).await).is_some());

    // What is counted is never granted ahead, and neither is what the policy keeps online.
    let scope = evenkeel_domain::assignment::Scope::Instance(node.instance);
    house.assign(scope, policy, Some(1), None).await;
    assert!(grant(house.poll_with(&node, 1).await).is_none());
    let other = house.nth_node(2).await;
    house.window(other.host, 60, 120).await;
    let spec = PolicySpec::parse("online", "", Wish::Latest).expect("a policy");
    let spec = spec.lasting(0).expect("never offline");
    let tx = house.tx().await;
    let online = policies::create(&tx, &spec, crate::house::NOON)
        .await
        .expect("a policy");
    tx.commit().await.expect("committed");
    house.assign_to(other.instance, online.id).await;
    let answer = house.poll(&other).await;
    assert_eq!(act(&answer), "fetch");
    assert!(grant(answer).is_none());
}

#[tokio::test]
async fn a_node_of_images_is_told_the_newest_and_moves_when_it_proves_it() {
    let house = House::new().await;
    let (old, new) = (
        house.catalogue("3.0.20250717.0732").await,
        house.catalogue("3.0.20250717.2200").await,
    );
    let node = house.old_node_on(1, old).await;
    let policy = house.make(Wish::Latest).await;
    house.assign_to(node.instance, policy).await;
    house.window(node.host, 1, 600).await;
    let answer = house.say(&node, sample(S::UpToDate)).await;
    assert_eq!(image(&answer), "3.0.20250717.2200");
    let available = house.state(node.instance).await.os_update_available;
    assert_eq!(available, "edge 3.0.20250717.2200");
    house.pass(2);
    for kind in [S::Downloading, S::Downloaded] {
        house.say(&node, sample(kind)).await;
    }
    // Another image comes meanwhile: the one that was begun is the one that is told until the end.
    let newest = house.catalogue("3.0.20250718.0100").await;
    let answer = house.say(&node, sample(S::Started)).await;
    assert_eq!(image(&answer), "3.0.20250717.2200");
    house
        .say(&node, naming(S::Updated, "edge", "3.0.20250717.2200"))
        .await;
    let known = house.state(node.instance).await;
    assert_eq!(known.os, new);
    assert_eq!(known.os_update_available, "edge 3.0.20250718.0100");
    assert_ne!(known.os, newest);
    let run = &house.runs(&node.as_node()).await[0];
    assert_eq!(
        (run.state.name(), run.origin.policy_id()),
        ("succeeded", Some(policy))
    );
}

#[tokio::test]
async fn an_echo_of_another_image_moves_nothing_and_is_shown() {
    let house = House::new().await;
    let old = house.catalogue("3.0.1").await;
    let (_, other) = (
        house.catalogue("3.0.2").await,
        house.catalogue("3.0.0").await,
    );
    let node = house.old_node_on(1, old).await;
    let policy = house.make(Wish::Latest).await;
    house.assign_to(node.instance, policy).await;
    house.window(node.host, 0, 600).await;
    for kind in [S::UpToDate, S::Started] {
        house.say(&node, sample(kind)).await;
    }
    house.say(&node, naming(S::Updated, "edge", "3.0.0")).await;
    let known = house.state(node.instance).await;
    assert_eq!(known.os, old);
    assert_ne!(known.os, other);
    assert_eq!(known.conditions[0].kind.name(), "other_image");
    assert_eq!(
        house.runs(&node.as_node()).await[0].state.name(),
        "succeeded"
    );
}

#[tokio::test]
async fn a_wish_that_is_not_newer_is_a_condition_until_it_is() {
    let house = House::new().await;
    let (old, new) = (
        house.catalogue("3.0.1").await,
        house.catalogue("3.0.2").await,
    );
    let node = house.old_node_on(1, new).await;
    let policy = house.image_policy(old).await;
    house.assign_to(node.instance, policy).await;
    house.window(node.host, 0, 600).await;
    for _ in 0..2 {
        let answer = house.say(&node, sample(S::UpToDate)).await;
        assert_eq!((image(&answer), window(&answer)), ("", None));
        house.pass(1);
    }
    let known = house.state(node.instance).await.conditions;
    assert_eq!(known[0].kind.name(), "not_newer");
    assert_eq!(known[0].since, crate::house::NOON, "since it was first so");
    let newer = house.catalogue("3.0.3").await;
    let policy = house.image_policy(newer).await;
    house.assign_to(node.instance, policy).await;
    house.say(&node, sample(S::UpToDate)).await;
    assert!(house.conditions(node.instance).await.is_empty());
}

/// Our own agent with a module for images: the target on the wire, and the booted image as a fact.
#[tokio::test]
async fn our_agent_is_told_images_and_says_what_it_has_booted() {
    let house = House::new().await;
    let (old, new) = (
        house.catalogue("3.0.1").await,
        house.catalogue("3.0.2").await,
    );
    let registered = house.old_node_on(1, old).await;
    let node = house.takes_over(&registered).await;
    let policy = house.make(Wish::Latest).await;
    house.assign_to(node.instance, policy).await;
    house.window(node.host, 0, 600).await;
    let answer = house.tell(&node, facts()).await;
    assert_eq!(reason(&answer), "the node's agent has no module `image`");
    let kinds = house.conditions(node.instance).await;
    assert_eq!(
        kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        ["agent_lacks"]
    );

    let booted = |image_id: &str| Facts {
        modules: vec!["image".into()],
        booted_image: Some(BootedImage {
            profile_name: "edge".into(),
            image_id: image_id.into(),
        }),
        ..facts()
    };
    let answer = house.tell(&node, booted("3.0.1")).await;
    let Some(Act::Apply(apply)) = answer.decision.and_then(|decision| decision.act) else {
        panic!("a window is open");
    };
    let target = apply.target.expect("a target");
    assert_eq!(target.digest, format!("{policy}/{new}"));
    let Some(WireWish::Image(image)) = target.wish else {
        panic!("an image");
    };
    assert_eq!(
        (image.image_id.as_str(), image.url.as_str()),
        ("3.0.2", "files/edge-3.0.2.raw.gz")
    );

    house
        .report_for(
            &node,
            1,
            &target.digest,
            &[(1, downloading()), (2, finished())],
        )
        .await;
    assert_eq!(
        house.known(&node).await.os,
        old,
        "said to be done, and not booted yet"
    );
    house.tell(&node, booted("3.0.2")).await;
    let known = house.known(&node).await;
    assert_eq!((known.os, known.os_update_available.as_str()), (new, ""));
    house.tell(&node, booted("9.9.9")).await;
    let known = house.known(&node).await;
    assert_eq!(known.os, new);
    assert_eq!(known.conditions[0].kind.name(), "unknown_image");
    let run = &house.runs(&node).await[0];
    let digest = run
        .origin
        .target
        .as_ref()
        .map(evenkeel_domain::decide::Target::digest);
    assert_eq!(digest, Some(target.digest), "frozen");
}
