//! What a decision is made from, read in one transaction. The poll, the begin and the explanation read the same.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Decision, NodeFacts, Wanted, decide};
use evenkeel_domain::host::Host;
use evenkeel_domain::run::{OpenRun, UpdateRun};
use evenkeel_domain::window::Windows;

use crate::error::StoreError;
use crate::nodes::NodeState;
use crate::os_profiles;
use crate::tx::Tx;
use crate::{assignments, runs, schedules};

/// Server-wide settings that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// How long before its window a node may fetch.
    pub fetch_ahead: TimeDelta,
    /// How long a window of an open-ended schedule is.
    pub max_window: TimeDelta,
}

impl Default for Horizon {
    fn default() -> Self {
        Self {
            fetch_ahead: TimeDelta::hours(6),
            max_window: TimeDelta::hours(24),
        }
    }
}

/// Everything that a decision is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// What is known about the node.
    pub known: NodeFacts,
    /// What applies to it.
    pub wanted: Wanted,
    /// Its run that is not over.
    pub run: Option<UpdateRun>,
}

impl World {
    /// What the node should do now, and why.
    #[must_use]
    pub fn decide(&self, now: Time) -> Decision {
        let open: Option<OpenRun> = self.run.as_ref().and_then(UpdateRun::as_open);
        decide(&self.known, &self.wanted, open.as_ref(), now)
    }
}

/// Reads what a decision about a node is made from.
///
/// # Errors
/// The database cannot be reached.
pub async fn world(
    tx: &Tx,
    host: &Host,
    node: &NodeState,
    horizon: &Horizon,
    now: Time,
) -> Result<World, StoreError> {
    let os = os_profiles::find(tx, node.os).await?;
    let known = NodeFacts {
        trusted: host.is_trusted(),
        provisioned: node.provisioned,
        os_kind: os.spec.kind,
        speaks: node.protocol.clone(),
        last_end: node.last_end.clone(),
    };
    let to_come = schedules::to_come(tx, host.id, now).await?;
    let windows = to_come
        .iter()
        .filter_map(|schedule| schedule.window(now, horizon.max_window));
    let wanted = Wanted {
        policies: assignments::along(tx, node.instance, host.id).await?,
        windows: Windows::from_now_on(windows, now),
        fetch_ahead: horizon.fetch_ahead,
    };
    Ok(World {
        known,
        wanted,
        run: runs::find_open(tx, node.instance).await?,
    })
}
