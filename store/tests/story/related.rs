//! What resources refer to and resources that are read whole are what is read one by one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::hardware::{Address, Capacity, Hardware, Nic, Storage};
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RegionId, RunId};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::place::{Metadata, Region, RegionSpec, Site, SiteSpec};
use evenkeel_domain::policy::{PackageRules, PolicySpec, TargetWish, UpdatePolicy, Wish};
use evenkeel_domain::run::{Patience, RunEvent};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{self, Reading};
use evenkeel_store::hosts::WholeHost;
use evenkeel_store::related::{self, Related, Wanted};
use evenkeel_store::runs::WholeRun;
use evenkeel_store::testing::{counting, fresh_store};
use evenkeel_store::{
    Store, StoreError, Tx, custom_configs, hardware, hosts, instances, local_accounts, os_profiles,
    policies, providers, regions, runs, sites,
};

use crate::day_zero;
use crate::house::{
    NOON, assign, attempt, bookworm, latest, node, numbered, project, region, registration, site,
    stands_at, world,
};

/// An instant between two seconds.
fn then() -> Time {
    NOON + TimeDelta::microseconds(1)
}

fn labels(value: &str) -> Metadata {
    Metadata::parse([("tier".to_owned(), value.to_owned())]).expect("labels")
}

/// A site in a region in another region.
async fn places(store: &Store, tenant: TenantId) -> (Site, [Region; 2]) {
    let outer = region(store, tenant, "outer", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = RegionSpec {
        name: Name::parse("name", "inner").expect("a name"),
        parent: Some(outer.id),
        metadata: labels("gold"),
    };
    let inner = regions::create(&tx, &spec, then()).await.expect("a region");
    let spec = SiteSpec {
        region: Some(inner.id),
        latitude: -525_200_000,
        metadata: labels("silver"),
        ..SiteSpec::default()
    };
    let site = sites::create(&tx, &spec, then()).await.expect("a site");
    tx.commit().await.expect("committed");
    (site, [outer, inner])
}

/// An image, a policy that wishes for it, and one with rules of its own.
async fn wishes(store: &Store, tenant: TenantId) -> (OsProfile, [UpdatePolicy; 2]) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let image = OsSpec {
        kind: OsKind::Immutable,
        name: "image".into(),
        profile_name: "line".into(),
        description: "with \"quotes\", a \\ and a\nline".into(),
        ..bookworm()
    };
    let image = os_profiles::create(&tx, &image, then()).await;
    let image = image.expect("an image");
    let target = Wish::Target(TargetWish {
        os: Some(image.id),
        ..TargetWish::default()
    });
    let wishing = PolicySpec::parse("image", "", target).expect("a policy");
    let wishing = policies::create(&tx, &wishing, then()).await;
    let without = PackageRules {
        exclude: vec!["linux-*".into()],
        ..PackageRules::default()
    };
    let ruled = PolicySpec::parse("ruled", "", Wish::Latest).and_then(|spec| spec.ruled(without));
    let ruled = policies::create(&tx, &ruled.expect("a policy"), then()).await;
    tx.commit().await.expect("committed");
    (image, [wishing.expect("created"), ruled.expect("created")])
}

#[tokio::test]
async fn what_is_referred_to_is_read_in_one_statement() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (provider, config, account) = day_zero::in_use(&store, tenant, &host, &instance).await;
    let (site, [outer, inner]) = places(&store, tenant).await;
    let (image, [wishing, ruled]) = wishes(&store, tenant).await;
    let running = instance.summary.os;
    let wanted = Wanted {
        oses: [running, OsId::nth(99)].into(),
        policies: [ruled.id, PolicyId::nth(99)].into(),
        wishes: [wishing.id].into(),
        sites: [site.id].into(),
        providers: [provider].into(),
        local_accounts: [account].into(),
        custom_configs: [config].into(),
        ..Wanted::default()
    };
    let (counted, sent) = counting(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let found = related::read(&tx, &wanted).await.expect("read");
    assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);

    let running = os_profiles::find(&tx, running).await.expect("there");
    let provider = providers::find(&tx, provider).await.expect("there");
    let account = local_accounts::find(&tx, account).await.expect("there");
    let config = custom_configs::find(&tx, config).await.expect("there");
    let one_by_one = Related {
        oses: HashMap::from([(running.id, running), (image.id, image)]),
        policies: HashMap::from([(wishing.id, wishing), (ruled.id, ruled)]),
        sites: HashMap::from([(site.id, site)]),
        regions: HashMap::from([(outer.id, outer), (inner.id, inner)]),
        providers: HashMap::from([(provider.id, provider)]),
        local_accounts: HashMap::from([(account.id, account)]),
        custom_configs: HashMap::from([(config.id, config)]),
    };
    assert_eq!(found, one_by_one);
}

#[tokio::test]
async fn a_region_is_read_with_all_that_it_lies_in_and_nothing_else() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (nowhere, (_, [outer, inner])) = (
        site(&store, tenant, None).await,
        places(&store, tenant).await,
    );
    let aside = region(&store, tenant, "aside", Some(outer.id)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let of = async |wanted: Wanted| related::read(&tx, &wanted).await.expect("read");
    let above = async |id: RegionId| {
        let wanted = Wanted {
            regions: [id].into(),
            ..Wanted::default()
        };
        let found = of(wanted).await;
        assert_eq!(found.sites.len() + found.oses.len(), 0);
        let mut ids: Vec<_> = found.regions.into_keys().collect();
        ids.sort_unstable();
        ids
    };
    for (region, mut wanted) in [
        (inner.id, vec![inner.id, outer.id]),
        (aside.id, vec![aside.id, outer.id]),
        (outer.id, vec![outer.id]),
        (RegionId::nth(99), Vec::new()),
    ] {
        wanted.sort_unstable();
        assert_eq!(above(region).await, wanted);
    }
    let found = of(Wanted {
        sites: [nowhere.id].into(),
        ..Wanted::default()
    });
    let found = found.await;
    assert_eq!((found.sites.len(), found.regions.len()), (1, 0));
}

