//! Results of every function of the store that reads.

use std::fmt::Debug;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::run::AttemptId;
use evenkeel_store::changes::{ChangeCursor, ChangeFilter};
use evenkeel_store::decisions::{DecisionSubject, PlanningLimits, ReadMode};
use evenkeel_store::node_tokens::NodeToken;
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::related::{Related, RelatedIds};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::{
    StoreError, Tx, assignments, changes, contacts, contents, custom_configs, decisions, hardware,
    hosts, instances, join_tokens, listing, local_accounts, node_tokens, nodes,
    notification_targets, notifications, orders, os_details, os_profiles, os_reports, os_settings,
    package_versions, pauses, policies, providers, regions, related, runs, schedules, settings,
    sites,
};
use uuid::Uuid;

use super::token_digest;
use super::wrong_tenant::ProjectData;
use crate::fixtures::{NOON, parse_listing};

/// Function names and their results.
type FunctionResults = Vec<(String, String)>;

/// Calls functions with their arguments and collects the name and the result of each.
macro_rules! call_all {
    ($($function:path => ($($argument:expr),*);)+) => {
        vec![$((stringify!($function).replace(' ', ""), render($function($($argument),*).await))),+]
    };
}

pub async fn call_reads(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let mut all = read_hosts(tx, data).await;
    all.extend(read_instances(tx, data).await);
    all.extend(read_batches(tx, data).await);
    all.extend(read_catalogue(tx, data).await);
    all.extend(read_registry(tx, data).await);
    all.extend(read_day_zero(tx, data).await);
    all.extend(read_related(tx, data).await);
    all.extend(read_plans(tx, data).await);
    all.extend(read_summaries(tx, data).await);
    all.extend(read_history(tx, data).await);
    all.extend(read_lists(tx).await);
    all
}

/// Whether a result contains nothing.
pub fn is_empty_result(result: &str) -> bool {
    let nothing = ["not found", "[]", "{}", "None", "false", "0"];
    nothing.contains(&result)
}

fn render<T: Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(StoreError::NotFound { .. }) => "not found".to_owned(),
        Err(error) => panic!("{error:?}"),
    }
}

async fn read_hosts(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let (host, uuid) = (data.host.id, data.host.uuid.expect("a UUID"));
    let token = NodeToken { digest: [1; 32], subject: None, expires_at: NOON };
    let all = ChangeFilter { with_server: true, ..ChangeFilter::default() };
    let begin: ChangeCursor = "c1-0-0-0-0-0".parse().expect("a cursor");
    call_all! {
        hosts::find => (tx, host);
        hosts::find_many => (tx, &[host]);
        hosts::find_details => (tx, host);
        hosts::find_many_details => (tx, &[host]);
        hosts::find_by_uuid => (tx, uuid);
        hosts::find_registered => (tx, uuid, None);
        hosts::lock => (tx, host);
        hardware::find_by_hosts => (tx, &[host]);
        node_tokens::find => (tx, &[1; 32]);
        node_tokens::find_with_subject => (tx, &token);
        changes::list_for_resource => (tx, "host", host.bits());
        changes::list => (tx, &all, None, 10);
        changes::read_after => (tx, &all, &begin, i64::MAX.cast_unsigned(), 10);
        changes::find => (tx, data.change);
    }
}

async fn read_instances(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let (host, instance) = (data.host.id, data.instance.id);
    let machine = MachineKey::Host(host);
    call_all! {
        instances::find => (tx, instance);
        instances::lock => (tx, instance);
        instances::find_by_host => (tx, host);
        instances::find_many => (tx, &[instance]);
        instances::find_with_host => (tx, instance);
        instances::find_with_hosts => (tx, &[instance]);
        instances::find_details => (tx, instance);
        nodes::find => (tx, instance);
        nodes::find_with_host => (tx, machine);
        nodes::lock => (tx, host);
        nodes::lock_with_host => (tx, machine);
        nodes::find_by_host => (tx, host);
        contacts::last_contact => (tx, instance);
    }
}

/// Functions that take many nodes and return a result for each.
async fn read_batches(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let subject = DecisionSubject::from_node(&data.host, &data.node);
    let briefs = nodes::load_briefs(tx, &[MachineKey::Host(data.host.id)]).await;
    let inputs =
        decisions::load_decision_inputs(tx, &[subject], &PlanningLimits::default(), NOON).await;
    let all = [
        ("nodes::load_briefs", render(only_result(briefs))),
        ("decisions::load_decision_inputs", render(only_result(inputs))),
    ];
    all.map(|(name, result)| (name.to_owned(), result)).into()
}

/// The result of the only element.
fn only_result<T>(
    results: Result<Vec<Result<T, StoreError>>, StoreError>,
) -> Result<T, StoreError> {
    results.and_then(|mut results| results.pop().expect("one result"))
}

