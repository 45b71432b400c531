//! Assignments, and which windows and images apply.

mod node_states;

use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::decide::QuarantinedImage;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::{HostId, PolicyId, RegionId, SiteId};
use evenkeel_domain::os::{OsKind, OsSpec, Sha256};
use evenkeel_domain::policy::{
    DesiredUpdate, ImageRules, PackageRules, PolicySpec, RebootRule, ServiceRule,
    UnusedPackagesRule,
};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::text::Name;
use evenkeel_domain::window::Opener;
use evenkeel_store::decisions::ReadMode;
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::counting_store;
use evenkeel_store::{
    StoreError, assignments, instances, nodes, os_profiles, policies, regions, settings, sites,
};

use crate::fixtures::{
    NOON, assign, bookworm, count, create_latest_policy, create_node, create_region, create_site,
    move_to_site, read_decision_input, save_as_own_agent, store_with_project, window,
};
use crate::os_details::signature;

#[tokio::test]
async fn the_nearest_assignment_applies() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let inner = create_region(&store, tenant, "inner", Some(outer.id)).await;
    let site = create_site(&store, tenant, Some(inner.id)).await;
    move_to_site(&store, tenant, &host, site.id).await;
    // From the farthest to the nearest scope.
    let scopes = [
        Scope::Project,
        Scope::Region(outer.id),
        Scope::Region(inner.id),
        Scope::Site(site.id),
        Scope::Host(host.id),
        Scope::Instance(instance.id),
    ];
    for (count, scope) in scopes.into_iter().enumerate() {
        let policy = create_latest_policy(&store, tenant).await;
        assign(&store, tenant, scope, policy.id, (None, None)).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
        let applies = input.applicable_policy().expect("an applicable policy");
        assert_eq!((applies.scope, applies.policy.id), (scope, policy.id));
        assert_eq!(input.desired.policies.len(), count + 1);
        let mut expected = scopes.to_vec();
        expected.reverse();
        assert_eq!(input.chain.scopes(), expected);
    }
}

#[tokio::test]
async fn an_assignment_to_another_site_does_not_apply() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let (own_site, other_site) =
        (create_site(&store, tenant, None).await, create_site(&store, tenant, None).await);
    move_to_site(&store, tenant, &host, own_site.id).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Site(other_site.id), policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    assert!(input.applicable_policy().is_none());
}

