//! Hosts.

mod details;
mod states;
mod summary;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::host::{Host, HostState, Registration, SerialNumber};
use evenkeel_domain::id::{HostId, ProviderId, SiteId};
use evenkeel_domain::location::Metadata;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, Condition, ExprTrait, QueryFilter, QueryOrder, QuerySelect, Set,
};
use uuid::Uuid;

use crate::assignments;
use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::host::{ActiveModel, Column, Entity, Model};
use crate::rows::{JsonColumn, instance, or_corrupt};
use crate::tx::{Tx, execute};
use crate::{ids, keyed};

pub use details::{HostDetails, find_details, find_many_details};
pub use states::{INVALIDATED_STATUS, invalidate, set_desired_state};
pub use summary::{HostSummary, summary};

/// Creates a host that has not connected yet.
///
/// # Errors
/// The project already has its UUID, or its serial number if it has no UUID.
pub async fn register(tx: &Tx, host: &Registration, now: Time) -> Result<Host, StoreError> {
    let id = HostId::nth(ids::next(tx.conn(), "host_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(host.name.to_string()),
        uuid: Set(host.uuid),
        serial: Set(host.serial.as_ref().map(|serial| serial.as_str().to_owned())),
        hostname: Set(String::new()),
        desired_state: Set(host.desired().name().to_owned()),
        current_state: Set(host.current.name().to_owned()),
        note: Set(String::new()),
        public_key: Set(Vec::new()),
        status: Set("Not Connected".to_owned()),
        status_indication: Set(Indication::Unspecified.name().to_owned()),
        status_at: Set(now),
        created_at: Set(now),
        updated_at: Set(now),
        site_id: Set(None),
        metadata: Set(JsonColumn(Metadata::default())),
        provider_id: Set(None),
        user_lvm_size: Set(host.user_lvm_size.cast_signed()),
        uuid_text: Set(match host.uuid {
            Some(uuid) if uuid.to_string() != host.uuid_text => host.uuid_text.clone(),
            _ => String::new(),
        }),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The host with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: HostId) -> Result<Host, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The hosts with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[HostId]) -> Result<Vec<Host>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// The host with this UUID.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_by_uuid(tx: &Tx, uuid: Uuid) -> Result<Host, StoreError> {
    let row = tx.scope::<Entity>().filter(Column::Uuid.eq(uuid)).one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?.try_into()
}

/// The host registered with this UUID, otherwise the one with this serial number and no UUID.
pub async fn find_registered(
    tx: &Tx,
    uuid: Uuid,
    serial: Option<&SerialNumber>,
) -> Result<Option<Host>, StoreError> {
    let by_uuid = Column::Uuid.eq(uuid);
    let condition = match serial {
        None => Condition::all().add(by_uuid),
        Some(serial) => Condition::any()
            .add(by_uuid)
            .add(Column::Serial.eq(serial.as_str()).and(Column::Uuid.is_null())),
    };
    // A matching UUID takes precedence over a matching serial number.
    let query =
        tx.scope::<Entity>().filter(condition).order_by_asc(Expr::col(Column::Uuid).is_null());
    query.one(tx.conn()).await?.map(Host::try_from).transpose()
}

/// The host with this id, locked, so that machines that claim the same host are handled one after
/// the other. A caller that also needs the node state must lock that first.
///
/// # Errors
/// It does not exist in the project.
pub async fn lock(tx: &Tx, id: HostId) -> Result<Host, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .lock_exclusive()
        .one(tx.conn())
        .await?;
    let what = Entity::RESOURCE;
    row.ok_or(StoreError::NotFound { what })?.try_into()
}

/// The data that a machine sends when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    pub uuid: Uuid,
    pub serial: Option<SerialNumber>,
    /// Its own host name.
    pub hostname: String,
    /// The public key that it will authenticate with.
    pub public_key: Vec<u8>,
}

/// Records that the machine of a host has joined.
///
/// # Errors
/// The host does not exist, or another host has the UUID.
pub async fn record_join(
    tx: &Tx,
    id: HostId,
    joining: &JoinRequest,
    now: Time,
) -> Result<Host, StoreError> {
    let host = find(tx, id).await?;
    let serial = host.serial.or_else(|| joining.serial.clone());
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(match host.name.as_str() {
            "" => Name::sanitized(&joining.hostname).to_string(),
            name => name.to_owned(),
        }),
        uuid: Set(Some(joining.uuid)),
        serial: Set(serial.map(|serial| serial.as_str().to_owned())),
        hostname: Set(joining.hostname.clone()),
        current_state: if host.has_unknown_state {
            sea_orm::NotSet
        } else {
            Set(HostState::Onboarded.name().to_owned())
        },
        public_key: Set(joining.public_key.clone()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Stores the certificate with which secrets are encrypted for the node of a host, in DER. Nothing
/// is recorded in the change log.
///
/// # Errors
/// The host does not exist in the project, or is enrolled with another public key.
pub async fn store_decryption_certificate(
    tx: &Tx,
    id: HostId,
    public_key: &[u8],
    certificate: &[u8],
) -> Result<(), StoreError> {
    let sql = "UPDATE hosts SET decryption_certificate = $4 WHERE tenant_id = $1 AND id = $2 AND public_key = $3";
    let values = [
        tx.tenant().uuid().into(),
        id.bits().cast_signed().into(),
        public_key.to_vec().into(),
        certificate.to_vec().into(),
    ];
    match execute(tx.conn(), sql, values).await? {
        1 => Ok(()),
        _ => Err(StoreError::NotFound { what: Entity::RESOURCE }),
    }
}

/// Sets the status of a host if it changed and the host is trusted.
pub async fn set_status(tx: &Tx, id: HostId, status: &Status) -> Result<(), StoreError> {
    let change = tx
        .change::<Entity>()
        .col_expr(Column::Status, Expr::value(status.text.clone()))
        .col_expr(Column::StatusIndication, Expr::value(status.indication.name()))
        .col_expr(Column::StatusAt, Expr::value(status.at))
        .col_expr(Column::CurrentState, Expr::cust(onboarded_state_sql()))
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::Status.ne(status.text.clone()))
        .filter(Column::CurrentState.is_not_in(untrusted_states()));
    change.exec(tx.conn()).await?;
    Ok(())
}

/// The current state of a host after a contact: onboarded, unless only a newer release knows its
/// state.
fn onboarded_state_sql() -> String {
    let known = HostState::ALL.iter().map(|state| format!("'{}'", state.name()));
    let (known, onboarded) = (known.collect::<Vec<_>>().join(", "), HostState::Onboarded.name());
    format!("CASE WHEN current_state IN ({known}) THEN '{onboarded}' ELSE current_state END")
}

/// The states in which a host is not trusted.
fn untrusted_states() -> impl Iterator<Item = &'static str> {
    let states = HostState::ALL.iter().filter(|state| !state.is_trusted());
    states.map(|state| state.name())
}

