//! Calls of every function of the store that writes.

use chrono::TimeDelta;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::{HostState, InvalidationNote};
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::join_token::JoinTokenSpec;
use evenkeel_domain::location::{RegionSpec, SiteSpec};
use evenkeel_domain::notification::WebhookSecret;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsSpec, SecurityFeature};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_domain::run::{RunEvent, RunTimeouts};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use evenkeel_store::assignments::Resumption;
use evenkeel_store::changes::EventKind;
use evenkeel_store::hosts::{HostChange, JoinRequest};
use evenkeel_store::image_series::ImageSeries;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::node_tokens::NodeToken;
use evenkeel_store::notifications::ReplaySelection;
use evenkeel_store::runs::{EventBatch, Subject};
use evenkeel_store::schedules::repeated;
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::{
    StoreError, Tx, assignments, changes, contents, custom_configs, daily_usage, hardware, hosts,
    image_series, instances, join_tokens, limit_usage, local_accounts, node_tokens, nodes,
    notification_targets, notifications, orders, os_details, os_profiles, os_reports, os_settings,
    package_versions, pauses, policies, providers, regions, runs, schedules, settings, sites,
};

use super::webhook;
use super::wrong_tenant::ProjectData;
use crate::fixtures::{NOON, bookworm, numbered_record, registration, window};
use crate::os_details::{edge, finding, report, selection};

/// Result of a write; `None` if the function is not in this group.
type WriteResult = Option<Result<(), StoreError>>;

