//! Instances: first start settings, changes and invalidation.

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
use evenkeel_store::decisions::ReadMode;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::testing::{counting_store, fresh_store};
use evenkeel_store::{
    Conflict, Store, StoreError, contacts, custom_configs, hosts, instances, local_accounts, nodes,
    os_profiles,
};
use serde_json::{Value, json};

use crate::fixtures::{
    NOON, bookworm, contact, create_node, create_project, read_decision_input, registration,
    save_as_own_agent, store_with_project,
};
use crate::os_details::signature;

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

/// Creates an account and two configurations.
async fn create_account_and_configs(
    store: &Store,
    tenant: TenantId,
) -> (LocalAccountId, [CustomConfigId; 2]) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let ann = LocalAccountSpec::parse("ann", SSH_KEY).expect("an account");
    let ann = local_accounts::create(&tx, &ann, NOON).await.expect("created");
    let mut configs = Vec::new();
    for name in ["ntp", "proxy"] {
        let spec =
            CustomConfigSpec::parse(name, "of all", "#cloud-config").expect("a configuration");
        let created = custom_configs::create(&tx, &spec, NOON).await;
        configs.push(created.expect("created").id);
    }
    tx.commit().await.expect("committed");
    (ann.id, [configs[0], configs[1]])
}

/// Creates an instance on a new host with this account and these configurations.
async fn create_instance_with(
    store: &Store,
    tenant: TenantId,
    account: Option<LocalAccountId>,
    configs: Vec<CustomConfigId>,
) -> Result<Instance, StoreError> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(77), NOON).await?;
    let os = os_profiles::find_or_create(&tx, &bookworm(), NOON).await?;
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
    let created = instances::create(&tx, &new, NOON).await?;
    tx.commit().await?;
    Ok(created)
}

#[tokio::test]
async fn an_account_and_configs_in_use_cannot_be_deleted() {
    let (store, tenant) = store_with_project().await;
    let (ann, [ntp, proxy]) = create_account_and_configs(&store, tenant).await;
    let (_, plain) = create_node(&store, tenant, 1).await;
    let created = create_instance_with(&store, tenant, Some(ann), vec![proxy, ntp, proxy]).await;
    let created = created.expect("an instance");
    let mut both = vec![ntp, proxy];
    both.sort_unstable();
    assert_eq!((created.local_account, &created.custom_configs), (Some(ann), &both));

    let tx = store.tenant(tenant).await.expect("a transaction");
    let loaded = instances::find_many(&tx, &[created.id, plain.id]).await;
    let mut loaded = loaded.expect("both");
    loaded.sort_unstable_by_key(|instance| instance.id != created.id);
    assert_eq!(loaded[0], created);
    assert_eq!((loaded[1].local_account, loaded[1].custom_configs.len()), (None, 0));
    let refused = local_accounts::delete(&tx, ann).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(Conflict::InUse { .. }))), "{refused:?}");
    drop(tx);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = custom_configs::delete(&tx, ntp).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(Conflict::InUse { .. }))), "{refused:?}");
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    instances::delete(&tx, created.id).await.expect("deleted");
    local_accounts::delete(&tx, ann).await.expect("free");
    custom_configs::delete(&tx, ntp).await.expect("free");
    tx.commit().await.expect("committed");
}

