//! What is assigned where, and which windows and images apply.

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::decide::KnownBad;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::{HostId, PolicyId, RegionId, SiteId};
use evenkeel_domain::os::{OsKind, OsSpec, Sha256};
use evenkeel_domain::policy::{
    ImageRules, PackageRules, PolicySpec, RebootRule, ServiceRule, Wish,
};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::text::Name;
use evenkeel_domain::window::Opener;
use evenkeel_store::decisions::Reading;
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::{counting, fresh_store};
use evenkeel_store::{
    StoreError, assignments, instances, nodes, os_profiles, policies, regions, settings, sites,
};

use crate::house::{
    NOON, assign, bookworm, count, latest, node, project, region, site, spoke, stands_at, window,
    world,
};
use crate::os_inside::signature;

#[tokio::test]
async fn the_nearest_assignment_applies() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let outer = region(&store, tenant, "outer", None).await;
    let inner = region(&store, tenant, "inner", Some(outer.id)).await;
    let site = site(&store, tenant, Some(inner.id)).await;
    stands_at(&store, tenant, &host, site.id).await;
    // From far to near, each one is nearer than those before.
    let scopes = [
        Scope::Project,
        Scope::Region(outer.id),
        Scope::Region(inner.id),
        Scope::Site(site.id),
        Scope::Host(host.id),
        Scope::Instance(instance.id),
    ];
    for (count, scope) in scopes.into_iter().enumerate() {
        let policy = latest(&store, tenant).await;
        assign(&store, tenant, scope, policy.id, (None, None)).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let world = world(&tx, &host, Reading::Look(NOON)).await;
        let applies = world.applies().expect("something applies");
        assert_eq!((applies.scope, applies.policy.id), (scope, policy.id));
        assert_eq!(world.wanted.policies.len(), count + 1);
        let mut expected = scopes.to_vec();
        expected.reverse();
        assert_eq!(world.chain.scopes(), expected);
    }
}

#[tokio::test]
async fn what_is_assigned_to_another_place_does_not_apply() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let (here, there) = (
        site(&store, tenant, None).await,
        site(&store, tenant, None).await,
    );
    stands_at(&store, tenant, &host, here.id).await;
    let policy = latest(&store, tenant).await;
    assign(
        &store,
        tenant,
        Scope::Site(there.id),
        policy.id,
        (None, None),
    )
    .await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let world = world(&tx, &host, Reading::Look(NOON)).await;
    assert!(world.applies().is_none());
}

