//! Instances: what they start with, what of them changes, and how the trust in them ends.

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::custom_config::CustomConfigSpec;
use evenkeel_domain::id::{CustomConfigId, InstanceId, LocalAccountId, OsId};
use evenkeel_domain::instance::{
    FailedImage, ImageSlot, Instance, InstanceKind, InstanceState, NewInstance,
};
use evenkeel_domain::local_account::LocalAccountSpec;
use evenkeel_domain::os::{OsSpec, SecurityFeature};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::Reading;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::testing::{counting, fresh_store};
use evenkeel_store::{
    Conflict, Store, StoreError, contacts, custom_configs, hosts, instances, local_accounts, nodes,
    os_profiles,
};
use serde_json::{Value, json};

use crate::house::{NOON, bookworm, contact, node, project, registration, spoke, world};
use crate::os_inside::signature;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

/// An account and two configurations.
async fn first_start(store: &Store, tenant: TenantId) -> (LocalAccountId, [CustomConfigId; 2]) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let ann = LocalAccountSpec::parse("ann", KEY).expect("an account");
    let ann = local_accounts::create(&tx, &ann, NOON).await.expect("made");
    let mut configs = Vec::new();
    for name in ["ntp", "proxy"] {
        let spec = CustomConfigSpec::parse(name, "of all", "#cloud-config").expect("one");
        let made = custom_configs::create(&tx, &spec, NOON).await;
        configs.push(made.expect("made").id);
    }
    tx.commit().await.expect("committed");
    (ann.id, [configs[0], configs[1]])
}

/// An instance on a new host that starts with these.
async fn starting_with(
    store: &Store,
    tenant: TenantId,
    account: Option<LocalAccountId>,
    configs: Vec<CustomConfigId>,
) -> Result<Instance, StoreError> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(77), NOON).await?;
    let os = os_profiles::ensure(&tx, &bookworm(), NOON).await?;
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: account,
        custom_configs: configs,
    };
    let made = instances::create(&tx, &new, NOON).await?;
    tx.commit().await?;
    Ok(made)
}

