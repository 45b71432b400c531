//! State transitions of hosts.

use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, HostState, InvalidationNote};
use evenkeel_domain::id::HostId;
use evenkeel_domain::status::Indication;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::{Conflict, StoreError};
use crate::keyed::KeyedEntity;
use crate::rows::host::{ActiveModel, Entity};
use crate::tx::Tx;

/// Status of a host that is no longer trusted (EIM's text).
pub const INVALIDATED_STATUS: &str = "Invalidated";

/// Sets the desired state of a host.
///
/// # Errors
/// The host does not exist in the project, or its current state does not allow the change.
pub async fn set_desired_state(
    tx: &Tx,
    id: HostId,
    state: HostState,
    now: Time,
) -> Result<Host, StoreError> {
    let host = lock_for_transition(tx, id, state).await?;
    if host.desired == state {
        return Ok(host);
    }
    let row =
        ActiveModel { desired_state: Set(state.name().to_owned()), ..base_update(tx, id, now) };
    row.update(tx.conn()).await?.try_into()
}

/// Withdraws the trust in a host at once: machines that claim to be this host are refused from now
/// on.
///
/// # Errors
/// The host does not exist in the project, or it was never trusted.
pub async fn invalidate(
    tx: &Tx,
    id: HostId,
    note: &InvalidationNote,
    now: Time,
) -> Result<Host, StoreError> {
    let untrusted = HostState::Untrusted;
    lock_for_transition(tx, id, untrusted).await?;
    let row = ActiveModel {
        desired_state: Set(untrusted.name().to_owned()),
        current_state: Set(untrusted.name().to_owned()),
        note: Set(note.as_str().to_owned()),
        status: Set(INVALIDATED_STATUS.to_owned()),
        status_indication: Set(Indication::Idle.name().to_owned()),
        status_at: Set(now),
        ..base_update(tx, id, now)
    };
    row.update(tx.conn()).await?.try_into()
}

/// Locks the host and checks the transition. No start is granted to its node meanwhile, so an
/// untrusted node never gets a permit.
async fn lock_for_transition(tx: &Tx, id: HostId, state: HostState) -> Result<Host, StoreError> {
    tx.lock_for_change().await?;
    let host = super::lock(tx, id).await?;
    // Only the release that knows a state knows which state may follow. A lost machine is refused in
    // any state.
    let is_unknown = host.has_unknown_state && state != HostState::Untrusted;
    if host.current.may_become(state) && !is_unknown {
        return Ok(host);
    }
    let from = if is_unknown { "in a state of a newer release" } else { host.current.name() };
    Err(Conflict::Transition { what: Entity::RESOURCE, from, to: state.name() }.into())
}

fn base_update(tx: &Tx, id: HostId, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        updated_at: Set(now),
        ..Default::default()
    }
}
