//! What the stories begin with.

use chrono::DateTime;
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::run::{AttemptId, Happening, Origin, RunEvent};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_domain::text::Name;
use evenkeel_store::runs::{Opening, Subject};
use evenkeel_store::{Store, hosts, instances, os_profiles, projects};
use uuid::Uuid;

pub const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

pub async fn project(store: &Store, name: &str) -> TenantId {
    let tx = store.fleet().await.expect("a transaction");
    let name = ProjectName::parse("name", name).expect("a name");
    let project = projects::create(&tx, &name, "", NOON)
        .await
        .expect("a project");
    tx.commit().await.expect("committed");
    project.id
}

pub fn registration(n: u128) -> Registration {
    let uuid = Uuid::from_u128(n).to_string();
    Registration::parse("edge", &uuid, "", true).expect("a registration")
}

pub fn bookworm() -> OsSpec {
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        codename: "bookworm".into(),
    };
    OsSpec::of_release(&release, "amd64").expect("a profile")
}

pub async fn node(store: &Store, tenant: TenantId, n: u128) -> (Host, Instance) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON)
        .await
        .expect("a host");
    let os = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("an os");
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
    };
    let instance = instances::create(&tx, &new, NOON)
        .await
        .expect("an instance");
    tx.commit().await.expect("committed");
    (host, instance)
}

pub fn attempt(instance: &Instance, n: u128) -> Subject {
    Subject::New(Box::new(Opening {
        instance: instance.id,
        name: "edge update".into(),
        description: "OS update".into(),
        attempt: Some(AttemptId(Uuid::from_u128(n))),
        origin: Origin {
            target: None,
            policy: None,
        },
    }))
}

pub fn numbered(event: RunEvent, number: u32) -> Happening {
    Happening {
        sequence: Some(number),
        ..Happening::of(event)
    }
}