/// Calls the function of this name; `None` if it is not listed here.
pub async fn call_write(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    if let Some(done) = write_hosts(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_instances(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_catalogue(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_registry(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_locations(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_assignments(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_schedules(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = write_notifications(name, tx, data).await {
        return Some(done);
    }
    if let Some(done) = use_change_log(name, tx).await {
        return Some(done);
    }
    write_history(name, tx, data).await
}

/// Events, and positions in the change log. Positions are no data of a project: they have a result in
/// any scope.
async fn use_change_log(name: &str, tx: &Tx) -> WriteResult {
    Some(match name {
        "changes::record_event" => {
            changes::record_event(tx, EventKind::Refusal, serde_json::json!({})).await
        }
        "changes::current_cursor" => changes::current_cursor(tx).await.map(|_| ()),
        "changes::has_expired" => {
            let cursor = "c1-0-0-0-0-0".parse().expect("a cursor");
            changes::has_expired(tx, &cursor).await.map(|expired| assert!(expired))
        }
        _ => return None,
    })
}

async fn write_notifications(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let (target, secret) = (data.target, WebhookSecret::from_bytes(vec![2; WebhookSecret::BYTES]));
    let all = ReplaySelection::EventsBetween(NOON, NOON);
    Some(match name {
        "notification_targets::create" => {
            let created = notification_targets::create(tx, &webhook("other"), &secret, NOON).await;
            created.map(drop)
        }
        "notification_targets::set_enabled" => {
            notification_targets::set_enabled(tx, target, false, NOON).await.map(drop)
        }
        "notification_targets::replace_secret" => {
            notification_targets::replace_secret(tx, target, &secret, NOON).await.map(drop)
        }
        "notification_targets::delete" => notification_targets::delete(tx, target).await,
        "notifications::queue_test" => notifications::queue_test(tx, target, NOON).await.map(drop),
        "notifications::replay" => notifications::replay(tx, target, all, NOON).await.map(drop),
        _ => return None,
    })
}

fn other_name() -> Name {
    Name::parse("name", "other").expect("a name")
}

async fn write_hosts(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let id = data.host.id;
    let change = HostChange { name: Some(other_name()), ..HostChange::default() };
    let join_request = JoinRequest {
        uuid: data.host.uuid.expect("a UUID"),
        serial: None,
        hostname: "other".into(),
        public_key: vec![1],
    };
    let running = Status::new("Running", Indication::Idle, NOON);
    Some(match name {
        "hosts::register" => hosts::register(tx, &registration(9), NOON).await.map(drop),
        "hosts::record_join" => hosts::record_join(tx, id, &join_request, NOON).await.map(drop),
        "hosts::store_decryption_certificate" => {
            hosts::store_decryption_certificate(tx, id, &data.host.public_key, &[2]).await
        }
        "hosts::record_names" => hosts::record_names(tx, id, Some("machine"), None).await,
        "hosts::set_status" => hosts::set_status(tx, id, &running).await,
        "hosts::change" => hosts::change(tx, id, &change, NOON).await.map(drop),
        "hosts::set_desired_state" => {
            hosts::set_desired_state(tx, id, HostState::Registered, NOON).await.map(drop)
        }
        "hosts::invalidate" => {
            hosts::invalidate(tx, id, &InvalidationNote::default(), NOON).await.map(drop)
        }
        "hosts::delete" => hosts::delete(tx, id).await,
        "hardware::store_if_changed" => {
            hardware::store_if_changed(tx, id, Hardware::default(), &[3; 32], NOON).await.map(drop)
        }
        "node_tokens::bind" => {
            let expires_at = NOON + TimeDelta::hours(1);
            let token = NodeToken { digest: [9; 32], subject: Some([8; 32]), expires_at };
            node_tokens::bind(tx, &token, id, NOON).await.map(drop)
        }
        _ => return None,
    })
}

async fn write_instances(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let id = data.instance.id;
    let new = NewInstance {
        host: data.host.id,
        os: data.image.id,
        name: other_name(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: Some(data.account.id),
        custom_configs: vec![data.config.id],
    };
    let change = InstanceChange {
        name: Some(other_name()),
        policy: Some(None),
        ..InstanceChange::default()
    };
    let mut node = data.node.clone();
    node.waiting = "for you".into();
    Some(match name {
        "instances::create" => instances::create(tx, &new, NOON).await.map(drop),
        "instances::change" => instances::change(tx, id, &change, NOON).await.map(drop),
        "instances::invalidate" => instances::invalidate(tx, id, NOON).await,
        "instances::delete" => instances::delete(tx, id).await,
        "nodes::save" => nodes::save(tx, &node).await,
        "nodes::save_changes" => nodes::save_changes(tx, &data.node, &node).await,
        _ => return None,
    })
}

async fn write_catalogue(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let new = OsSpec {
        name: "new".into(),
        profile_name: "new".into(),
        architecture: "other".into(),
        ..bookworm()
    };
    let policy = PolicySpec::parse("new", "", DesiredUpdate::Latest).expect("a policy");
    let os = data.image.id;
    Some(match name {
        "os_profiles::create" => os_profiles::create(tx, &new, NOON).await.map(drop),
        "os_profiles::find_or_create" => {
            os_profiles::find_or_create(tx, &new, NOON).await.map(drop)
        }
        "os_profiles::change" => os_profiles::change(tx, os, &new, NOON).await.map(drop),
        "os_profiles::delete" => os_profiles::delete(tx, os).await,
        "policies::create" => policies::create(tx, &policy, NOON).await.map(drop),
        "policies::delete" => policies::delete(tx, data.policy).await,
        "providers::create" => providers::create(tx, &data.provider.spec, NOON).await.map(drop),
        "providers::delete" => providers::delete(tx, data.provider.id).await,
        "custom_configs::create" => {
            custom_configs::create(tx, &data.config.spec, NOON).await.map(drop)
        }
        "custom_configs::delete" => custom_configs::delete(tx, data.config.id).await,
        "local_accounts::create" => {
            local_accounts::create(tx, &data.account.spec, NOON).await.map(drop)
        }
        "local_accounts::delete" => local_accounts::delete(tx, data.account.id).await,
        _ => return None,
    })
}

async fn write_registry(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let series = ImageSeries { tenant: data.tenant, profile_name: "edge".into(), version: 1 };
    let report = report(vec![finding("unreachable", NOON)]);
    Some(match name {
        "os_settings::set" => os_settings::set(tx, &selection("3.0.2")).await,
        "os_details::import" => os_details::import(tx, &edge("3.0.2"), NOON).await.map(drop),
        "os_reports::replace" => os_reports::replace(tx, &report).await,
        "image_series::update_nodes" => {
            image_series::update_nodes(tx, &series, None, 10).await.map(drop)
        }
        "image_series::mark_followed" => image_series::mark_followed(tx, &series).await.map(drop),
        _ => return None,
    })
}

async fn write_locations(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let (region, site) = (data.region.id, data.site.id);
    let outside = RegionSpec { name: other_name(), ..RegionSpec::default() };
    let there = SiteSpec { name: other_name(), region: Some(region), ..SiteSpec::default() };
    Some(match name {
        "regions::create" => regions::create(tx, &outside, NOON).await.map(drop),
        "regions::change" => regions::change(tx, region, &outside, NOON).await.map(drop),
        "regions::delete" => regions::delete(tx, region).await,
        "sites::create" => sites::create(tx, &there, NOON).await.map(drop),
        "sites::change" => sites::change(tx, site, &there, NOON).await.map(drop),
        "sites::delete" => sites::delete(tx, site).await,
        _ => return None,
    })
}

async fn write_assignments(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let (host, policy, none) = (Scope::Host(data.host.id), data.policy, UpdateLimits::default());
    let resumption = Resumption { at: NOON, by: "mallory".into(), reason: String::new() };
    let pause = Pause {
        scope: PauseScope::Project,
        reason: "other".into(),
        by: "mallory".into(),
        at: NOON,
    };
    let order = Order {
        kind: OrderKind::Cancel,
        at: NOON,
        until: NOON,
        reason: "other".into(),
        by: "mallory".into(),
    };
    let id = data.instance.id;
    Some(match name {
        "assignments::set" => assignments::set(tx, host, policy, none, NOON).await,
        "assignments::clear" => assignments::clear(tx, Scope::Project).await,
        "assignments::assign" => assignments::assign(tx, host, policy, NOON).await,
        "assignments::set_limits" => assignments::set_limits(tx, Scope::Project, none).await,
        "assignments::resume" => assignments::resume(tx, Scope::Project, &resumption).await,
        "pauses::set" => pauses::set(tx, &pause).await,
        "pauses::clear" => pauses::clear(tx, pause.scope).await,
        "orders::set" => orders::set(tx, &[id], &order).await.map(drop),
        "orders::clear" => orders::clear(tx, id).await,
        "settings::set" => settings::set(tx, &ProjectSettings::default()).await,
        "limit_usage::take_slot" => limit_usage::take_slot(tx, host, id, None, NOON).await,
        "limit_usage::release_slots" => limit_usage::release_slots(tx, id).await,
        _ => return None,
    })
}

async fn write_schedules(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let (single, again) = (data.single.id, data.repeated.id);
    let later = window(ScheduleTarget::Site(data.site.id), 5, 6);
    let mut other_again = data.repeated.spec.clone();
    other_again.name = other_name();
    let token = JoinTokenSpec {
        name: other_name(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
        may_replace_eim_agents: false,
    };
    Some(match name {
        "schedules::create" => schedules::create(tx, &later, NOON).await.map(drop),
        "schedules::change" => schedules::change(tx, single, &later, NOON).await.map(drop),
        "schedules::delete" => schedules::delete(tx, single).await,
        "schedules::repeated::create" => repeated::create(tx, &other_again, NOON).await.map(drop),
        "schedules::repeated::change" => {
            repeated::change(tx, again, &other_again, NOON).await.map(drop)
        }
        "schedules::repeated::delete" => repeated::delete(tx, again).await,
        "join_tokens::create" => join_tokens::create(tx, &token, [8; 32], NOON).await.map(drop),
        "join_tokens::revoke" => join_tokens::revoke(tx, data.token, NOON).await.map(drop),
        "join_tokens::record_use" => join_tokens::record_use(tx, data.token, NOON).await,
        _ => return None,
    })
}

async fn write_history(name: &str, tx: &Tx, data: &ProjectData) -> WriteResult {
    let new =
        ObservedVersion { name: "new".into(), architecture: "amd64".into(), version: "1".into() };
    let (verify_begun, timeouts) =
        (numbered_record(RunEvent::VerifyBegun, 2), RunTimeouts::default());
    let run = Subject::Run(data.run.id);
    Some(match name {
        "runs::advance" => runs::advance(tx, run, &verify_begun, &timeouts, NOON).await.map(drop),
        "runs::advance_all" => {
            let batch =
                EventBatch { first: &verify_begun, rest: &[], timeouts: &timeouts, now: NOON };
            let moved = runs::advance_all(tx, run, &batch, &mut |_| {}).await;
            moved.map(drop)
        }
        "runs::grant" => runs::grant(tx, &data.run, Some(Scope::Project), NOON).await,
        "runs::delete" => runs::delete(tx, data.run.id).await,
        "contents::insert_if_missing" => {
            contents::insert_if_missing(tx, &[7; 32], "other", NOON).await.map(drop)
        }
        "daily_usage::charge_node" => {
            let cost = std::time::Duration::from_secs(1);
            daily_usage::charge_node(tx, data.host.id, "versions", cost).await.map(drop)
        }
        "package_versions::record_seen" => {
            package_versions::record_seen(tx, data.instance.id, &[new], NOON).await.map(drop)
        }
        _ => return None,
    })
}
