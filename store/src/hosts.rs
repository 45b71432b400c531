//! Hosts.

mod standing;
mod summary;
mod whole;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::host::{Host, HostState, Registration, SerialNumber};
use evenkeel_domain::id::{HostId, ProviderId, SiteId};
use evenkeel_domain::place::Metadata;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, Condition, ExprTrait, QueryFilter, QueryOrder, QuerySelect, Set,
};
use uuid::Uuid;

use crate::assignments;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::host::{ActiveModel, Column, Entity, Model};
use crate::rows::{Kept, named};
use crate::tx::Tx;
use crate::{ids, keyed};

pub use standing::{INVALIDATED, invalidate, want};
pub use summary::{HostSummary, summary};
pub use whole::{WholeHost, find_many_whole, find_whole};

/// Makes a host that has not spoken yet.
///
/// # Errors
/// Its UUID, or its serial number if it has no UUID, is taken in the project.
pub async fn register(tx: &Tx, host: &Registration, now: Time) -> Result<Host, StoreError> {
    let id = HostId::nth(ids::next(tx.conn(), "host_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(host.name.to_string()),
        uuid: Set(host.uuid),
        serial: Set(host
            .serial
            .as_ref()
            .map(|serial| serial.as_str().to_owned())),
        hostname: Set(String::new()),
        desired_state: Set(host.desired().name().to_owned()),
        current_state: Set(HostState::Registered.name().to_owned()),
        note: Set(String::new()),
        public_key: Set(Vec::new()),
        status: Set("Not Connected".to_owned()),
        status_indication: Set(Indication::Unspecified.name().to_owned()),
        status_at: Set(now),
        created_at: Set(now),
        updated_at: Set(now),
        site_id: Set(None),
        metadata: Set(Kept(Metadata::default())),
        provider_id: Set(None),
        user_lvm_size: Set(host.user_lvm_size.cast_signed()),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The host with this id.
///
/// # Errors
/// There is none in the project.
pub async fn find(tx: &Tx, id: HostId) -> Result<Host, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The hosts with these ids that there are, in no order.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many(tx: &Tx, ids: &[HostId]) -> Result<Vec<Host>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// The host with this UUID.
///
/// # Errors
/// There is none in the project.
pub async fn find_by_uuid(tx: &Tx, uuid: Uuid) -> Result<Host, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::Uuid.eq(uuid))
        .one(tx.conn())
        .await?;
    found
        .ok_or(StoreError::NotFound { what: Entity::WHAT })?
        .try_into()
}

/// The host that was registered with this UUID, else the one with this serial number and no UUID.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_known(
    tx: &Tx,
    uuid: Uuid,
    serial: Option<&SerialNumber>,
) -> Result<Option<Host>, StoreError> {
    let by_uuid = Column::Uuid.eq(uuid);
    let known = match serial {
        None => Condition::all().add(by_uuid),
        Some(serial) => Condition::any().add(by_uuid).add(
            Column::Serial
                .eq(serial.as_str())
                .and(Column::Uuid.is_null()),
        ),
    };
    // A known UUID comes before a known serial number.
    let found = tx
        .scope::<Entity>()
        .filter(known)
        .order_by_asc(Expr::col(Column::Uuid).is_null());
    found.one(tx.conn()).await?.map(Host::try_from).transpose()
}

/// The host with this id, locked: machines that claim to be the same one are judged one after the other. Whoever needs
/// the state of its node as well locks that first.
///
/// # Errors
/// There is none in the project.
pub async fn lock(tx: &Tx, id: HostId) -> Result<Host, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .lock_exclusive()
        .one(tx.conn())
        .await?;
    let what = Entity::WHAT;
    found.ok_or(StoreError::NotFound { what })?.try_into()
}

/// What a machine says of itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its serial number, if it has one.
    pub serial: Option<SerialNumber>,
    /// What it calls itself.
    pub hostname: String,
    /// The key that it will prove itself with.
    pub public_key: Vec<u8>,
}