#[tokio::test]
async fn what_an_instance_starts_with_is_kept_and_cannot_go_before_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (ann, [ntp, proxy]) = first_start(&store, tenant).await;
    let (_, plain) = node(&store, tenant, 1).await;
    let made = starting_with(&store, tenant, Some(ann), vec![proxy, ntp, proxy]).await;
    let made = made.expect("an instance");
    let mut both = vec![ntp, proxy];
    both.sort_unstable();
    assert_eq!(
        (made.local_account, &made.custom_configs),
        (Some(ann), &both)
    );

    let tx = store.tenant(tenant).await.expect("a transaction");
    let found = instances::find_many(&tx, &[made.id, plain.id]).await;
    let mut found = found.expect("both");
    found.sort_unstable_by_key(|instance| instance.id != made.id);
    assert_eq!(found[0], made);
    assert_eq!(
        (found[1].local_account, found[1].custom_configs.len()),
        (None, 0)
    );
    let refused = local_accounts::delete(&tx, ann).await;
    assert!(
        matches!(&refused, Err(StoreError::Conflict(Conflict::InUse { .. }))),
        "{refused:?}"
    );
    drop(tx);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = custom_configs::delete(&tx, ntp).await;
    assert!(
        matches!(&refused, Err(StoreError::Conflict(Conflict::InUse { .. }))),
        "{refused:?}"
    );
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    instances::delete(&tx, made.id).await.expect("deleted");
    local_accounts::delete(&tx, ann).await.expect("free");
    custom_configs::delete(&tx, ntp).await.expect("free");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn an_instance_starts_with_nothing_of_another_project() {
    let store = fresh_store().await;
    let theirs = project(&store, "theirs").await;
    let (ann, [ntp, _]) = first_start(&store, theirs).await;
    let ours = project(&store, "ours").await;
    for (account, configs, wanted) in [
        (Some(ann), Vec::new(), "localAccountID"),
        (None, vec![ntp], "customConfigID"),
    ] {
        let refused = starting_with(&store, ours, account, configs).await;
        let Err(StoreError::Conflict(Conflict::Dangling { field, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(field, wanted);
    }
}

#[tokio::test]
async fn a_change_of_an_instance_touches_only_what_it_names() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, before) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let other = OsSpec {
        name: "Debian 13".into(),
        image_id: "13".into(),
        ..bookworm()
    };
    let other = os_profiles::create(&tx, &other, NOON).await.expect("made");
    let later = NOON + TimeDelta::hours(1);
    let change = InstanceChange {
        os: Some(other.id),
        kind: Some(InstanceKind::Unspecified),
        ..InstanceChange::default()
    };
    let after = instances::change(&tx, before.id, &change, later).await;
    let mut wanted = before.clone();
    wanted.summary.os = other.id;
    wanted.kind = InstanceKind::Unspecified;
    wanted.updated_at = later;
    assert_eq!(after.expect("changed"), wanted);
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let nowhere = InstanceChange {
        os: Some(OsId::nth(4_711)),
        ..InstanceChange::default()
    };
    let refused = instances::change(&tx, before.id, &nowhere, later).await;
    let Err(StoreError::Conflict(Conflict::Dangling { field, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(field, "osID");
}

#[tokio::test]
async fn an_entry_of_the_catalogue_changes_its_architecture_labels_and_signatures_only() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let made = os_profiles::create(&tx, &bookworm(), NOON)
        .await
        .expect("made");
    let later = NOON + TimeDelta::hours(1);
    let spec = OsSpec {
        name: "another".into(),
        architecture: "aarch64".into(),
        metadata: r#"{"ring":"1"}"#.into(),
        image_signatures: vec![signature("1"), signature("2")],
        ..bookworm()
    };
    let changed = os_profiles::change(&tx, made.id, &spec, later).await;
    let changed = changed.expect("changed");
    assert_eq!(
        changed.spec,
        OsSpec {
            name: bookworm().name,
            ..spec.clone()
        }
    );
    assert_eq!((changed.created_at, changed.updated_at), (NOON, later));
    let missing = os_profiles::change(&tx, OsId::nth(4_711), &spec, later).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn what_a_node_says_is_kept_in_one_statement() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (counting, sent) = counting(&store);
    let tx = counting.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    let state = async || {
        let found = instances::find(&tx, instance.id).await;
        found.expect("it is there").current
    };
    for (provisioned, expected) in [
        (false, InstanceState::Unspecified),
        (true, InstanceState::Running),
    ] {
        node.provisioned = provisioned;
        let before = sent.statements.load(Ordering::Relaxed);
        nodes::save(&tx, &node).await.expect("saved");
        assert_eq!(sent.statements.load(Ordering::Relaxed), before + 1);
        assert_eq!(state().await, expected);
    }
    node.instance = InstanceId::nth(4_711);
    let nobody = nodes::save(&tx, &node).await;
    assert!(matches!(nobody, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn an_instance_is_told_with_its_slots_and_the_images_that_failed() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let told = async |facts: Value| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut node = nodes::lock(&tx, host.id).await.expect("locked");
        node.facts = facts;
        nodes::save(&tx, &node).await.expect("saved");
        let whole = instances::find_whole(&tx, instance.id).await;
        tx.commit().await.expect("committed");
        whole.map(|(whole, _)| (whole.slots, whole.failed_images))
    };
    let slot = |name: &str, state: &str, image_id: &str| ImageSlot {
        name: name.into(),
        state: state.into(),
        image_id: image_id.into(),
    };
    let slots = vec![slot("root-a", "good", "1.0"), slot("root-b", "bad", "1.1")];
    let failed = vec![FailedImage {
        sha256: "b".repeat(64),
        image_id: "1.1".into(),
        why: "it did not come up in 3 boots".into(),
    }];
    let said = json!({"slots": slots, "badImages": failed});
    assert_eq!(told(said).await.expect("whole"), (slots, failed));
    // One that is updated by packages has none, and an older server kept none.
    for said in [json!({"slots": [], "badImages": []}), json!({})] {
        assert_eq!(told(said).await.expect("whole"), (vec![], vec![]));
    }
    for nonsense in [json!({"slots": 5}), json!({"badImages": [5]})] {
        let refused = told(nonsense).await.expect_err("it makes no sense");
        assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn what_was_invalidated_stays_so_whatever_its_node_says() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let running = instances::find(&tx, instance.id).await.expect("there");
    assert_eq!(running.current, InstanceState::Running);
    assert!(world(&tx, &host, Reading::Look(NOON)).await.known.trusted);
    for hours in 1..3 {
        let now = NOON + TimeDelta::hours(hours);
        let done = instances::invalidate(&tx, instance.id, now).await;
        done.expect("invalidated, and once more");
    }
    tx.commit().await.expect("committed");

    spoke(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let shown = instances::find(&tx, instance.id).await.expect("there");
    assert_eq!(
        (shown.desired, shown.current),
        (InstanceState::Untrusted, InstanceState::Untrusted)
    );
    assert_eq!(shown.updated_at, NOON + TimeDelta::hours(1));
    assert_eq!(shown.summary.status.text, hosts::INVALIDATED);
    assert!(!world(&tx, &host, Reading::Look(NOON)).await.known.trusted);
    drop(tx);

    let fleet = store.fleet().await.expect("a transaction");
    contacts::heard(&fleet, vec![contact(tenant, instance.id, NOON)])
        .await
        .expect("noted");
    let days = NOON + TimeDelta::days(3);
    let silent = nodes::silence(&fleet, days, days, 10).await;
    assert!(silent.expect("looked").is_empty());
}
