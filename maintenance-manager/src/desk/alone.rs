//! Looks at a poll whose answer takes more than is read for many at once: how old versions of packages are.

use evenkeel_store::decisions::{self, Reading};
use evenkeel_store::{StoreError, nodes};
use tonic::Status;

use super::batch::Judged;
use super::{Case, Desk, Inner, Lane, Looked, Verdict, Words, lost};
use crate::{agent, status};

impl Desk {
    /// Looks at a poll by itself, and remembers what it is answered. No more of either lane are looked at at once than
    /// batches.
    pub(super) async fn look_alone(&self, case: &Case) -> Result<Verdict, Status> {
        let inner = &self.0;
        let place = match case.lane {
            Lane::Poll => {
                let waits = inner.alone_waiting.try_acquire();
                let _waits = waits.map_err(|_| inner.busy(case.words.door()))?;
                let place = inner.alone.acquire();
                let place = tokio::time::timeout(inner.settings.desk.patience, place).await;
                place.map_err(|_| inner.busy(case.words.door()))?
            }
            // It has an answer already, and is in nobody's way.
            Lane::Held => inner.alone_held.acquire().await,
        };
        let _place = place.map_err(|_| lost())?;
        // What is committed from here on may be missed below, and is applied in a later pass.
        let as_of = inner.view.pass();
        let judged = async { inner.judge_alone(case).await.map_err(status::store) };
        let judged = status::within(judged).await?;
        let found = judged.looked.into_iter().next().ok_or_else(lost)?;
        inner
            .remember(case, found, as_of, judged.at)?
            .ok_or_else(lost)
    }
}

impl Inner {
    /// Judges a poll as a batch does, with what it takes beside that.
    ///
    /// # Errors
    /// The database cannot be reached, or the node cannot be read.
    pub(super) async fn judge_alone(&self, case: &Case) -> Result<Judged, StoreError> {
        let tx = self.store.tenant(case.who.tenant()).await?;
        let at = self.clock.now();
        let (host, node) = nodes::read(&tx, case.who.machine()).await?;
        let horizon = self.settings.horizon();
        let world = decisions::world(&tx, &host, &node, &horizon, Reading::Look(at)).await?;
        let looked = match &case.words {
            Words::Own(words) => agent::quiet::aged(&tx, (&host, &node), &world, words, at).await?,
            // How old versions are is nothing to one of the ancestor's.
            Words::Eim { .. } => Looked::News,
        };
        drop(tx);
        Ok(Judged {
            at,
            looked: vec![(looked, Some(world.chain))],
        })
    }
}
