//! Something to write with every function of the store that writes.

use chrono::TimeDelta;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::{HostState, Note};
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::join_token::JoinTokenSpec;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{OsSpec, SecurityFeature};
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::place::{RegionSpec, SiteSpec};
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::run::{Patience, RunEvent};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use evenkeel_store::assignments::Resumption;
use evenkeel_store::hosts::{HostChange, Joining};
use evenkeel_store::image_lines::Line;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::runs::{Subject, Together};
use evenkeel_store::schedules::repeated;
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::{
    StoreError, Tx, assignments, brake, contents, custom_configs, hardware, hosts, image_lines,
    instances, join_tokens, local_accounts, node_tokens, nodes, orders, os_inside, os_profiles,
    os_reports, os_settings, pauses, policies, providers, regions, runs, schedules, settings,
    sites, versions,
};

use super::misled::Of;
use crate::house::{NOON, bookworm, numbered, registration, window};
use crate::os_inside::{edge, finding, report, wish};

/// How a write went; none if it is not of this group.
type Done = Option<Result<(), StoreError>>;

/// Writes something with the function of this name; none if nobody said what.
pub async fn one(name: &str, tx: &Tx, of: &Of) -> Done {
    if let Some(done) = machines(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = runners(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = catalogue(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = registry(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = places(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = wishes(name, tx, of).await {
        return Some(done);
    }
    if let Some(done) = plans(name, tx, of).await {
        return Some(done);
    }
    history(name, tx, of).await
}

fn other() -> Name {
    Name::parse("name", "other").expect("a name")
}

async fn machines(name: &str, tx: &Tx, of: &Of) -> Done {
    let id = of.host.id;
    let change = HostChange {
        name: Some(other()),
        ..HostChange::default()
    };
    let joining = Joining {
        uuid: of.host.uuid.expect("a UUID"),
        serial: None,
        hostname: "other".into(),
        public_key: vec![1],
    };
    let running = Status::new("Running", Indication::Idle, NOON);
    Some(match name {
        "hosts::register" => hosts::register(tx, &registration(9), NOON).await.map(drop),
        "hosts::joined" => hosts::joined(tx, id, &joining, NOON).await.map(drop),
        "hosts::set_status" => hosts::set_status(tx, id, &running).await,
        "hosts::change" => hosts::change(tx, id, &change, NOON).await.map(drop),
        "hosts::want" => hosts::want(tx, id, HostState::Registered, NOON)
            .await
            .map(drop),
        "hosts::invalidate" => hosts::invalidate(tx, id, &Note::default(), NOON)
            .await
            .map(drop),
        "hosts::delete" => hosts::delete(tx, id).await,
        "hardware::keep" => hardware::keep(tx, id, Hardware::default(), &[3; 32], NOON)
            .await
            .map(drop),
        "node_tokens::bind" => {
            let expires_at = NOON + TimeDelta::hours(1);
            let bound = node_tokens::bind(tx, &[9; 32], id, expires_at, NOON).await;
            bound.map(drop)
        }
        _ => return None,
    })
}

async fn runners(name: &str, tx: &Tx, of: &Of) -> Done {
    let id = of.instance.id;
    let new = NewInstance {
        host: of.host.id,
        os: of.image.id,
        name: other(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: Some(of.account.id),
        custom_configs: vec![of.config.id],
    };
    let change = InstanceChange {
        name: Some(other()),
        policy: Some(None),
        ..InstanceChange::default()
    };
    let mut node = of.node.clone();
    node.waiting = "for you".into();
    Some(match name {
        "instances::create" => instances::create(tx, &new, NOON).await.map(drop),
        "instances::change" => instances::change(tx, id, &change, NOON).await.map(drop),
        "instances::invalidate" => instances::invalidate(tx, id, NOON).await,
        "instances::delete" => instances::delete(tx, id).await,
        "nodes::save" => nodes::save(tx, &node).await,
        _ => return None,
    })
}

async fn catalogue(name: &str, tx: &Tx, of: &Of) -> Done {
    let new = OsSpec {
        name: "new".into(),
        profile_name: "new".into(),
        architecture: "other".into(),
        ..bookworm()
    };
    let policy = PolicySpec::parse("new", "", Wish::Latest).expect("a policy");
    let os = of.image.id;
    Some(match name {
        "os_profiles::create" => os_profiles::create(tx, &new, NOON).await.map(drop),
        "os_profiles::ensure" => os_profiles::ensure(tx, &new, NOON).await.map(drop),
        "os_profiles::change" => os_profiles::change(tx, os, &new, NOON).await.map(drop),
        "os_profiles::delete" => os_profiles::delete(tx, os).await,
        "policies::create" => policies::create(tx, &policy, NOON).await.map(drop),
        "policies::delete" => policies::delete(tx, of.policy).await,
        "providers::create" => providers::create(tx, &of.provider.spec, NOON)
            .await
            .map(drop),
        "providers::delete" => providers::delete(tx, of.provider.id).await,
        "custom_configs::create" => custom_configs::create(tx, &of.config.spec, NOON)
            .await
            .map(drop),
        "custom_configs::delete" => custom_configs::delete(tx, of.config.id).await,
        "local_accounts::create" => local_accounts::create(tx, &of.account.spec, NOON)
            .await
            .map(drop),
        "local_accounts::delete" => local_accounts::delete(tx, of.account.id).await,
        _ => return None,
    })
}

async fn registry(name: &str, tx: &Tx, of: &Of) -> Done {
    let line = Line {
        tenant: of.tenant,
        profile_name: "edge".into(),
        changed: 1,
    };
    let report = report(vec![finding("unreachable", NOON)]);
    Some(match name {
        "os_settings::set" => os_settings::set(tx, &wish("3.0.2")).await,
        "os_inside::keep" => os_inside::keep(tx, &edge("3.0.2"), NOON).await.map(drop),
        "os_reports::replace" => os_reports::replace(tx, &report).await,
        "image_lines::follow" => image_lines::follow(tx, &line, None, 10).await.map(drop),
        "image_lines::done" => image_lines::done(tx, &line).await.map(drop),
        _ => return None,
    })
}

async fn places(name: &str, tx: &Tx, of: &Of) -> Done {
    let (region, site) = (of.region.id, of.site.id);
    let outside = RegionSpec {
        name: other(),
        ..RegionSpec::default()
    };
    let there = SiteSpec {
        name: other(),
        region: Some(region),
        ..SiteSpec::default()
    };
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

async fn wishes(name: &str, tx: &Tx, of: &Of) -> Done {
    let (host, policy, none) = (Scope::Host(of.host.id), of.policy, Limits::default());
    let resumption = Resumption {
        at: NOON,
        by: "mallory".into(),
        reason: String::new(),
    };
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
    let id = of.instance.id;
    Some(match name {
        "assignments::set" => assignments::set(tx, host, policy, none, NOON).await,
        "assignments::clear" => assignments::clear(tx, Scope::Project).await,
        "assignments::assign" => assignments::assign(tx, host, policy, NOON).await,
        "assignments::limit" => assignments::limit(tx, Scope::Project, none).await,
        "assignments::resume" => assignments::resume(tx, Scope::Project, &resumption).await,
        "pauses::set" => pauses::set(tx, &pause).await,
        "pauses::clear" => pauses::clear(tx, pause.scope).await,
        "orders::set" => orders::set(tx, &[id], &order).await.map(drop),
        "orders::clear" => orders::clear(tx, id).await,
        "settings::set" => settings::set(tx, &ProjectSettings::default()).await,
        "brake::hold" => brake::hold(tx, host, id, None, NOON).await,
        "brake::release" => brake::release(tx, id).await,
        _ => return None,
    })
}

async fn plans(name: &str, tx: &Tx, of: &Of) -> Done {
    let (single, again) = (of.single.id, of.repeated.id);
    let later = window(ScheduleTarget::Site(of.site.id), 5, 6);
    let mut other_again = of.repeated.spec.clone();
    other_again.name = other();
    let token = JoinTokenSpec {
        name: other(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
    };
    Some(match name {
        "schedules::create" => schedules::create(tx, &later, NOON).await.map(drop),
        "schedules::change" => schedules::change(tx, single, &later, NOON).await.map(drop),
        "schedules::delete" => schedules::delete(tx, single).await,
        "schedules::repeated::create" => repeated::create(tx, &other_again, NOON).await.map(drop),
        "schedules::repeated::change" => repeated::change(tx, again, &other_again, NOON)
            .await
            .map(drop),
        "schedules::repeated::delete" => repeated::delete(tx, again).await,
        "join_tokens::create" => join_tokens::create(tx, &token, [8; 32], NOON)
            .await
            .map(drop),
        "join_tokens::revoke" => join_tokens::revoke(tx, of.token, NOON).await.map(drop),
        "join_tokens::used" => join_tokens::used(tx, of.token, NOON).await,
        _ => return None,
    })
}

async fn history(name: &str, tx: &Tx, of: &Of) -> Done {
    let new = FoundVersion {
        name: "new".into(),
        architecture: "amd64".into(),
        version: "1".into(),
    };
    let (looks, patience) = (numbered(RunEvent::VerifyBegun, 2), Patience::default());
    let run = Subject::Run(of.run.id);
    Some(match name {
        "runs::advance" => runs::advance(tx, run, &looks, &patience, NOON)
            .await
            .map(drop),
        "runs::advance_by" => {
            let together = Together {
                first: &looks,
                rest: &[],
                patience: &patience,
                now: NOON,
            };
            let moved = runs::advance_by(tx, run, &together, &mut |_| {}).await;
            moved.map(drop)
        }
        "runs::grant" => runs::grant(tx, &of.run, Some(Scope::Project), NOON).await,
        "runs::delete" => runs::delete(tx, of.run.id).await,
        "contents::put" => contents::put(tx, &[7; 32], "other", NOON).await,
        "versions::see" => versions::see(tx, &[new], NOON).await.map(drop),
        _ => return None,
    })
}