#[tokio::test]
async fn an_instance_cannot_use_resources_of_another_project() {
    let store = fresh_store().await;
    let theirs = create_project(&store, "theirs").await;
    let (ann, [ntp, _]) = create_account_and_configs(&store, theirs).await;
    let ours = create_project(&store, "ours").await;
    for (account, configs, expected) in
        [(Some(ann), Vec::new(), "localAccountID"), (None, vec![ntp], "customConfigID")]
    {
        let refused = create_instance_with(&store, ours, account, configs).await;
        let Err(StoreError::Conflict(Conflict::MissingReference { field, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(field, expected);
    }
}

#[tokio::test]
async fn a_change_of_an_instance_affects_only_the_given_fields() {
    let (store, tenant) = store_with_project().await;
    let (_, before) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let other = OsSpec { name: "Debian 13".into(), image_id: "13".into(), ..bookworm() };
    let other = os_profiles::create(&tx, &other, NOON).await.expect("created");
    let later = NOON + TimeDelta::hours(1);
    let change = InstanceChange {
        os: Some(other.id),
        kind: Some(InstanceKind::Unspecified),
        ..InstanceChange::default()
    };
    let after = instances::change(&tx, before.id, &change, later).await;
    let mut expected = before.clone();
    expected.summary.os = other.id;
    expected.kind = InstanceKind::Unspecified;
    expected.updated_at = later;
    assert_eq!(after.expect("changed"), expected);
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let nowhere = InstanceChange { os: Some(OsId::nth(4_711)), ..InstanceChange::default() };
    let refused = instances::change(&tx, before.id, &nowhere, later).await;
    let Err(StoreError::Conflict(Conflict::MissingReference { field, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(field, "osID");
}

#[tokio::test]
async fn a_profile_changes_only_its_architecture_labels_and_signatures() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let created = os_profiles::create(&tx, &bookworm(), NOON).await.expect("created");
    let later = NOON + TimeDelta::hours(1);
    let spec = OsSpec {
        name: "another".into(),
        architecture: "aarch64".into(),
        metadata: r#"{"ring":"1"}"#.into(),
        image_signatures: vec![signature("1"), signature("2")],
        ..bookworm()
    };
    let changed = os_profiles::change(&tx, created.id, &spec, later).await;
    let changed = changed.expect("changed");
    assert_eq!(changed.spec, OsSpec { name: bookworm().name, ..spec.clone() });
    assert_eq!((changed.created_at, changed.updated_at), (NOON, later));
    let missing = os_profiles::change(&tx, OsId::nth(4_711), &spec, later).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn the_state_of_a_node_is_saved_in_one_statement() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (counting, sent) = counting_store(&store);
    let tx = counting.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    let state = async || {
        let stored = instances::find(&tx, instance.id).await;
        stored.expect("found").current
    };
    for (provisioned, expected) in
        [(false, InstanceState::Unspecified), (true, InstanceState::Running)]
    {
        node.provisioned = provisioned;
        let before = sent.statements.load(Ordering::Relaxed);
        nodes::save(&tx, &node).await.expect("saved");
        assert_eq!(sent.statements.load(Ordering::Relaxed), before + 1);
        assert_eq!(state().await, expected);
    }
    node.instance = InstanceId::nth(4_711);
    let missing = nodes::save(&tx, &node).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn the_details_of_an_instance_have_its_slots_and_failed_images() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let load_images = async |facts: Value| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut node = nodes::lock(&tx, host.id).await.expect("locked");
        node.facts = facts;
        nodes::save(&tx, &node).await.expect("saved");
        let result = instances::find_details(&tx, instance.id).await;
        tx.commit().await.expect("committed");
        result.map(|(details, _)| (details.slots, details.failed_images))
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
        reason: "it did not come up in 3 boots".into(),
    }];
    let reported = json!({"slots": slots, "badImages": failed});
    assert_eq!(load_images(reported).await.expect("details"), (slots, failed));
    // A node that is updated by packages has neither, and an older server stored neither.
    for reported in [json!({"slots": [], "badImages": []}), json!({})] {
        assert_eq!(load_images(reported).await.expect("details"), (vec![], vec![]));
    }
    for nonsense in [json!({"slots": 5}), json!({"badImages": [5]})] {
        let refused = load_images(nonsense).await.expect_err("a corrupt value");
        assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn an_invalidated_instance_stays_invalidated() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let running = instances::find(&tx, instance.id).await.expect("found");
    assert_eq!(running.current, InstanceState::Running);
    assert!(read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.facts.trusted);
    for hours in 1..3 {
        let now = NOON + TimeDelta::hours(hours);
        let done = instances::invalidate(&tx, instance.id, now).await;
        done.expect("invalidated");
    }
    tx.commit().await.expect("committed");

    save_as_own_agent(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let stored = instances::find(&tx, instance.id).await.expect("found");
    assert_eq!(
        (stored.desired, stored.current),
        (InstanceState::Untrusted, InstanceState::Untrusted)
    );
    assert_eq!(stored.updated_at, NOON + TimeDelta::hours(1));
    assert_eq!(stored.summary.status.text, hosts::INVALIDATED_STATUS);
    assert!(!read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.facts.trusted);
    drop(tx);

    let fleet = store.fleet().await.expect("a transaction");
    contacts::record_contacts(&fleet, vec![contact(tenant, instance.id, NOON)], NOON)
        .await
        .expect("recorded");
    let days = NOON + TimeDelta::days(3);
    let silent = nodes::mark_silent_nodes(&fleet, days, days, 10).await;
    assert!(silent.expect("silent nodes").is_empty());
}
