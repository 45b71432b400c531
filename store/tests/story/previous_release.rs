//! Compatibility with the previous release: rows that it left and rows that it writes while this
//! release runs.

use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::{AgentProtocol, QuarantinedImage};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::Sha256;
use evenkeel_domain::policy::{DesiredUpdate, ImageRules, PolicySpec};
use evenkeel_domain::run::{ImageChange, RunEvent, RunTimeouts};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::nodes::{self, NodeState};
use evenkeel_store::os_details::{ImportOutcome, ImportedOs};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, changes, os_details, os_profiles, policies, runs};
use futures_util::future::join;
use serde_json::json;

use crate::fixtures::{
    NOON, create_node, create_project, execute_sql, new_attempt, numbered_record,
};
use crate::os_details::{edge, signature, wait_for_blocked_transaction};

/// SQL of the twenty-fifth step, up and down.
fn step_25() -> [&'static str; 2] {
    nth_step(25)
}

fn nth_step(number: usize) -> [&'static str; 2] {
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let step = steps.chunks(2).nth(number - 1).expect("a step");
    [step[0], step[1]]
}

/// The `LOCK TABLE` statement of a step.
fn lock_statement(step: &'static str) -> &'static str {
    let mut lines = step.lines();
    let lock = lines.find(|line| line.starts_with("LOCK TABLE"));
    lock.expect("a LOCK TABLE statement").trim_end_matches(';')
}

async fn import(store: &Store, tenant: TenantId, imported: &ImportedOs) -> ImportOutcome {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let outcome = os_details::import(&tx, imported, NOON)
        .await
        .expect("stored");
    tx.commit().await.expect("committed");
    outcome
}

async fn import_new(store: &Store, tenant: TenantId, imported: &ImportedOs) -> OsId {
    match import(store, tenant, imported).await {
        ImportOutcome::Created { os, .. } => os,
        other => panic!("{other:?}"),
    }
}

/// Signatures of an image.
async fn image_signatures(store: &Store, tenant: TenantId, os: OsId) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let profile = os_profiles::find(&tx, os).await.expect("an entry");
    profile.spec.image_signatures
}

async fn count_changes(store: &Store, tenant: TenantId, kind: &str, id: u32) -> usize {
    let tx = store.tenant(tenant).await.expect("a transaction");
    changes::list_for_resource(&tx, kind, id)
        .await
        .expect("read")
        .len()
}

/// Fails unless a condition in SQL is true.
async fn assert_sql(store: &Store, condition: &str) {
    let sql = format!(
        "DO $$ BEGIN IF ({condition}) IS NOT TRUE THEN RAISE 'condition not met'; END IF; END $$"
    );
    execute_sql(store, &sql).await;
}

/// Signatures as a SQL array.
fn sql_array(signatures: &[String]) -> String {
    format!("ARRAY['{}']::text[]", signatures.join("', '"))
}

/// Writes what a server of the previous release imports from a registry: only the signatures in
/// `os_inside`.
async fn import_as_previous_release(
    store: &Store,
    (tenant, os): (TenantId, OsId),
    artifact: u8,
    signatures: &[String],
) {
    let artifact = format!("{artifact:02x}").repeat(32);
    let sql = format!(
        "INSERT INTO os_inside (tenant_id, os_id, registry, repository, revision, artifact, platform_bundle, \
         image_signatures, signature, files, refreshed_at) VALUES ('{tenant}', {}, 'release', 'profiles/edge', '0.3.1', \
         '\\x{artifact}', '', {}, NULL, '[]', now()) ON CONFLICT (tenant_id, os_id) DO UPDATE \
         SET artifact = excluded.artifact, image_signatures = excluded.image_signatures",
        os.bits().cast_signed(),
        sql_array(signatures),
    );
    execute_sql(store, &sql).await;
}

#[tokio::test]
async fn signatures_survive_the_step_and_its_reversal() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let signed = import_new(&store, tenant, &edge("3.0.1")).await;
    let mut plain = edge("3.0.2");
    plain.spec.image_signatures = Vec::new();
    let unsigned = import_new(&store, tenant, &plain).await;
    let log = async || {
        let os = count_changes(&store, tenant, "os", signed.bits()).await;
        os + count_changes(&store, tenant, "os_inside", signed.bits()).await
    };
    let before = log().await;
    let [up, down] = step_25();
    execute_sql(&store, down).await;
    for (os, expected) in [
        (signed, sql_array(&[signature("1")])),
        (unsigned, "'{}'".into()),
    ] {
        let os = os.bits().cast_signed();
        let condition =
            format!("(SELECT image_signatures FROM os_inside WHERE os_id = {os}) = {expected}");
        assert_sql(&store, &condition).await;
    }
    execute_sql(&store, up).await;
    assert_eq!(
        image_signatures(&store, tenant, signed).await,
        [signature("1")]
    );
    assert!(image_signatures(&store, tenant, unsigned).await.is_empty());
    assert_eq!(log().await, before, "nothing has changed");
    assert_eq!(
        import(&store, tenant, &edge("3.0.1")).await,
        ImportOutcome::Unchanged(signed)
    );
}