async fn read_catalogue(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let (os, image, policy) = (data.image.id, &data.image.spec, data.policy);
    let (region, site) = (data.region.id, data.site.id);
    call_all! {
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

/// Data imported from a registry.
async fn read_registry(tx: &Tx, data: &ProjectData) -> FunctionResults {
    call_all! {
        os_settings::find => (tx);
        os_details::find_many => (tx, &[data.edge]);
        os_details::find_many_with_lists => (tx, &[data.edge], u32::MAX);
        os_details::find_default => (tx, "edge");
        os_reports::find => (tx);
    }
}

async fn read_day_zero(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let (provider, config, account) = (data.provider.id, data.config.id, data.account.id);
    call_all! {
        providers::find => (tx, provider);
        providers::find_many => (tx, &[provider]);
        custom_configs::find => (tx, config);
        custom_configs::find_many => (tx, &[config]);
        local_accounts::find => (tx, account);
        local_accounts::find_many => (tx, &[account]);
        join_tokens::find => (tx, data.token);
        join_tokens::all => (tx);
        join_tokens::lock => (tx, token_digest(data.tenant));
        notification_targets::find => (tx, data.target);
        notification_targets::all => (tx);
        notifications::list => (tx, None);
        notifications::exists => (tx, data.target, data.delivery);
    }
}

/// Whether related resources are found, one kind after the other.
async fn read_related(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let mut kinds: [RelatedIds; 8] = Default::default();
    kinds[0].oses.insert(data.image.id);
    kinds[1].policies.insert(data.policy);
    kinds[2].policies_with_os.insert(data.policy);
    kinds[3].sites.insert(data.site.id);
    kinds[4].regions.insert(data.region.id);
    kinds[5].providers.insert(data.provider.id);
    kinds[6].local_accounts.insert(data.account.id);
    kinds[7].custom_configs.insert(data.config.id);
    let mut all = FunctionResults::new();
    for requested in kinds {
        let loaded = related::load(tx, &requested).await;
        let loaded = loaded.map(|loaded| loaded != Related::default());
        all.push(("related::load".to_owned(), render(loaded)));
    }
    all
}

async fn read_plans(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let instance = data.instance.id;
    let (single, again) = (data.single.id, data.repeated.id);
    let (planning_limits, look) = (PlanningLimits::default(), ReadMode::Preview(NOON));
    call_all! {
        assignments::find => (tx, Scope::Instance(instance), NOON);
        assignments::all => (tx, NOON);
        pauses::find => (tx, PauseScope::Project);
        pauses::all => (tx);
        orders::find => (tx, instance);
        schedules::find => (tx, single);
        schedules::find_many => (tx, &[single]);
        schedules::repeated::find => (tx, again);
        schedules::repeated::find_many => (tx, &[again]);
        decisions::load_decision_input => (tx, &data.host, &data.node, &planning_limits, look);
        decisions::load_applicable_policies => (tx, &[(&data.host, &data.instance)]);
    }
}

/// Results that are reduced to whether they contain anything.
async fn read_summaries(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let summary = hosts::summary(tx, None).await;
    let settings = settings::find(tx).await;
    let settings = settings.map(|stored| stored != ProjectSettings::default());
    let mut input = data.input.clone();
    let counted = input.refresh_usage(tx, ReadMode::Preview(NOON)).await;
    let mut policies = input.desired.policies.iter();
    let holds = policies.any(|assigned| assigned.usage.holds_slot);
    let unrecorded = package_versions::has_unrecorded(tx, &[bash_version()], NOON).await;
    let all = [
        ("hosts::summary", render(summary.map(|hosts| hosts.total))),
        ("settings::find", render(settings)),
        ("decisions::refresh_usage", render(counted.map(|()| holds))),
        ("package_versions::has_unrecorded", render(unrecorded.map(|unrecorded| !unrecorded))),
    ];
    all.map(|(name, result)| (name.to_owned(), result)).into()
}

fn bash_version() -> ObservedVersion {
    ObservedVersion { name: "bash".into(), architecture: "amd64".into(), version: "5.2".into() }
}

async fn read_history(tx: &Tx, data: &ProjectData) -> FunctionResults {
    let (run, instance) = (data.run.id, data.instance.id);
    let attempt = AttemptId(Uuid::from_u128(1));
    call_all! {
        runs::find => (tx, run);
        runs::find_open => (tx, instance);
        runs::find_opened_with => (tx, run, &[1; 32]);
        runs::find_attempt => (tx, instance, attempt);
        runs::find_last_sampled => (tx, instance);
        runs::events => (tx, run);
        runs::find_many => (tx, &[run]);
        runs::find_details => (tx, run);
        runs::find_many_details => (tx, &[run]);
        contents::get => (tx, &[1; 32]);
        contents::get_many => (tx, &[[1; 32]]);
        contents::touch => (tx, &[1; 32], NOON);
        package_versions::list_known_since => (tx, instance, vec![bash_version().name], NOON);
        package_versions::steady_until => (tx, instance, &[bash_version().name], TimeDelta::days(1), NOON);
    }
}

/// Lists of every kind, and some with a filter on related resources.
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

async fn read_lists(tx: &Tx) -> FunctionResults {
    let start = listing::PageStart::Offset(0);
    let (mut ids, mut total, mut streamed) = (Vec::new(), 0, Vec::new());
    for (resource, filter) in LISTS {
        let listing = parse_listing(resource, filter, "");
        let page = listing::page(tx, &listing, &start, 100).await;
        ids.extend(page.expect("a page").ids);
        total += listing::count(tx, &listing).await.expect("a number");
        let cursor = listing::open(tx, &listing, 0).await;
        let mut cursor = cursor.expect("a cursor");
        streamed.extend(cursor.next(tx, 100).await.expect("ids"));
        cursor.close(tx).await.expect("closed");
    }
    let streamed = render(Ok(streamed));
    let all = [
        ("listing::page", render(Ok(ids))),
        ("listing::count", render(Ok(total))),
        ("listing::open", streamed.clone()),
        ("listing::next", streamed.clone()),
        ("listing::close", streamed),
    ];
    all.map(|(name, result)| (name.to_owned(), result)).into()
}
