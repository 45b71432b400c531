//! What a server of the last release leaves behind, and what one writes beside this one.

use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::{KnownBad, Protocol};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::Sha256;
use evenkeel_domain::policy::{ImageRules, PolicySpec, Wish};
use evenkeel_domain::run::{ImageChange, Patience, RunEvent};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::nodes::{self, NodeState};
use evenkeel_store::os_inside::{Kept, Made};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, changes, os_inside, os_profiles, policies, runs};
use futures_util::future::join;
use serde_json::json;

use crate::house::{NOON, attempt, by_hand, node, numbered, project};
use crate::os_inside::{edge, signature, somebody_waits};

/// What the twenty-fifth step says upward and downward.
fn step() -> [&'static str; 2] {
    nth_step(25)
}

fn nth_step(number: usize) -> [&'static str; 2] {
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let step = steps.chunks(2).nth(number - 1).expect("such a step");
    [step[0], step[1]]
}

/// What a step locks.
fn lock_of(step: &'static str) -> &'static str {
    let mut lines = step.lines();
    let lock = lines.find(|line| line.starts_with("LOCK TABLE"));
    lock.expect("it locks all at once").trim_end_matches(';')
}

async fn keep(store: &Store, tenant: TenantId, made: &Made) -> Kept {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let kept = os_inside::keep(&tx, made, NOON).await.expect("kept");
    tx.commit().await.expect("committed");
    kept
}

async fn make(store: &Store, tenant: TenantId, made: &Made) -> OsId {
    match keep(store, tenant, made).await {
        Kept::Made { os, .. } => os,
        other => panic!("{other:?}"),
    }
}

/// Who vouches for an image.
async fn vouching(store: &Store, tenant: TenantId, os: OsId) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let profile = os_profiles::find(&tx, os).await.expect("an entry");
    profile.spec.image_signatures
}

async fn logged(store: &Store, tenant: TenantId, kind: &str, id: u32) -> usize {
    let tx = store.tenant(tenant).await.expect("a transaction");
    changes::of(&tx, kind, id).await.expect("read").len()
}

/// Fails unless this is so in the database.
async fn is_so(store: &Store, condition: &str) {
    let sql = format!(
        "DO $$ BEGIN IF ({condition}) IS NOT TRUE THEN RAISE 'it is not so'; END IF; END $$"
    );
    by_hand(store, &sql).await;
}

/// An array of signatures as the database writes it.
fn array(signatures: &[String]) -> String {
    format!("ARRAY['{}']::text[]", signatures.join("', '"))
}

/// What a server of the last release writes when a registry has an image: the signatures beside it alone.
async fn told_by_the_last_release(
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
        array(signatures),
    );
    by_hand(store, &sql).await;
}

#[tokio::test]
async fn who_vouches_for_an_image_is_known_after_the_step_and_after_the_step_back() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let signed = make(&store, tenant, &edge("3.0.1")).await;
    let mut plain = edge("3.0.2");
    plain.spec.image_signatures = Vec::new();
    let unsigned = make(&store, tenant, &plain).await;
    let log = async || {
        let os = logged(&store, tenant, "os", signed.bits()).await;
        os + logged(&store, tenant, "os_inside", signed.bits()).await
    };
    let before = log().await;
    let [up, down] = step();
    by_hand(&store, down).await;
    for (os, kept) in [
        (signed, array(&[signature("1")])),
        (unsigned, "'{}'".into()),
    ] {
        let os = os.bits().cast_signed();
        let kept = format!("(SELECT image_signatures FROM os_inside WHERE os_id = {os}) = {kept}");
        is_so(&store, &kept).await;
    }
    by_hand(&store, up).await;
    assert_eq!(vouching(&store, tenant, signed).await, [signature("1")]);
    assert!(vouching(&store, tenant, unsigned).await.is_empty());
    assert_eq!(log().await, before, "nothing has changed");
    assert_eq!(
        keep(&store, tenant, &edge("3.0.1")).await,
        Kept::Same(signed)
    );
}

