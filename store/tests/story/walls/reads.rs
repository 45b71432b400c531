//! What every function of the store that reads tells of a project.

use std::fmt::Debug;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::run::AttemptId;
use evenkeel_store::decisions::{About, Horizon, Reading};
use evenkeel_store::nodes::Machine;
use evenkeel_store::related::{Related, Wanted};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::{
    StoreError, Tx, assignments, changes, contacts, contents, custom_configs, decisions, hardware,
    hosts, instances, join_tokens, listing, local_accounts, node_tokens, nodes, orders, os_inside,
    os_profiles, os_reports, os_settings, pauses, policies, providers, regions, related, runs,
    schedules, settings, sites, versions,
};
use uuid::Uuid;

use super::digest_of;
use super::misled::Of;
use crate::house::{NOON, list};

/// Functions, and what each told.
type Told = Vec<(String, String)>;

/// Calls functions, each with its arguments, and writes down what each tells.
macro_rules! tell {
    ($($function:path => ($($argument:expr),*);)+) => {
        vec![$((stringify!($function).replace(' ', ""), told($function($($argument),*).await))),+]
    };
}

/// What all of them tell.
pub async fn all(tx: &Tx, of: &Of) -> Told {
    let mut all = machines(tx, of).await;
    all.extend(runners(tx, of).await);
    all.extend(batches(tx, of).await);
    all.extend(catalogue(tx, of).await);
    all.extend(registry(tx, of).await);
    all.extend(first_day(tx, of).await);
    all.extend(references(tx, of).await);
    all.extend(wishes(tx, of).await);
    all.extend(counts(tx, of).await);
    all.extend(history(tx, of).await);
    all.extend(lists(tx).await);
    all
}

/// Whether this tells nothing.
pub fn is_nothing(told: &str) -> bool {
    let nothing = ["not found", "[]", "{}", "None", "false", "0"];
    nothing.contains(&told)
}

fn told<T: Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Ok(found) => format!("{found:?}"),
        Err(StoreError::NotFound { .. }) => "not found".to_owned(),
        Err(error) => panic!("{error:?}"),
    }
}

async fn machines(tx: &Tx, of: &Of) -> Told {
    let (host, uuid) = (of.host.id, of.host.uuid.expect("a UUID"));
    tell! {
        hosts::find => (tx, host);
        hosts::find_many => (tx, &[host]);
        hosts::find_whole => (tx, host);
        hosts::find_many_whole => (tx, &[host]);
        hosts::find_by_uuid => (tx, uuid);
        hosts::find_known => (tx, uuid, None);
        hosts::lock => (tx, host);
        hardware::of_hosts => (tx, &[host]);
        node_tokens::find => (tx, &[1; 32]);
        changes::of => (tx, "host", host.bits());
    }
}

async fn runners(tx: &Tx, of: &Of) -> Told {
    let (host, instance) = (of.host.id, of.instance.id);
    let machine = Machine::Host(host);
    tell! {
        instances::find => (tx, instance);
        instances::lock => (tx, instance);
        instances::find_by_host => (tx, host);
        instances::find_many => (tx, &[instance]);
        instances::find_with_host => (tx, instance);
        instances::find_with_hosts => (tx, &[instance]);
        instances::find_whole => (tx, instance);
        nodes::find => (tx, instance);
        nodes::read => (tx, machine);
        nodes::lock => (tx, host);
        nodes::lock_with_host => (tx, machine);
        nodes::find_by_host => (tx, host);
        contacts::last => (tx, instance);
    }
}

/// What is told of many at once, each for itself.
async fn batches(tx: &Tx, of: &Of) -> Told {
    let about = About::node(&of.host, &of.node);
    let briefs = nodes::briefs(tx, &[Machine::Host(of.host.id)]).await;
    let worlds = decisions::worlds(tx, &[about], &Horizon::default(), NOON).await;
    let all = [
        ("nodes::briefs", told(only(briefs))),
        ("decisions::worlds", told(only(worlds))),
    ];
    all.map(|(name, told)| (name.to_owned(), told)).into()
}

/// What is told of the only one.
fn only<T>(of: Result<Vec<Result<T, StoreError>>, StoreError>) -> Result<T, StoreError> {
    of.and_then(|mut of| of.pop().expect("one was asked for"))
}

async fn catalogue(tx: &Tx, of: &Of) -> Told {
    let (os, image, policy) = (of.image.id, &of.image.spec, of.policy);
    let (region, site) = (of.region.id, of.site.id);
    tell! {
        os_profiles::find => (tx, os);
        os_profiles::find_many => (tx, &[os]);
        os_profiles::find_image => (tx, &image.profile_name, &image.image_id);
        policies::find => (tx, policy);
        policies::find_many => (tx, &[policy]);
        regions::find => (tx, region);
        regions::find_many => (tx, &[region]);
        regions::count_sites => (tx, &[region]);
        sites::find => (tx, site);
        sites::find_many => (tx, &[site]);
    }
}

/// What came from a registry.
async fn registry(tx: &Tx, of: &Of) -> Told {
    tell! {
        os_settings::find => (tx);
        os_inside::find_many => (tx, &[of.edge]);
        os_inside::shown => (tx, &[of.edge], u32::MAX);
        os_inside::default_of => (tx, "edge");
        os_reports::find => (tx);
    }
}

async fn first_day(tx: &Tx, of: &Of) -> Told {
    let (provider, config, account) = (of.provider.id, of.config.id, of.account.id);
    tell! {
        providers::find => (tx, provider);
        providers::find_many => (tx, &[provider]);
        custom_configs::find => (tx, config);
        custom_configs::find_many => (tx, &[config]);
        local_accounts::find => (tx, account);
        local_accounts::find_many => (tx, &[account]);
        join_tokens::find => (tx, of.token);
        join_tokens::all => (tx);
        join_tokens::lock => (tx, digest_of(of.tenant));
    }
}