#[tokio::test]
async fn an_import_by_the_previous_release_is_visible_to_this_one() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut spec = edge("3.0.1").spec;
    spec.image_signatures = Vec::new();
    let created = os_profiles::create(&tx, &spec, NOON).await;
    tx.commit().await.expect("committed");
    let os = created.expect("created").id;
    let target = (tenant, os);

    let first = [signature("1")];
    import_as_previous_release(&store, target, 1, &first).await;
    assert_eq!(image_signatures(&store, tenant, os).await, first);
    let log = count_changes(&store, tenant, "os", os.bits()).await;
    assert_eq!(log, 2, "answer caches are notified");

    // Signed once more, and then no longer.
    let both = [signature("1"), signature("2")];
    import_as_previous_release(&store, target, 2, &both).await;
    assert_eq!(image_signatures(&store, tenant, os).await, both);

    // A manual change stays until the profile changes.
    let tx = store.tenant(tenant).await.expect("a transaction");
    spec.image_signatures = vec![signature("3")];
    let changed = os_profiles::change(&tx, os, &spec, NOON).await;
    changed.expect("changed");
    tx.commit().await.expect("committed");
    import_as_previous_release(&store, target, 2, &both).await;
    assert_eq!(image_signatures(&store, tenant, os).await, [signature("3")]);
    import_as_previous_release(&store, target, 4, &first).await;
    assert_eq!(image_signatures(&store, tenant, os).await, first);
}

/// A server of this release does not write the column that the previous one reads.
#[tokio::test]
async fn an_import_by_this_release_is_not_undone_by_the_previous_one() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let mut imported = edge("3.0.1");
    let os = import_new(&store, tenant, &imported).await;
    assert_eq!(image_signatures(&store, tenant, os).await, [signature("1")]);
    // The previous release finds no signatures in its column and writes the same profile there.
    import_as_previous_release(&store, (tenant, os), 1, &[signature("1")]).await;
    assert_eq!(image_signatures(&store, tenant, os).await, [signature("1")]);
    imported.details.artifact = [2; 32];
    imported.spec.image_signatures = vec![signature("2")];
    assert_eq!(
        import(&store, tenant, &imported).await,
        ImportOutcome::Updated(os)
    );
    assert_eq!(image_signatures(&store, tenant, os).await, [signature("2")]);
    // An image without signatures replaces a signed one.
    imported.details.artifact = [3; 32];
    imported.spec.image_signatures = Vec::new();
    assert_eq!(
        import(&store, tenant, &imported).await,
        ImportOutcome::Updated(os)
    );
    assert!(image_signatures(&store, tenant, os).await.is_empty());
}

/// Changes the stored state of the node on a host.
async fn update_node(
    store: &Store,
    tenant: TenantId,
    host: &Host,
    change: impl Fn(&mut NodeState),
) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    change(&mut node);
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

/// A node that reported its facts to this release, with an image that failed.
fn set_facts(node: &mut NodeState, module: &str) {
    node.protocol = AgentProtocol::Own {
        modules: vec![module.to_owned()],
    };
    node.facts = json!({"slots": [], "badImages": []});
    node.facts_digest = vec![7; 32];
    node.bad_images = vec![QuarantinedImage {
        sha256: Sha256::NONE,
        since: NOON,
    }];
    let condition = |kind| Condition {
        kind,
        text: "a text".into(),
        since: NOON,
    };
    node.conditions = vec![
        condition(ConditionKind::Quarantined),
        condition(ConditionKind::TwoMachines),
    ];
}