/// Sets what the machine of a host reports: its own host name and its serial number.
pub async fn record_names(
    tx: &Tx,
    id: HostId,
    hostname: Option<&str>,
    serial: Option<&SerialNumber>,
) -> Result<(), StoreError> {
    if hostname.is_none() && serial.is_none() {
        return Ok(());
    }
    let mut change = tx.change::<Entity>().filter(Column::Id.eq(id.bits().cast_signed()));
    if let Some(hostname) = hostname {
        change = change.col_expr(Column::Hostname, Expr::value(hostname));
    }
    if let Some(serial) = serial {
        change = change.col_expr(Column::Serial, Expr::value(serial.as_str()));
    }
    change.exec(tx.conn()).await?;
    Ok(())
}

/// Changes to a host. Missing fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostChange {
    pub name: Option<Name>,
    /// Its site; the inner none removes it from its site.
    pub site: Option<Option<SiteId>>,
    /// All of its labels.
    pub metadata: Option<Metadata>,
}

/// Changes a host. An instance that still has the name of its host, as after an enrolment, gets the
/// new name as well.
///
/// # Errors
/// The host or the site does not exist in the project.
pub async fn change(
    tx: &Tx,
    id: HostId,
    change: &HostChange,
    now: Time,
) -> Result<Host, StoreError> {
    tx.lock_for_change().await?;
    let before = find(tx, id).await?;
    if let Some(name) = change.name.as_ref().filter(|name| **name != before.name) {
        rename_instance(tx, id, (&before.name, name), now).await?;
    }
    let mut row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        updated_at: Set(now),
        ..Default::default()
    };
    if let Some(name) = &change.name {
        row.name = Set(name.to_string());
    }
    if let Some(site) = change.site {
        row.site_id = Set(site.map(|site| site.bits().cast_signed()));
    }
    if let Some(metadata) = &change.metadata {
        row.metadata = Set(JsonColumn(metadata.clone()));
    }
    row.update(tx.conn()).await?.try_into()
}

/// Gives the instance of a host the new name of the host if it has the old one.
async fn rename_instance(
    tx: &Tx,
    host: HostId,
    (old, new): (&Name, &Name),
    now: Time,
) -> Result<(), StoreError> {
    if old.as_str().is_empty() {
        return Ok(());
    }
    tx.change::<instance::Entity>()
        .col_expr(instance::Column::Name, Expr::value(new.as_str()))
        .col_expr(instance::Column::UpdatedAt, Expr::value(now))
        .filter(instance::Column::HostId.eq(host.bits().cast_signed()))
        .filter(instance::Column::Name.eq(old.as_str()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

/// Deletes a host with its assignment and schedules.
///
/// # Errors
/// It does not exist in the project, or it has an instance.
pub async fn delete(tx: &Tx, id: HostId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Host(id)).await
}

impl TryFrom<Model> for Host {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "hosts";
        let desired = HostState::from_name(&row.desired_state);
        let current = HostState::from_name(&row.current_state);
        let site = row.site_id.map(|id| SiteId::from_bits(id.cast_unsigned()));
        let lvm_size = u32::try_from(row.user_lvm_size).ok();
        Ok(Self {
            id: HostId::from_bits(row.id.cast_unsigned()),
            name: Name::from_stored(&row.name),
            uuid: row.uuid,
            uuid_text: match row.uuid {
                Some(uuid) if row.uuid_text.is_empty() => uuid.to_string(),
                _ => row.uuid_text,
            },
            serial: SerialNumber::from_stored(row.serial.as_deref().unwrap_or_default()),
            has_unknown_state: desired.is_none() || current.is_none(),
            desired: desired.unwrap_or(HostState::Unspecified),
            current: current.unwrap_or(HostState::Unspecified),
            status: Status::from_stored(row.status, &row.status_indication, row.status_at),
            hostname: row.hostname,
            note: row.note,
            public_key: row.public_key,
            created_at: row.created_at,
            site,
            provider: row.provider_id.map(|id| ProviderId::from_bits(id.cast_unsigned())),
            metadata: row.metadata.0,
            user_lvm_size: or_corrupt(lvm_size, TABLE, row.id, "user_lvm_size")?,
            updated_at: row.updated_at,
        })
    }
}