#[tokio::test]
async fn what_the_last_release_takes_of_a_registry_is_told_by_this_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut spec = edge("3.0.1").spec;
    spec.image_signatures = Vec::new();
    let made = os_profiles::create(&tx, &spec, NOON).await;
    tx.commit().await.expect("committed");
    let os = made.expect("made").id;
    let of = (tenant, os);

    let first = [signature("1")];
    told_by_the_last_release(&store, of, 1, &first).await;
    assert_eq!(vouching(&store, tenant, os).await, first);
    let log = logged(&store, tenant, "os", os.bits()).await;
    assert_eq!(log, 2, "whoever remembers answers hears of it");

    // Signed once more, and then not any more.
    let both = [signature("1"), signature("2")];
    told_by_the_last_release(&store, of, 2, &both).await;
    assert_eq!(vouching(&store, tenant, os).await, both);

    // What a person says stays until the profile is another one.
    let tx = store.tenant(tenant).await.expect("a transaction");
    spec.image_signatures = vec![signature("3")];
    let changed = os_profiles::change(&tx, os, &spec, NOON).await;
    changed.expect("changed");
    tx.commit().await.expect("committed");
    told_by_the_last_release(&store, of, 2, &both).await;
    assert_eq!(vouching(&store, tenant, os).await, [signature("3")]);
    told_by_the_last_release(&store, of, 4, &first).await;
    assert_eq!(vouching(&store, tenant, os).await, first);
}

/// A server of this release writes beside the column that the last one reads.
#[tokio::test]
async fn what_this_release_takes_of_a_registry_is_not_undone_by_the_last_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    let os = make(&store, tenant, &made).await;
    assert_eq!(vouching(&store, tenant, os).await, [signature("1")]);
    // The other one finds nothing where it looks, and writes the same profile there.
    told_by_the_last_release(&store, (tenant, os), 1, &[signature("1")]).await;
    assert_eq!(vouching(&store, tenant, os).await, [signature("1")]);
    made.inside.artifact = [2; 32];
    made.spec.image_signatures = vec![signature("2")];
    assert_eq!(keep(&store, tenant, &made).await, Kept::Refreshed(os));
    assert_eq!(vouching(&store, tenant, os).await, [signature("2")]);
    // And one that is not signed any more.
    made.inside.artifact = [3; 32];
    made.spec.image_signatures = Vec::new();
    assert_eq!(keep(&store, tenant, &made).await, Kept::Refreshed(os));
    assert!(vouching(&store, tenant, os).await.is_empty());
}

/// Says something in the name of the node on a host.
async fn says(store: &Store, tenant: TenantId, host: &Host, say: impl Fn(&mut NodeState)) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    say(&mut node);
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