#[tokio::test]
async fn another_policy_and_other_limits_are_set_one_without_the_other() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (policy, other) = (latest(&store, tenant).await, latest(&store, tenant).await);
    assign(&store, tenant, Scope::Project, policy.id, (Some(2), None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let later = NOON + TimeDelta::hours(1);
    let told = async || {
        let found = assignments::find(&tx, Scope::Project, later).await;
        let found = found.expect("assigned");
        (found.policy, found.limits, found.since)
    };
    let limits = Limits::parse(None, Some(3)).expect("limits");
    assignments::limit(&tx, Scope::Project, limits)
        .await
        .expect("limited");
    assert_eq!(told().await, (policy.id, limits, NOON));
    for (next, since) in [(policy.id, NOON), (other.id, later)] {
        assignments::assign(&tx, Scope::Project, next, later)
            .await
            .expect("assigned");
        assert_eq!(told().await, (next, limits, since));
    }
    let nowhere = Scope::Site(SiteId::nth(9));
    let refused = assignments::limit(&tx, nowhere, limits).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
    let refused = assignments::assign(&tx, nowhere, other.id, later).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn assignments_are_listed_with_their_limits() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let site = site(&store, tenant, None).await;
    let policy = latest(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    assign(
        &store,
        tenant,
        Scope::Site(site.id),
        policy.id,
        (Some(2), Some(3)),
    )
    .await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let all = assignments::all(&tx, NOON).await.expect("a list");
    let told: Vec<_> = all.iter().map(|one| (one.scope, one.limits)).collect();
    let limited = Limits {
        max_concurrent: Some(2),
        stop_after_failures: Some(3),
    };
    let unlimited = Limits::default();
    let expected = [(Scope::Site(site.id), limited), (Scope::Project, unlimited)];
    assert_eq!(told, expected);
    let one = assignments::find(&tx, Scope::Site(site.id), NOON)
        .await
        .expect("it is there");
    assert_eq!(
        (one.limits, one.held, one.failures, one.since),
        (limited, 0, 0, NOON)
    );
    assignments::clear(&tx, Scope::Site(site.id))
        .await
        .expect("cleared");
    assert!(matches!(
        assignments::find(&tx, Scope::Site(site.id), NOON).await,
        Err(StoreError::NotFound { .. })
    ));
}

#[tokio::test]
async fn nothing_is_assigned_to_what_is_not_there() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let policy = latest(&store, tenant).await;
    let limits = Limits::default();
    for scope in [
        Scope::Host(HostId::nth(77)),
        Scope::Site(SiteId::nth(77)),
        Scope::Region(RegionId::nth(77)),
    ] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = assignments::set(&tx, scope, policy.id, limits, NOON).await;
        assert!(
            matches!(refused, Err(StoreError::NotFound { .. })),
            "{scope}"
        );
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let nothing = PolicyId::nth(77);
    let refused = assignments::set(&tx, Scope::Project, nothing, limits, NOON).await;
    assert!(
        matches!(refused, Err(StoreError::Conflict(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_is_assigned_to_a_place_goes_with_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let region = region(&store, tenant, "europe", None).await;
    let site = site(&store, tenant, None).await;
    let policy = latest(&store, tenant).await;
    for scope in [Scope::Region(region.id), Scope::Site(site.id)] {
        assign(&store, tenant, scope, policy.id, (None, None)).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    for target in [
        ScheduleTarget::Region(region.id),
        ScheduleTarget::Site(site.id),
    ] {
        schedules::create(&tx, &window(target, 1, 2), NOON)
            .await
            .expect("scheduled");
    }
    regions::delete(&tx, region.id).await.expect("deleted");
    sites::delete(&tx, site.id).await.expect("deleted");
    policies::delete(&tx, policy.id)
        .await
        .expect("nobody uses it");
    assert_eq!(count(&tx, Resource::SingleSchedule, "").await, 0);
}

fn nightly(target: ScheduleTarget, status: ScheduleStatus) -> RepeatedSpec {
    RepeatedSpec {
        name: Name::default(),
        status,
        duration: TimeDelta::hours(2),
        cron: Cron::parse("30", "2", "*", "*", "1-5").expect("a cron"),
        zone: Zone::parse("Europe/Berlin").expect("a zone"),
        target: Some(target),
    }
}

#[tokio::test]
async fn a_repeated_schedule_reads_as_it_was_written() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let site = site(&store, tenant, None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = ScheduleTarget::Site(site.id);
    let spec = nightly(target, ScheduleStatus::OsUpdate);
    let made = repeated::create(&tx, &spec, NOON).await.expect("scheduled");
    assert_eq!(made.spec, spec);
    let other = RepeatedSpec {
        cron: Cron::parse("*/15", "*", "L", "1-3", "*").expect("a cron"),
        zone: Zone::UTC,
        target: None,
        ..spec
    };
    repeated::change(&tx, made.id, &other, NOON)
        .await
        .expect("changed");
    let found = repeated::find(&tx, made.id).await.expect("it is there");
    assert_eq!(found.spec, other);
    let at_site = format!("targetSite.resourceId = '{}'", site.id);
    let at_site = count(&tx, Resource::RepeatedSchedule, &at_site).await;
    assert_eq!(at_site, 0);
    repeated::delete(&tx, made.id).await.expect("deleted");
}

#[tokio::test]
async fn windows_add_up_along_the_chain() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let (other, _) = node(&store, tenant, 2).await;
    let outer = region(&store, tenant, "outer", None).await;
    let inner = region(&store, tenant, "inner", Some(outer.id)).await;
    let site = site(&store, tenant, Some(inner.id)).await;
    stands_at(&store, tenant, &host, site.id).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (hours, target) in [
        ScheduleTarget::Host(host.id),
        ScheduleTarget::Site(site.id),
        ScheduleTarget::Region(inner.id),
        ScheduleTarget::Region(outer.id),
        ScheduleTarget::Host(other.id),
    ]
    .into_iter()
    .enumerate()
    {
        let hours = i64::try_from(hours).expect("few");
        schedules::create(&tx, &window(target, 10 + hours, 20), NOON)
            .await
            .expect("scheduled");
    }
    let spec = nightly(ScheduleTarget::Region(outer.id), ScheduleStatus::OsUpdate);
    let night = repeated::create(&tx, &spec, NOON).await.expect("scheduled");

    let world = world(&tx, &host, Reading::Look(NOON)).await;
    let windows = world.wanted.windows.as_slice();
    let singles: Vec<_> = windows
        .iter()
        .filter(|window| matches!(window.opener, Opener::Single(_)))
        .map(|window| (window.start - NOON).num_hours())
        .collect();
    assert_eq!(singles, [10, 11, 12, 13]);
    let nights = windows
        .iter()
        .filter(|w| w.opener == Opener::Repeated(night.id));
    assert!(nights.count() > 0, "{windows:?}");
    assert_eq!(world.wanted.repeated, [night]);
}

#[tokio::test]
async fn a_project_may_let_any_schedule_open_windows() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = ScheduleTarget::Host(host.id);
    repeated::create(&tx, &nightly(target, ScheduleStatus::Maintenance), NOON)
        .await
        .expect("scheduled");
    let before = world(&tx, &host, Reading::Look(NOON)).await.wanted;
    assert!(before.windows.as_slice().is_empty() && before.repeated.is_empty());
    let any = ProjectSettings {
        any_schedule_status: true,
        ..ProjectSettings::default()
    };
    settings::set(&tx, &any).await.expect("set");
    assert_eq!(settings::find(&tx).await.expect("settings"), any);
    let after = world(&tx, &host, Reading::Look(NOON)).await.wanted;
    assert!(!after.windows.as_slice().is_empty() && after.repeated.len() == 1);
}

fn image(version: &str) -> OsSpec {
    OsSpec {
        name: format!("Edge {version}"),
        kind: OsKind::Immutable,
        profile_name: "edge".into(),
        image_id: version.into(),
        image_url: "https://images.example/edge.raw.gz".into(),
        sha256: Sha256::NONE,
        image_signatures: vec![signature("1")],
        ..bookworm()
    }
}

#[tokio::test]
async fn an_image_node_is_decided_by_the_images_of_its_profile() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut made = Vec::new();
    for version in ["3.0.9", "3.0.10"] {
        let spec = image(version);
        made.push(os_profiles::create(&tx, &spec, NOON).await.expect("made"));
    }
    let foreign = OsSpec {
        name: "Other".into(),
        profile_name: "other".into(),
        ..image("9.9")
    };
    os_profiles::create(&tx, &foreign, NOON)
        .await
        .expect("made");
    let found = os_profiles::find_image(&tx, "edge", "3.0.10").await;
    assert_eq!(found.expect("an answer"), Some(made[1].clone()));
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.os = made[0].id;
    node.bad_images = vec![KnownBad {
        sha256: Sha256::NONE,
        since: NOON,
    }];
    nodes::save(&tx, &node).await.expect("saved");
    let wish = Wish::target(Some(made[1].id), "", &[], "").expect("a wish");
    let spec = PolicySpec::parse("image", "", wish).expect("a policy");
    let slow = ImageRules {
        download_bytes_per_second: 1 << 20,
        max_bytes: 1 << 30,
        attempts: 3,
    };
    let spec = PolicySpec {
        allow_downgrade: true,
        offline_days: 3,
        ..spec.imaged(slow).expect("rules for images")
    };
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    assert_eq!(policy.spec, spec);
    let limits = Limits::default();
    assignments::set(&tx, Scope::Project, policy.id, limits, NOON)
        .await
        .expect("assigned");
    let world = world(&tx, &host, Reading::Look(NOON)).await;
    let mut versions: Vec<_> = world.wanted.images.iter().map(|i| &i.image_id).collect();
    versions.sort();
    assert_eq!(versions, ["3.0.10", "3.0.9"]);
    let running = &world.known.running;
    assert_eq!(
        (running.image_id.as_str(), running.architecture.as_str()),
        ("3.0.9", "x86_64")
    );
    assert_eq!(running.signatures, [signature("1")]);
    assert_eq!(world.known.bad_images, node.bad_images);
    let named = world.applies().and_then(|assigned| assigned.image.clone());
    assert_eq!(named.expect("it names one").os, made[1].id);
}

#[tokio::test]
async fn the_rules_of_a_policy_are_kept_and_an_older_release_knows_none() {
    const COLUMNS: &str = "name, description, mode, packages, sources, kernel_command, created_at, \
                           allow_downgrade, offline_days";
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let rules = PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        reboot: RebootRule::Never,
        services: ServiceRule::Restart,
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
    };
    let usual = PolicySpec::parse("careful", "", Wish::Latest).expect("a policy");
    let spec = usual.clone().ruled(rules).expect("rules");
    let made = policies::create(&tx, &spec, NOON).await.expect("created");
    let found = policies::find(&tx, made.id).await.expect("it is there");
    assert_eq!(found.spec, spec);
    let simple = policies::create(&tx, &usual, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    let (old, row) = (PolicyId::from_bits(1), simple.id.bits().cast_signed());
    let insert = format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
         INSERT INTO update_policies (tenant_id, id, {COLUMNS}) \
         SELECT tenant_id, 1, {COLUMNS} FROM update_policies WHERE id = {row}; COMMIT"
    );
    store.unprepared(&insert).await.expect("written");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let old = policies::find(&tx, old).await.expect("it is there");
    assert_eq!((old.spec, simple.spec), (usual.clone(), usual));
}

#[tokio::test]
async fn what_a_node_is_known_by_is_kept() {
    use evenkeel_domain::condition::{Condition, ConditionKind};
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.conditions = vec![Condition {
        kind: ConditionKind::TwoMachines,
        text: "two boots at once".into(),
        since: NOON,
    }];
    node.previous_boot_id = "b-1".into();
    node.booted = Some(nodes::BootedImage {
        profile_name: "edge".into(),
        image_id: "3.0.9".into(),
    });
    node.delivered.single = Some((NOON, NOON + TimeDelta::hours(1)));
    nodes::save(&tx, &node).await.expect("saved");
    let uuid = host.uuid.expect("a UUID");
    let (found, read) = nodes::read(&tx, nodes::Machine::Uuid(uuid))
        .await
        .expect("it is there");
    assert_eq!((found.id, &read), (host.id, &node));
    let (_, locked) = nodes::lock_with_host(&tx, nodes::Machine::Uuid(uuid))
        .await
        .expect("it is there");
    assert_eq!(locked, node);
    let shown = instances::find(&tx, instance.id)
        .await
        .expect("it is there");
    assert_eq!(shown.summary.conditions, node.conditions);
    let nobody = nodes::read(&tx, nodes::Machine::Host(HostId::nth(99))).await;
    let Err(StoreError::NotFound { what }) = nobody else {
        panic!("{nobody:?}");
    };
    assert_eq!(what, "host_resource");
}

/// What a poll costs: with the begin and the end of the transaction six statements.
#[tokio::test]
async fn a_poll_without_news_is_four_statements() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let region = region(&store, tenant, "europe", None).await;
    let site = site(&store, tenant, Some(region.id)).await;
    stands_at(&store, tenant, &host, site.id).await;
    let policy = latest(&store, tenant).await;
    assign(
        &store,
        tenant,
        Scope::Region(region.id),
        policy.id,
        (None, None),
    )
    .await;
    let (counting, sent) = counting(&store);
    let tx = counting.tenant(tenant).await.expect("a transaction");
    let world = world(&tx, &host, Reading::Look(NOON)).await;
    assert_eq!(
        world.applies().map(|assigned| assigned.policy.id),
        Some(policy.id)
    );
    tx.commit().await.expect("committed");
    assert_eq!(
        sent.statements.load(Ordering::Relaxed),
        4,
        "scope, node, what is its own, and what it shares with others"
    );
}