#[tokio::test]
async fn what_nobody_wants_is_not_asked_for() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (counted, sent) = counting(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let found = related::read(&tx, &Wanted::default()).await.expect("read");
    assert_eq!(found, Related::default());
    assert_eq!(sent.statements.load(Ordering::Relaxed), before);
}

/// The host says what it is made of.
async fn is_made_of_much(tx: &Tx, host: HostId) {
    let nic = Nic {
        device_name: "eth0".into(),
        ipaddresses: vec![Address {
            address: "10.0.0.1/24".into(),
            ..Address::default()
        }],
        ..Nic::default()
    };
    let said = Hardware {
        memory_bytes: 1 << 40,
        nics: vec![nic],
        storages: vec![Storage {
            capacity_bytes: Capacity(u64::MAX),
            ..Storage::default()
        }],
        ..Hardware::default()
    };
    hardware::keep(tx, host, said, &[1; 32], then())
        .await
        .expect("kept");
}

#[tokio::test]
async fn a_host_is_read_whole_in_one_statement() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    day_zero::in_use(&store, tenant, &host, &instance).await;
    let policy = latest(&store, tenant).await;
    let scope = Scope::Instance(instance.id);
    assign(&store, tenant, scope, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    is_made_of_much(&tx, host.id).await;
    let bare = hosts::register(&tx, &registration(2), then()).await;
    let bare = bare.expect("a host");
    tx.commit().await.expect("committed");

    let (counted, sent) = counting(&store);
    let tx = counted.tenant(tenant).await.expect("a transaction");
    let before = sent.statements.load(Ordering::Relaxed);
    let ids = [host.id, HostId::nth(99), bare.id];
    let found = hosts::find_many_whole(&tx, &ids).await;
    assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);
    let mut found = found.expect("read");
    found.sort_unstable_by_key(|whole| whole.host.id != host.id);

    let on = instances::find(&tx, instance.id).await.expect("there");
    assert_eq!((on.policy, on.custom_configs.len()), (Some(policy.id), 1));
    let made_of = hardware::of_hosts(&tx, &[host.id]).await.expect("read");
    let made_of = &made_of[&host.id];
    let told = found[0].hardware.take().expect("it said so");
    let without_parts = Hardware {
        storages: Vec::new(),
        nics: Vec::new(),
        ..made_of.clone()
    };
    assert_eq!(told.of_itself, without_parts);
    // Instants are told to the millisecond.
    let as_told = |kept: String| kept.replace(".000001Z", "Z");
    let nics = serde_json::to_string(&made_of.nics).expect("JSON");
    assert_eq!(told.parts.nics.get(), as_told(nics));
    let storages = serde_json::to_string(&made_of.storages).expect("JSON");
    assert_eq!(told.parts.storages.get(), as_told(storages));
    assert_eq!((told.parts.usbs.get(), told.parts.gpus.get()), ("[]", "[]"));
    let one_by_one = WholeHost {
        host: hosts::find(&tx, host.id).await.expect("there"),
        instance: Some(on),
        hardware: None,
    };
    let of_itself = WholeHost {
        host: bare,
        instance: None,
        hardware: None,
    };
    assert_eq!(found, [one_by_one, of_itself]);
    let missing = hosts::find_whole(&tx, HostId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn an_instance_and_a_run_are_read_with_where_they_are() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    node(&store, tenant, 2).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let begun = numbered(RunEvent::Began, 1);
    let patience = Patience::default();
    let run = runs::advance(&tx, attempt(&instance, 1), &begun, &patience, NOON).await;
    let run = run.expect("opened");

    let found = instances::find_with_host(&tx, instance.id).await;
    let (on, at) = found.expect("there");
    let one_by_one = (
        instances::find(&tx, instance.id).await.expect("there"),
        hosts::find(&tx, host.id).await.expect("there"),
    );
    assert_eq!((&on, &at), (&one_by_one.0, &one_by_one.1));
    let (whole, _) = runs::find_whole(&tx, run.id).await.expect("there");
    let one_by_one = WholeRun {
        run: runs::find(&tx, run.id).await.expect("there"),
        instance: on,
        host_name: at.name,
    };
    assert_eq!(whole, one_by_one);
    let missing = instances::find_with_host(&tx, InstanceId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
    let missing = runs::find_whole(&tx, RunId::nth(99)).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn what_applies_is_what_decisions_are_made_from() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (site, _) = places(&store, tenant).await;
    stands_at(&store, tenant, &host, site.id).await;
    let (_, [wishing, ruled]) = wishes(&store, tenant).await;
    let wider = latest(&store, tenant).await;
    for (scope, policy, applies) in [
        (Scope::Site(site.id), None, None),
        (Scope::Project, Some(&wider), Some(wider.id)),
        (Scope::Site(site.id), Some(&ruled), Some(ruled.id)),
        // It is nearer, and not meant for what the instance runs.
        (Scope::Instance(instance.id), Some(&wishing), Some(ruled.id)),
    ] {
        if let Some(policy) = policy {
            assign(&store, tenant, scope, policy.id, (None, None)).await;
        }
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (on, at) = instances::find_with_host(&tx, instance.id)
            .await
            .expect("there");
        let applied = decisions::applied(&tx, &at, &on).await.expect("read");
        assert_eq!(applied.as_ref().map(|found| found.policy.id), applies);
        let world = world(&tx, &at, Reading::Look(NOON)).await;
        assert_eq!(applied.as_ref(), world.applies());
    }
}