/// A node that said its facts to this release, with an image that failed.
fn facts(node: &mut NodeState, module: &str) {
    node.protocol = Protocol::Own {
        modules: vec![module.to_owned()],
    };
    node.facts = json!({"slots": [], "badImages": []});
    node.facts_digest = vec![7; 32];
    node.bad_images = vec![KnownBad {
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
async fn a_step_back_leaves_nothing_that_the_last_release_cannot_read() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    says(&store, tenant, &host, |node| facts(node, "image")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut planned = numbered(RunEvent::Downloading, 1);
    planned.evidence.image = Some(ImageChange::default());
    let (subject, patience) = (attempt(&instance, 1), Patience::default());
    let run = runs::advance(&tx, subject, &planned, &patience, NOON).await;
    let slow = ImageRules {
        attempts: 3,
        ..ImageRules::default()
    };
    let spec = PolicySpec::parse("slow", "", Wish::Latest).and_then(|spec| spec.imaged(slow));
    let policy = policies::create(&tx, &spec.expect("a policy"), NOON).await;
    let (run, policy) = (run.expect("opened").id, policy.expect("created").id);
    tx.commit().await.expect("committed");

    let [up, down] = step();
    by_hand(&store, down).await;
    is_so(
        &store,
        "SELECT jsonb_agg(one ->> 'kind') = '[\"two_machines\"]' FROM node_states, jsonb_array_elements(conditions) one",
    )
    .await;
    by_hand(&store, up).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let kinds: Vec<_> = node.conditions.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [ConditionKind::TwoMachines]);
    assert_eq!(node.bad_images, []);
    let run = runs::find(&tx, run).await.expect("a run");
    assert_eq!(run.image, None);
    let policy = policies::find(&tx, policy).await.expect("a policy");
    assert!(policy.spec.image_rules.is_usual());
}

/// Neither waits for the other one in a circle.
#[tokio::test]
async fn the_step_waits_for_who_reads_a_node_then_its_run_and_then_what_is_wanted() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    for sql in step() {
        let lock = lock_of(sql);
        let tx = store.tenant(tenant).await.expect("a transaction");
        let node = nodes::lock(&tx, host.id).await.expect("locked");
        let read = async {
            somebody_waits(&store).await;
            let open = runs::find_open(&tx, instance.id).await;
            assert_eq!(open.expect("nobody is in the way"), None);
            os_profiles::find(&tx, node.os).await.expect("nor here");
            tx.commit().await.expect("committed");
        };
        join(by_hand(&store, lock), read).await;
    }
}

/// Nor here: a report looks for its run before it tells what happened in it.
#[tokio::test]
async fn the_step_that_makes_the_keys_of_runs_anew_waits_for_reports() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let [up, _] = nth_step(27);
    let tx = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&tx, host.id).await.expect("locked");
    let open = runs::find_open(&tx, instance.id).await;
    assert_eq!(open.expect("looked for"), None);
    let told = async {
        somebody_waits(&store).await;
        let (first, patience) = (numbered(RunEvent::Downloading, 1), Patience::default());
        let run = runs::advance(&tx, attempt(&instance, 1), &first, &patience, NOON).await;
        run.expect("nobody is in the way");
        tx.commit().await.expect("committed");
    };
    join(by_hand(&store, lock_of(up)), told).await;
}

#[tokio::test]
async fn nodes_with_images_are_asked_again_for_what_the_last_release_did_not_understand() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (images, image) = node(&store, tenant, 1).await;
    let (packages, package) = node(&store, tenant, 2).await;
    says(&store, tenant, &images, |node| facts(node, "image")).await;
    says(&store, tenant, &packages, |node| facts(node, "packages")).await;
    let digests = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut digests = Vec::new();
        for instance in [image.id, package.id] {
            let node = nodes::find(&tx, instance).await.expect("a node");
            digests.push(node.facts_digest);
        }
        digests
    };
    let (known, unknown) = (vec![7; 32], Vec::<u8>::new());
    assert_eq!(digests().await, [known.clone(), known.clone()]);
    let [up, down] = step();
    by_hand(&store, down).await;
    let before = logged(&store, tenant, "instance", image.id.bits()).await;
    by_hand(&store, up).await;
    assert_eq!(digests().await, [unknown.clone(), known.clone()]);
    let after = logged(&store, tenant, "instance", image.id.bits()).await;
    assert_eq!(after, before, "nothing has changed");

    // One of them answers the nodes first, and writes what it understands.
    let taken = format!(
        "UPDATE node_states SET facts = '{{}}', facts_digest = '\\x{}'",
        "08".repeat(32)
    );
    by_hand(&store, &taken).await;
    assert_eq!(digests().await, [unknown, vec![8; 32]]);
    // Then this one does.
    says(&store, tenant, &images, |node| facts(node, "image")).await;
    assert_eq!(digests().await, [known, vec![8; 32]]);
}

#[tokio::test]
async fn a_policy_that_wishes_for_packages_has_no_rules_for_images() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let wish = Wish::target(None, "curl", &[], "").expect("a wish");
    let spec = PolicySpec {
        image_rules: ImageRules {
            attempts: 3,
            ..ImageRules::default()
        },
        ..PolicySpec::parse("curl", "", wish).expect("a policy")
    };
    let refused = policies::create(&tx, &spec, NOON).await;
    let why = format!("{:?}", refused.expect_err("the database checks it"));
    assert!(why.contains("packages_exclude_image_rules"), "{why}");
}
