//! Looks at polls of one project together.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_store::decisions::{self, About, World};
use evenkeel_store::nodes::{self, Brief, Machine};
use evenkeel_store::{Chain, StoreError, Tx};

use super::queue::{Found, Seat, Waiting};
use super::{Case, Inner, Looked, Verdict, Words};
use crate::view::{Learnt, Pass};
use crate::{agent, eim, status};

/// Looks at those who wait until nobody does.
pub async fn work(mut seat: Seat) {
    while let Some(batch) = seat.next() {
        // A task of its own, so that a panic ends this batch and not the work.
        let looked = Lifecycle::detach(answer(Arc::clone(seat.desk()), batch)).await;
        if let Err(panic) = looked {
            tracing::error!(error = %panic, "a batch of polls was given up");
        }
    }
}

/// Looks at a batch, remembers what it is answered, and answers it.
async fn answer(desk: Arc<Inner>, batch: Vec<Waiting>) {
    let Some(tenant) = batch.first().map(|waiting| waiting.case.who.tenant()) else {
        return;
    };
    let begun = Instant::now();
    // What is committed from here on may be missed below, and is applied in a later pass.
    let as_of = desk.view.pass();
    let cases: Vec<&Case> = batch.iter().map(|waiting| &waiting.case).collect();
    let judged = async { desk.judge(tenant, &cases).await.map_err(status::store) };
    let judged = status::within(judged).await;
    count(&desk, batch.len(), begun);
    match judged {
        Ok(judged) => {
            for (waiting, looked) in batch.into_iter().zip(judged.looked) {
                let verdict = desk.remember(&waiting.case, looked, as_of, judged.at);
                waiting.answer(verdict);
            }
        }
        Err(refused) => {
            for waiting in batch {
                waiting.answer(Err(refused.clone()));
            }
        }
    }
}

fn count(desk: &Inner, length: usize, begun: Instant) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    desk.load.had_turns(length);
    desk.meters.batch.record(f64::from(length));
    desk.meters.seconds.record(begun.elapsed().as_secs_f64());
}

/// What was found of a batch, in its order.
pub struct Judged {
    /// The instant by which it was judged.
    pub at: Time,
    /// Each, and what its node belongs to if it is there.
    pub looked: Vec<(Looked, Option<Chain>)>,
}

impl Inner {
    /// Looks at polls of a project in one transaction. Nothing is written, locked or remembered.
    ///
    /// # Errors
    /// The database cannot be reached. One node that cannot be read is no error for the others.
    pub async fn judge(&self, tenant: TenantId, cases: &[&Case]) -> Result<Judged, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let at = self.clock.now();
        let machines: Vec<Machine> = cases.iter().map(|case| case.who.machine()).collect();
        let mut nodes = Vec::with_capacity(machines.len());
        for (machine, brief) in machines.iter().zip(nodes::briefs(&tx, &machines).await?) {
            nodes.push(match brief {
                Ok(Some(node)) => Ok(node),
                Ok(None) => Err(missing(&tx, *machine).await),
                Err(error) => Err(Looked::Refused(status::store(error))),
            });
        }
        let there = nodes.iter().flatten();
        let abouts: Vec<About<'_>> = there.map(|(host, node)| About::brief(host, node)).collect();
        let horizon = self.settings.horizon();
        let worlds = decisions::worlds(&tx, &abouts, &horizon, at).await?;
        drop(tx);
        let mut worlds = worlds.into_iter();
        let looked = cases.iter().zip(nodes).map(|(case, node)| match node {
            Ok((host, node)) => look(case, (&host, &node), worlds.next(), at),
            Err(looked) => (looked, None),
        });
        Ok(Judged {
            at,
            looked: looked.collect(),
        })
    }

    /// Remembers what a poll is answered. None if it is not known yet.
    pub(super) fn remember(
        &self,
        case: &Case,
        (looked, chain): (Looked, Option<Chain>),
        as_of: Option<Pass>,
        now: Time,
    ) -> Found {
        let (answer, until, chain) = match (looked, chain) {
            (Looked::Quiet { answer, until }, Some(chain)) => (*answer, until, chain),
            (Looked::Quiet { .. } | Looked::News, _) => return Ok(Some(Verdict::News)),
            (Looked::Alone, _) => return Ok(None),
            (Looked::Refused(refused), _) => return Err(refused),
        };
        let learnt = Learnt {
            who: case.who,
            host: chain.host,
            instance: chain.instance,
            site: chain.site,
            regions: chain.regions,
            asked: case.asked,
            answer,
            until,
            as_of,
        };
        Ok(Some(Verdict::Quiet(self.view.learn(learnt, now))))
    }
}

/// Why a node is not there; news if it has just come.
async fn missing(tx: &Tx, machine: Machine) -> Looked {
    match nodes::read(tx, machine).await {
        Ok(_) => Looked::News,
        Err(error) => Looked::Refused(status::store(error)),
    }
}

fn look(
    case: &Case,
    (host, node): (&Host, &Brief),
    world: Option<Result<World, StoreError>>,
    now: Time,
) -> (Looked, Option<Chain>) {
    let world = match world {
        Some(Ok(world)) => world,
        Some(Err(error)) => return (Looked::Refused(status::store(error)), None),
        None => return (Looked::News, None),
    };
    let looked = match &case.words {
        Words::Own(words) => agent::quiet::own(host, node, &world, words, now),
        Words::Eim { sample, available } => {
            eim::quiet::eim((host, node), &world, (sample, available), now)
        }
    };
    (looked, Some(world.chain))
}