#[tokio::test]
async fn the_policy_and_the_limits_are_set_independently() {
    let (store, tenant) = store_with_project().await;
    let (policy, other) =
        (create_latest_policy(&store, tenant).await, create_latest_policy(&store, tenant).await);
    assign(&store, tenant, Scope::Project, policy.id, (Some(2), None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let later = NOON + TimeDelta::hours(1);
    let current = async || {
        let assignment = assignments::find(&tx, Scope::Project, later).await;
        let assignment = assignment.expect("assigned");
        (assignment.policy, assignment.limits, assignment.since)
    };
    let limits = UpdateLimits::parse(None, Some(3)).expect("limits");
    assignments::set_limits(&tx, Scope::Project, limits).await.expect("limited");
    assert_eq!(current().await, (policy.id, limits, NOON));
    for (next, since) in [(policy.id, NOON), (other.id, later)] {
        assignments::assign(&tx, Scope::Project, next, later).await.expect("assigned");
        assert_eq!(current().await, (next, limits, since));
    }
    let nowhere = Scope::Site(SiteId::nth(9));
    let refused = assignments::set_limits(&tx, nowhere, limits).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
    let refused = assignments::assign(&tx, nowhere, other.id, later).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn assignments_are_listed_with_their_limits() {
    let (store, tenant) = store_with_project().await;
    let site = create_site(&store, tenant, None).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    assign(&store, tenant, Scope::Site(site.id), policy.id, (Some(2), Some(3))).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let all = assignments::all(&tx, NOON).await.expect("a list");
    let listed: Vec<_> = all.iter().map(|one| (one.scope, one.limits)).collect();
    let limited = UpdateLimits { max_concurrent: Some(2), stop_after_failures: Some(3) };
    let unlimited = UpdateLimits::default();
    let expected = [(Scope::Site(site.id), limited), (Scope::Project, unlimited)];
    assert_eq!(listed, expected);
    let one = assignments::find(&tx, Scope::Site(site.id), NOON).await.expect("found");
    assert_eq!((one.limits, one.held_slots, one.failures, one.since), (limited, 0, 0, NOON));
    assignments::clear(&tx, Scope::Site(site.id)).await.expect("cleared");
    assert!(matches!(
        assignments::find(&tx, Scope::Site(site.id), NOON).await,
        Err(StoreError::NotFound { .. })
    ));
}

#[tokio::test]
async fn an_assignment_to_a_missing_scope_or_policy_is_rejected() {
    let (store, tenant) = store_with_project().await;
    let policy = create_latest_policy(&store, tenant).await;
    let limits = UpdateLimits::default();
    for scope in [
        Scope::Host(HostId::nth(77)),
        Scope::Site(SiteId::nth(77)),
        Scope::Region(RegionId::nth(77)),
    ] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = assignments::set(&tx, scope, policy.id, limits, NOON).await;
        assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{scope}");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let missing_policy = PolicyId::nth(77);
    let refused = assignments::set(&tx, Scope::Project, missing_policy, limits, NOON).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

#[tokio::test]
async fn assignments_and_schedules_of_a_location_are_deleted_with_it() {
    let (store, tenant) = store_with_project().await;
    let region = create_region(&store, tenant, "europe", None).await;
    let site = create_site(&store, tenant, None).await;
    let policy = create_latest_policy(&store, tenant).await;
    for scope in [Scope::Region(region.id), Scope::Site(site.id)] {
        assign(&store, tenant, scope, policy.id, (None, None)).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    for target in [ScheduleTarget::Region(region.id), ScheduleTarget::Site(site.id)] {
        schedules::create(&tx, &window(target, 1, 2), NOON).await.expect("scheduled");
    }
    regions::delete(&tx, region.id).await.expect("deleted");
    sites::delete(&tx, site.id).await.expect("deleted");
    policies::delete(&tx, policy.id).await.expect("unused");
    assert_eq!(count(&tx, Resource::SingleSchedule, "").await, 0);
}

fn nightly_schedule(target: ScheduleTarget, status: ScheduleStatus) -> RepeatedSpec {
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
    let (store, tenant) = store_with_project().await;
    let site = create_site(&store, tenant, None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = ScheduleTarget::Site(site.id);
    let spec = nightly_schedule(target, ScheduleStatus::OsUpdate);
    let created = repeated::create(&tx, &spec, NOON).await.expect("scheduled");
    assert_eq!(created.spec, spec);
    let other = RepeatedSpec {
        cron: Cron::parse("*/15", "*", "L", "1-3", "*").expect("a cron"),
        zone: Zone::UTC,
        target: None,
        ..spec
    };
    repeated::change(&tx, created.id, &other, NOON).await.expect("changed");
    let stored = repeated::find(&tx, created.id).await.expect("found");
    assert_eq!(stored.spec, other);
    let at_site = format!("targetSite.resourceId = '{}'", site.id);
    let at_site = count(&tx, Resource::RepeatedSchedule, &at_site).await;
    assert_eq!(at_site, 0);
    repeated::delete(&tx, created.id).await.expect("deleted");
}

#[tokio::test]
async fn windows_of_all_scopes_in_the_chain_apply() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let (other, _) = create_node(&store, tenant, 2).await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let inner = create_region(&store, tenant, "inner", Some(outer.id)).await;
    let site = create_site(&store, tenant, Some(inner.id)).await;
    move_to_site(&store, tenant, &host, site.id).await;
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
        let hours = i64::try_from(hours).expect("a small number");
        schedules::create(&tx, &window(target, 10 + hours, 20), NOON).await.expect("scheduled");
    }
    let spec = nightly_schedule(ScheduleTarget::Region(outer.id), ScheduleStatus::OsUpdate);
    let night = repeated::create(&tx, &spec, NOON).await.expect("scheduled");

    let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    let windows = input.desired.windows.as_slice();
    let singles: Vec<_> = windows
        .iter()
        .filter(|window| matches!(window.opener, Opener::Single(_)))
        .map(|window| (window.start - NOON).num_hours())
        .collect();
    assert_eq!(singles, [10, 11, 12, 13]);
    let nights = windows.iter().filter(|w| w.opener == Opener::Repeated(night.id));
    assert!(nights.count() > 0, "{windows:?}");
    assert_eq!(input.desired.repeated_schedules, [night]);
}

#[tokio::test]
async fn a_project_may_let_any_schedule_open_windows() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = ScheduleTarget::Host(host.id);
    repeated::create(&tx, &nightly_schedule(target, ScheduleStatus::Maintenance), NOON)
        .await
        .expect("scheduled");
    let before = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.desired;
    assert!(before.windows.as_slice().is_empty() && before.repeated_schedules.is_empty());
    let any = ProjectSettings { any_schedule_status: true, ..ProjectSettings::default() };
    settings::set(&tx, &any).await.expect("set");
    assert_eq!(settings::find(&tx).await.expect("settings"), any);
    let after = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await.desired;
    assert!(!after.windows.as_slice().is_empty() && after.repeated_schedules.len() == 1);
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
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut created = Vec::new();
    for version in ["3.0.9", "3.0.10"] {
        let spec = image(version);
        created.push(os_profiles::create(&tx, &spec, NOON).await.expect("created"));
    }
    let foreign = OsSpec { name: "Other".into(), profile_name: "other".into(), ..image("9.9") };
    os_profiles::create(&tx, &foreign, NOON).await.expect("created");
    let matching = os_profiles::find_image(&tx, "edge", "3.0.10").await;
    assert_eq!(matching.expect("an answer"), Some(created[1].clone()));
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.os = created[0].id;
    node.bad_images = vec![QuarantinedImage { sha256: Sha256::NONE, since: NOON }];
    nodes::save(&tx, &node).await.expect("saved");
    let desired =
        DesiredUpdate::parse_target(Some(created[1].id), "", &[], "").expect("a desired update");
    let spec = PolicySpec::parse("image", "", desired).expect("a policy");
    let slow = ImageRules { download_bytes_per_second: 1 << 20, max_bytes: 1 << 30, attempts: 3 };
    let spec = PolicySpec {
        allow_downgrade: true,
        offline_days: 3,
        ..spec.with_image_rules(slow).expect("rules for images")
    };
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    assert_eq!(policy.spec, spec);
    let limits = UpdateLimits::default();
    assignments::set(&tx, Scope::Project, policy.id, limits, NOON).await.expect("assigned");
    let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    let mut versions: Vec<_> = input.desired.images.iter().map(|i| &i.image_id).collect();
    versions.sort();
    assert_eq!(versions, ["3.0.10", "3.0.9"]);
    let running = &input.facts.running;
    assert_eq!((running.image_id.as_str(), running.architecture.as_str()), ("3.0.9", "x86_64"));
    assert_eq!(running.signatures, [signature("1")]);
    assert_eq!(input.facts.bad_images, node.bad_images);
    let target_image = input.applicable_policy().and_then(|assigned| assigned.image.clone());
    assert_eq!(target_image.expect("an image").os, created[1].id);
}

#[tokio::test]
async fn policy_rules_are_stored_and_have_defaults_in_rows_of_an_older_release() {
    const COLUMNS: &str = "name, description, mode, packages, sources, kernel_command, created_at, \
                           allow_downgrade, offline_days";
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let rules = PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        reboot: RebootRule::Never,
        services: ServiceRule::Restart,
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
        unused_packages: UnusedPackagesRule::Keep,
        minimal_steps: true,
    };
    let usual = PolicySpec::parse("careful", "", DesiredUpdate::Latest).expect("a policy");
    let spec = usual.clone().with_package_rules(rules).expect("rules");
    let created = policies::create(&tx, &spec, NOON).await.expect("created");
    let stored = policies::find(&tx, created.id).await.expect("found");
    assert_eq!(stored.spec, spec);
    let simple = policies::create(&tx, &usual, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    let (old, row) = (PolicyId::from_bits(1), simple.id.bits().cast_signed());
    let insert = format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
         INSERT INTO update_policies (tenant_id, id, {COLUMNS}) \
         SELECT tenant_id, 1, {COLUMNS} FROM update_policies WHERE id = {row}; COMMIT"
    );
    store.execute_unprepared(&insert).await.expect("written");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let old = policies::find(&tx, old).await.expect("found");
    assert_eq!((old.spec, simple.spec), (usual.clone(), usual));
}
