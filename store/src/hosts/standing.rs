//! Where hosts should stand.

use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, HostState, Note};
use evenkeel_domain::id::HostId;
use evenkeel_domain::status::Indication;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::{Conflict, StoreError};
use crate::keyed::Keyed;
use crate::rows::host::{ActiveModel, Entity};
use crate::tx::Tx;

/// What a host shows that must not be believed any more (northbound section 1.3).
pub const INVALIDATED: &str = "Invalidated";

/// Says where a host should stand.
///
/// # Errors
/// There is none in the project, or it cannot come to stand there from where it stands.
pub async fn want(tx: &Tx, id: HostId, state: HostState, now: Time) -> Result<Host, StoreError> {
    let host = may_become(tx, id, state).await?;
    if host.desired == state {
        return Ok(host);
    }
    let row = ActiveModel {
        desired_state: Set(state.name().to_owned()),
        ..changed(tx, id, now)
    };
    row.update(tx.conn()).await?.try_into()
}

/// Takes the trust in a host back, at once: whoever claims to be it is refused from now on.
///
/// # Errors
/// There is none in the project, or it cannot lose the trust because it never had it.
pub async fn invalidate(tx: &Tx, id: HostId, note: &Note, now: Time) -> Result<Host, StoreError> {
    let untrusted = HostState::Untrusted;
    may_become(tx, id, untrusted).await?;
    let row = ActiveModel {
        desired_state: Set(untrusted.name().to_owned()),
        current_state: Set(untrusted.name().to_owned()),
        note: Set(note.as_str().to_owned()),
        status: Set(INVALIDATED.to_owned()),
        status_indication: Set(Indication::Idle.name().to_owned()),
        status_at: Set(now),
        ..changed(tx, id, now)
    };
    row.update(tx.conn()).await?.try_into()
}

/// The host, locked, if it may come to stand there. Nobody judges its node meanwhile, so that none is given leave that
/// is not believed any more.
async fn may_become(tx: &Tx, id: HostId, state: HostState) -> Result<Host, StoreError> {
    tx.write_wanted().await?;
    let host = super::lock(tx, id).await?;
    if host.current.may_become(state) {
        return Ok(host);
    }
    Err(Conflict::Transition {
        what: Entity::WHAT,
        from: host.current.name(),
        to: state.name(),
    }
    .into())
}

fn changed(tx: &Tx, id: HostId, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        updated_at: Set(now),
        ..Default::default()
    }
}