/// Notes that the machine has come.
///
/// # Errors
/// There is no such host, or another one has its UUID.
pub async fn joined(tx: &Tx, id: HostId, joining: &Joining, now: Time) -> Result<Host, StoreError> {
    let host = find(tx, id).await?;
    let serial = host.serial.or_else(|| joining.serial.clone());
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(match host.name.as_str() {
            "" => Name::tidy(&joining.hostname).to_string(),
            name => name.to_owned(),
        }),
        uuid: Set(Some(joining.uuid)),
        serial: Set(serial.map(|serial| serial.as_str().to_owned())),
        hostname: Set(joining.hostname.clone()),
        current_state: Set(HostState::Onboarded.name().to_owned()),
        public_key: Set(joining.public_key.clone()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?.try_into()
}

/// Notes what a host is doing, if it is something else than before and the host is believed.
///
/// # Errors
/// The database cannot be reached.
pub async fn set_status(tx: &Tx, id: HostId, status: &Status) -> Result<(), StoreError> {
    let change = tx
        .change::<Entity>()
        .col_expr(Column::Status, Expr::value(status.text.clone()))
        .col_expr(
            Column::StatusIndication,
            Expr::value(status.indication.name()),
        )
        .col_expr(Column::StatusAt, Expr::value(status.at))
        .col_expr(
            Column::CurrentState,
            Expr::value(HostState::Onboarded.name()),
        )
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::Status.ne(status.text.clone()))
        .filter(Column::CurrentState.is_not_in(distrusted()));
    change.exec(tx.conn()).await?;
    Ok(())
}

/// The states in which a host is not believed.
fn distrusted() -> impl Iterator<Item = &'static str> {
    let states = HostState::ALL.iter().filter(|state| !state.is_trusted());
    states.map(|state| state.name())
}

/// Notes the serial number of a host that has none yet.
///
/// # Errors
/// The database cannot be reached.
pub(crate) async fn note_serial(
    tx: &Tx,
    id: HostId,
    serial: &SerialNumber,
) -> Result<(), StoreError> {
    let change = tx
        .change::<Entity>()
        .col_expr(Column::Serial, Expr::value(serial.as_str()))
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::Serial.is_null());
    change.exec(tx.conn()).await?;
    Ok(())
}

/// What a person may change of a host. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostChange {
    /// Its name.
    pub name: Option<Name>,
    /// Where it stands; none is nowhere.
    pub site: Option<Option<SiteId>>,
    /// Its labels, all of them.
    pub metadata: Option<Metadata>,
}

/// Changes a host.
///
/// # Errors
/// There is no such host or site in the project.
pub async fn change(
    tx: &Tx,
    id: HostId,
    change: &HostChange,
    now: Time,
) -> Result<Host, StoreError> {
    tx.write_wanted().await?;
    find(tx, id).await?;
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
        row.metadata = Set(Kept(metadata.clone()));
    }
    row.update(tx.conn()).await?.try_into()
}

/// Removes a host. What was assigned to it and scheduled for it goes with it.
///
/// # Errors
/// There is none in the project, or an instance is on it.
pub async fn delete(tx: &Tx, id: HostId) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Host(id)).await
}

impl TryFrom<Model> for Host {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "hosts";
        let state = |name: &str, column| named(HostState::from_name(name), TABLE, row.id, column);
        let serial = SerialNumber::parse("serial", row.serial.as_deref().unwrap_or_default());
        let site = row.site_id.map(|id| SiteId::from_bits(id.cast_unsigned()));
        let indication = Indication::from_name(&row.status_indication);
        let lvm_size = u32::try_from(row.user_lvm_size).ok();
        Ok(Self {
            id: HostId::from_bits(row.id.cast_unsigned()),
            name: named(Name::parse("name", &row.name).ok(), TABLE, row.id, "name")?,
            uuid: row.uuid,
            serial: named(serial.ok(), TABLE, row.id, "serial")?,
            desired: state(&row.desired_state, "desired_state")?,
            current: state(&row.current_state, "current_state")?,
            status: Status {
                indication: named(indication, TABLE, row.id, "status_indication")?,
                text: row.status,
                at: row.status_at,
            },
            hostname: row.hostname,
            note: row.note,
            public_key: row.public_key,
            created_at: row.created_at,
            site,
            provider: row
                .provider_id
                .map(|id| ProviderId::from_bits(id.cast_unsigned())),
            metadata: row.metadata.0,
            user_lvm_size: named(lvm_size, TABLE, row.id, "user_lvm_size")?,
            updated_at: row.updated_at,
        })
    }
}