/// Whether what others refer to is told, one kind after the other.
async fn references(tx: &Tx, of: &Of) -> Told {
    let mut kinds: [Wanted; 8] = Default::default();
    kinds[0].oses.insert(of.image.id);
    kinds[1].policies.insert(of.policy);
    kinds[2].wishes.insert(of.policy);
    kinds[3].sites.insert(of.site.id);
    kinds[4].regions.insert(of.region.id);
    kinds[5].providers.insert(of.provider.id);
    kinds[6].local_accounts.insert(of.account.id);
    kinds[7].custom_configs.insert(of.config.id);
    let mut all = Told::new();
    for wanted in kinds {
        let found = related::read(tx, &wanted).await;
        let found = found.map(|found| found != Related::default());
        all.push(("related::read".to_owned(), told(found)));
    }
    all
}

async fn wishes(tx: &Tx, of: &Of) -> Told {
    let instance = of.instance.id;
    let (single, again) = (of.single.id, of.repeated.id);
    let (horizon, look) = (Horizon::default(), Reading::Look(NOON));
    tell! {
        assignments::find => (tx, Scope::Instance(instance), NOON);
        assignments::all => (tx, NOON);
        pauses::find => (tx, PauseScope::Project);
        pauses::all => (tx);
        orders::find => (tx, instance);
        schedules::find => (tx, single);
        schedules::find_many => (tx, &[single]);
        schedules::repeated::find => (tx, again);
        schedules::repeated::find_many => (tx, &[again]);
        decisions::world => (tx, &of.host, &of.node, &horizon, look);
        decisions::applied => (tx, &of.host, &of.instance);
    }
}

/// What is not told as it is: whether it is more than nothing.
async fn counts(tx: &Tx, of: &Of) -> Told {
    let summary = hosts::summary(tx, None).await;
    let settings = settings::find(tx).await;
    let settings = settings.map(|found| found != ProjectSettings::default());
    let mut world = of.world.clone();
    let counted = world.count(tx, Reading::Look(NOON)).await;
    let mut policies = world.wanted.policies.iter();
    let holds = policies.any(|assigned| assigned.brake.mine);
    let unheard = versions::is_unheard(tx, &[bash()], NOON).await;
    let all = [
        ("hosts::summary", told(summary.map(|hosts| hosts.total))),
        ("settings::find", told(settings)),
        ("decisions::count", told(counted.map(|()| holds))),
        (
            "versions::is_unheard",
            told(unheard.map(|unheard| !unheard)),
        ),
    ];
    all.map(|(name, told)| (name.to_owned(), told)).into()
}

fn bash() -> FoundVersion {
    FoundVersion {
        name: "bash".into(),
        architecture: "amd64".into(),
        version: "5.2".into(),
    }
}

async fn history(tx: &Tx, of: &Of) -> Told {
    let (run, instance) = (of.run.id, of.instance.id);
    let attempt = AttemptId(Uuid::from_u128(1));
    tell! {
        runs::find => (tx, run);
        runs::find_open => (tx, instance);
        runs::find_attempt => (tx, instance, attempt);
        runs::find_sampled => (tx, instance);
        runs::events => (tx, run);
        runs::find_many => (tx, &[run]);
        runs::find_whole => (tx, run);
        runs::find_many_whole => (tx, &[run]);
        contents::get => (tx, &[1; 32]);
        contents::get_many => (tx, &[[1; 32]]);
        contents::touch => (tx, &[1; 32], NOON);
        versions::settled => (tx, vec![bash().name], NOON);
        versions::steady_until => (tx, &[bash().name], TimeDelta::days(1), NOON);
    }
}

/// Lists of every kind, and some that look beyond.
const LISTS: [(Resource, &str); 18] = [
    (Resource::Region, ""),
    (Resource::Site, ""),
    (Resource::Host, ""),
    (Resource::Instance, ""),
    (Resource::Os, ""),
    (Resource::Policy, ""),
    (Resource::Run, ""),
    (Resource::SingleSchedule, ""),
    (Resource::RepeatedSchedule, ""),
    (Resource::Provider, ""),
    (Resource::CustomConfig, ""),
    (Resource::LocalAccount, ""),
    (Resource::Region, "has(sites)"),
    (Resource::Site, "region.name = \"europe\""),
    (Resource::Host, "has(provider)"),
    (Resource::Instance, "NOT host.name = \"nothing\""),
    (Resource::Run, "instance.host.name = \"edge\""),
    (Resource::SingleSchedule, "target_host.name = \"edge\""),
];

async fn lists(tx: &Tx) -> Told {
    let start = listing::From::Offset(0);
    let (mut ids, mut total, mut streamed) = (Vec::new(), 0, Vec::new());
    for (resource, filter) in LISTS {
        let listing = list(resource, filter, "");
        let page = listing::page(tx, &listing, &start, 100).await;
        ids.extend(page.expect("a page").ids);
        total += listing::count(tx, &listing).await.expect("a number");
        let cursor = listing::open(tx, &listing, 0).await;
        let mut cursor = cursor.expect("a cursor");
        streamed.extend(cursor.next(tx, 100).await.expect("ids"));
        cursor.close(tx).await.expect("closed");
    }
    let streamed = told(Ok(streamed));
    let all = [
        ("listing::page", told(Ok(ids))),
        ("listing::count", told(Ok(total))),
        ("listing::open", streamed.clone()),
        ("listing::next", streamed.clone()),
        ("listing::close", streamed),
    ];
    all.map(|(name, told)| (name.to_owned(), told)).into()
}