#[tokio::test]
async fn the_reverse_step_removes_what_the_previous_release_cannot_read() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    update_node(&store, tenant, &host, |node| set_facts(node, "image")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut planned = numbered_record(RunEvent::Downloading, 1);
    planned.evidence.image = Some(ImageChange::default());
    let (subject, timeouts) = (new_attempt(&instance, 1), RunTimeouts::default());
    let run = runs::advance(&tx, subject, &planned, &timeouts, NOON).await;
    let slow = ImageRules {
        attempts: 3,
        ..ImageRules::default()
    };
    let spec = PolicySpec::parse("slow", "", DesiredUpdate::Latest)
        .and_then(|spec| spec.with_image_rules(slow));
    let policy = policies::create(&tx, &spec.expect("a policy"), NOON).await;
    let (run, policy) = (run.expect("opened").id, policy.expect("created").id);
    tx.commit().await.expect("committed");

    let [up, down] = step_25();
    execute_sql(&store, down).await;
    assert_sql(
        &store,
        "SELECT jsonb_agg(one ->> 'kind') = '[\"two_machines\"]' FROM node_states, jsonb_array_elements(conditions) one",
    )
    .await;
    execute_sql(&store, up).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let kinds: Vec<_> = node.conditions.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ConditionKind::TwoMachines]);
    assert_eq!(node.bad_images, []);
    let run = runs::find(&tx, run).await.expect("a run");
    assert_eq!(run.image, None);
    let policy = policies::find(&tx, policy).await.expect("a policy");
    assert!(policy.spec.image_rules.is_default());
}

/// The step and a reader must not wait for each other in a cycle.
#[tokio::test]
async fn the_step_waits_for_a_reader_of_a_node_its_run_and_its_profile() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    for sql in step_25() {
        let lock = lock_statement(sql);
        let tx = store.tenant(tenant).await.expect("a transaction");
        let node = nodes::lock(&tx, host.id).await.expect("locked");
        let read = async {
            wait_for_blocked_transaction(&store).await;
            let open = runs::find_open(&tx, instance.id).await;
            assert_eq!(open.expect("not blocked"), None);
            os_profiles::find(&tx, node.os).await.expect("not blocked");
            tx.commit().await.expect("committed");
        };
        join(execute_sql(&store, lock), read).await;
    }
}

/// No cycle here either: a report reads its run before it writes events.
#[tokio::test]
async fn the_step_that_rebuilds_the_keys_of_runs_waits_for_reports() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let [up, _] = nth_step(27);
    let tx = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&tx, host.id).await.expect("locked");
    let open = runs::find_open(&tx, instance.id).await;
    assert_eq!(open.expect("an answer"), None);
    let reporting = async {
        wait_for_blocked_transaction(&store).await;
        let (first, timeouts) = (
            numbered_record(RunEvent::Downloading, 1),
            RunTimeouts::default(),
        );
        let run = runs::advance(&tx, new_attempt(&instance, 1), &first, &timeouts, NOON).await;
        run.expect("not blocked");
        tx.commit().await.expect("committed");
    };
    join(execute_sql(&store, lock_statement(up)), reporting).await;
}

#[tokio::test]
async fn image_nodes_send_facts_again_that_the_previous_release_did_not_understand() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (images, image) = create_node(&store, tenant, 1).await;
    let (packages, package) = create_node(&store, tenant, 2).await;
    update_node(&store, tenant, &images, |node| set_facts(node, "image")).await;
    update_node(&store, tenant, &packages, |node| {
        set_facts(node, "packages")
    })
    .await;
    let digests = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut digests = Vec::new();
        for instance in [image.id, package.id] {
            let node = nodes::find(&tx, instance).await.expect("a node");
            digests.push(node.facts_digest);
        }
        digests
    };
    let (current, unknown) = (vec![7; 32], Vec::<u8>::new());
    assert_eq!(digests().await, [current.clone(), current.clone()]);
    let [up, down] = step_25();
    execute_sql(&store, down).await;
    let before = count_changes(&store, tenant, "instance", image.id.bits()).await;
    execute_sql(&store, up).await;
    assert_eq!(digests().await, [unknown.clone(), current.clone()]);
    let after = count_changes(&store, tenant, "instance", image.id.bits()).await;
    assert_eq!(after, before, "nothing has changed");

    // A server of the previous release answers first and writes the facts that it understands.
    let written = format!(
        "UPDATE node_states SET facts = '{{}}', facts_digest = '\\x{}'",
        "08".repeat(32)
    );
    execute_sql(&store, &written).await;
    assert_eq!(digests().await, [unknown, vec![8; 32]]);
    // Then this release answers.
    update_node(&store, tenant, &images, |node| set_facts(node, "image")).await;
    assert_eq!(digests().await, [current, vec![8; 32]]);
}

#[tokio::test]
async fn a_policy_for_packages_has_no_rules_for_images() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let desired = DesiredUpdate::parse_target(None, "curl", &[], "").expect("a desired update");
    let spec = PolicySpec {
        image_rules: ImageRules {
            attempts: 3,
            ..ImageRules::default()
        },
        ..PolicySpec::parse("curl", "", desired).expect("a policy")
    };
    let refused = policies::create(&tx, &spec, NOON).await;
    let why = format!("{:?}", refused.expect_err("a violated check"));
    assert!(why.contains("packages_exclude_image_rules"), "{why}");
}
