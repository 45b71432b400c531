//! Related resources and details that are read in one statement equal those that are read one by
//! one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::hardware::{Address, Capacity, Hardware, Nic, Storage};
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RegionId, RunId};
use evenkeel_domain::location::{Metadata, Region, RegionSpec, Site, SiteSpec};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::policy::{
    DesiredUpdate, PackageRules, PolicySpec, TargetUpdate, UpdatePolicy,
};
use evenkeel_domain::run::{RunEvent, RunTimeouts, StoredState};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{self, ReadMode};
use evenkeel_store::hosts::HostDetails;
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::testing::counting_store;
use evenkeel_store::{
    Store, StoreError, Tx, custom_configs, hardware, hosts, instances, local_accounts, os_profiles,
    policies, providers, regions, runs, sites,
};

use crate::day_zero;
use crate::fixtures::{
    NOON, assign, bookworm, create_latest_policy, create_node, create_region, create_site,
    move_to_site, new_attempt, numbered_record, read_decision_input, registration,
    store_with_project,
};

/// A time between two seconds.
fn just_after_noon() -> Time {
    NOON + TimeDelta::microseconds(1)
}

fn labels(value: &str) -> Metadata {
    Metadata::parse([("tier".to_owned(), value.to_owned())]).expect("labels")
}

/// Creates a site in a region that is inside another region.
async fn create_locations(store: &Store, tenant: TenantId) -> (Site, [Region; 2]) {
    let outer = create_region(store, tenant, "outer", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = RegionSpec {
        name: Name::parse("name", "inner").expect("a name"),
        parent: Some(outer.id),
        metadata: labels("gold"),
    };
    let inner = regions::create(&tx, &spec, just_after_noon()).await.expect("a region");
    let spec = SiteSpec {
        region: Some(inner.id),
        latitude: -525_200_000,
        metadata: labels("silver"),
        ..SiteSpec::default()
    };
    let site = sites::create(&tx, &spec, just_after_noon()).await.expect("a site");
    tx.commit().await.expect("committed");
    (site, [outer, inner])
}

/// Creates an image, a policy that installs it, and a policy with package rules.
async fn create_policies(store: &Store, tenant: TenantId) -> (OsProfile, [UpdatePolicy; 2]) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let image = OsSpec {
        kind: OsKind::Immutable,
        name: "image".into(),
        profile_name: "line".into(),
        description: "with \"quotes\", a \\ and a\nline".into(),
        ..bookworm()
    };
    let image = os_profiles::create(&tx, &image, just_after_noon()).await;
    let image = image.expect("an image");
    let target =
        DesiredUpdate::Target(TargetUpdate { os: Some(image.id), ..TargetUpdate::default() });
    let image_policy = PolicySpec::parse("image", "", target).expect("a policy");
    let image_policy = policies::create(&tx, &image_policy, just_after_noon()).await;
    let without = PackageRules { exclude: vec!["linux-*".into()], ..PackageRules::default() };
    let rules_policy = PolicySpec::parse("ruled", "", DesiredUpdate::Latest)
        .and_then(|spec| spec.with_package_rules(without));
    let rules_policy =
        policies::create(&tx, &rules_policy.expect("a policy"), just_after_noon()).await;
    tx.commit().await.expect("committed");
    (image, [image_policy.expect("created"), rules_policy.expect("created")])
}

#[tokio::test]
async fn related_resources_are_read_in_one_statement() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (provider, config, account) =
        day_zero::create_in_use(&store, tenant, &host, &instance).await;
    let (site, [outer, inner]) = create_locations(&store, tenant).await;
    let (image, [image_policy, rules_policy]) = create_policies(&store, tenant).await;
    let running = instance.summary.os;
    let requested = RelatedIds {
        oses: [running, OsId::nth(99)].into(),
        policies: [rules_policy.id, PolicyId::nth(99)].into(),
        policies_with_os: [image_policy.id].into(),
        sites: [site.id].into(),
        providers: [provider].into(),
        local_accounts: [account].into(),
        custom_configs: [config].into(),
        ..RelatedIds::default()
    };
    let (counted, sent) = counting_store(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let loaded = related::load(&tx, &requested).await.expect("read");
    assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);

    let running = os_profiles::find(&tx, running).await.expect("found");
    let provider = providers::find(&tx, provider).await.expect("found");
    let account = local_accounts::find(&tx, account).await.expect("found");
    let config = custom_configs::find(&tx, config).await.expect("found");
    let one_by_one = Related {
        oses: HashMap::from([(running.id, running), (image.id, image)]),
        policies: HashMap::from([(image_policy.id, image_policy), (rules_policy.id, rules_policy)]),
        sites: HashMap::from([(site.id, site)]),
        regions: HashMap::from([(outer.id, outer), (inner.id, inner)]),
        providers: HashMap::from([(provider.id, provider)]),
        local_accounts: HashMap::from([(account.id, account)]),
        custom_configs: HashMap::from([(config.id, config)]),
    };
    assert_eq!(loaded, one_by_one);
}

#[tokio::test]
async fn a_region_is_read_with_its_enclosing_regions_only() {
    let (store, tenant) = store_with_project().await;
    let (nowhere, (_, [outer, inner])) =
        (create_site(&store, tenant, None).await, create_locations(&store, tenant).await);
    let sibling = create_region(&store, tenant, "sibling", Some(outer.id)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let of = async |requested: RelatedIds| related::load(&tx, &requested).await.expect("read");
    let above = async |id: RegionId| {
        let requested = RelatedIds { regions: [id].into(), ..RelatedIds::default() };
        let loaded = of(requested).await;
        assert_eq!(loaded.sites.len() + loaded.oses.len(), 0);
        let mut ids: Vec<_> = loaded.regions.into_keys().collect();
        ids.sort_unstable();
        ids
    };
    for (region, mut expected) in [
        (inner.id, vec![inner.id, outer.id]),
        (sibling.id, vec![sibling.id, outer.id]),
        (outer.id, vec![outer.id]),
        (RegionId::nth(99), Vec::new()),
    ] {
        expected.sort_unstable();
        assert_eq!(above(region).await, expected);
    }
    let loaded = of(RelatedIds { sites: [nowhere.id].into(), ..RelatedIds::default() });
    let loaded = loaded.await;
    assert_eq!((loaded.sites.len(), loaded.regions.len()), (1, 0));
}

#[tokio::test]
async fn an_empty_request_sends_no_statement() {
    let (store, tenant) = store_with_project().await;
    let (counted, sent) = counting_store(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let loaded = related::load(&tx, &RelatedIds::default()).await.expect("read");
    assert_eq!(loaded, Related::default());
    assert_eq!(sent.statements.load(Ordering::Relaxed), before);
}

/// Stores hardware with large numbers.
async fn store_large_hardware(tx: &Tx, host: HostId) {
    let nic = Nic {
        device_name: "eth0".into(),
        ipaddresses: vec![Address { address: "10.0.0.1/24".into(), ..Address::default() }],
        ..Nic::default()
    };
    let reported = Hardware {
        memory_bytes: 1 << 40,
        nics: vec![nic],
        storages: vec![Storage { capacity_bytes: Capacity(u64::MAX), ..Storage::default() }],
        ..Hardware::default()
    };
    hardware::store_if_changed(tx, host, reported, &[1; 32], just_after_noon())
        .await
        .expect("stored");
}

#[tokio::test]
async fn the_details_of_hosts_are_read_in_one_statement() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    day_zero::create_in_use(&store, tenant, &host, &instance).await;
    let policy = create_latest_policy(&store, tenant).await;
    let scope = Scope::Instance(instance.id);
    assign(&store, tenant, scope, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    store_large_hardware(&tx, host.id).await;
    let bare_host = hosts::register(&tx, &registration(2), just_after_noon()).await;
    let bare_host = bare_host.expect("a host");
    tx.commit().await.expect("committed");

    let (counted, sent) = counting_store(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let ids = [host.id, HostId::nth(99), bare_host.id];
    let details = hosts::find_many_details(&tx, &ids).await;
    assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);
    let mut details = details.expect("read");
    details.sort_unstable_by_key(|entry| entry.host.id != host.id);

    let loaded_instance = instances::find(&tx, instance.id).await.expect("found");
    assert_eq!(
        (loaded_instance.policy, loaded_instance.custom_configs.len()),
        (Some(policy.id), 1)
    );
    let made_of = hardware::find_by_hosts(&tx, &[host.id]).await.expect("read");
    let made_of = &made_of[&host.id];
    let rendered = details[0].hardware.take().expect("reported hardware");
    let without_parts = Hardware { storages: Vec::new(), nics: Vec::new(), ..made_of.clone() };
    assert_eq!(rendered.hardware, without_parts);
    // Times are rendered in milliseconds.
    let as_rendered = |json: String| json.replace(".000001Z", "Z");
    let nics = serde_json::to_string(&made_of.nics).expect("JSON");
    assert_eq!(rendered.parts.nics.get(), as_rendered(nics));
    let storages = serde_json::to_string(&made_of.storages).expect("JSON");
    assert_eq!(rendered.parts.storages.get(), as_rendered(storages));
    assert_eq!((rendered.parts.usbs.get(), rendered.parts.gpus.get()), ("[]", "[]"));
    let addresses = made_of.nics.iter().flat_map(|nic| &nic.ipaddresses);
    let addresses: Vec<_> = addresses.map(|address| address.address.clone()).collect();
    assert!(!addresses.is_empty());
    let one_by_one = HostDetails {
        host: hosts::find(&tx, host.id).await.expect("found"),
        instance: Some(loaded_instance),
        last_contact: None,
        addresses,
        hardware: None,
    };
    let of_itself = HostDetails {
        host: bare_host,
        instance: None,
        last_contact: None,
        addresses: Vec::new(),
        hardware: None,
    };
    assert_eq!(details, [one_by_one, of_itself]);
    let missing = hosts::find_details(&tx, HostId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn an_instance_and_a_run_are_read_with_their_host() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    create_node(&store, tenant, 2).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let begun = numbered_record(RunEvent::Began, 1);
    let timeouts = RunTimeouts::default();
    let run = runs::advance(&tx, new_attempt(&instance, 1), &begun, &timeouts, NOON).await;
    let run = run.expect("opened");

    let loaded = instances::find_with_host(&tx, instance.id).await;
    let (loaded_instance, loaded_host) = loaded.expect("found");
    let one_by_one = (
        instances::find(&tx, instance.id).await.expect("found"),
        hosts::find(&tx, host.id).await.expect("found"),
    );
    assert_eq!((&loaded_instance, &loaded_host), (&one_by_one.0, &one_by_one.1));
    let (details, _) = runs::find_details(&tx, run.id).await.expect("found");
    let alone = runs::find(&tx, run.id).await.expect("found");
    assert_eq!((details.run.id, &details.run.origin), (alone.id, &alone.origin));
    assert_eq!(details.run.state, StoredState::Known(alone.state));
    assert_eq!((details.instance, details.host_name), (loaded_instance, loaded_host.name));
    let missing = instances::find_with_host(&tx, InstanceId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
    let missing = runs::find_details(&tx, RunId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn the_applicable_policy_is_that_of_decisions() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (site, _) = create_locations(&store, tenant).await;
    move_to_site(&store, tenant, &host, site.id).await;
    let (_, [image_policy, rules_policy]) = create_policies(&store, tenant).await;
    let project_policy = create_latest_policy(&store, tenant).await;
    for (scope, policy, applies) in [
        (Scope::Site(site.id), None, None),
        (Scope::Project, Some(&project_policy), Some(project_policy.id)),
        (Scope::Site(site.id), Some(&rules_policy), Some(rules_policy.id)),
        // The nearer policy installs an image, and the instance is updated by packages.
        (Scope::Instance(instance.id), Some(&image_policy), Some(rules_policy.id)),
    ] {
        if let Some(policy) = policy {
            assign(&store, tenant, scope, policy.id, (None, None)).await;
        }
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (loaded_instance, loaded_host) =
            instances::find_with_host(&tx, instance.id).await.expect("found");
        let nodes = [(&loaded_host, &loaded_instance)];
        let applied =
            decisions::load_applicable_policies(&tx, &nodes).await.expect("read").remove(0);
        assert_eq!(applied.as_ref().map(|assigned| assigned.policy.id), applies);
        let input = read_decision_input(&tx, &loaded_host, ReadMode::Preview(NOON)).await;
        assert_eq!(applied.as_ref(), input.applicable_policy());
    }
}
