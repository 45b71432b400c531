//! Worlds, put together from what is wanted of nodes and what is their own.

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Assigned;
use evenkeel_domain::decide::{Protocol, Wanted};
use evenkeel_domain::schedule::{Ahead, RepeatedSchedule, ScheduleTarget};
use evenkeel_domain::window::{Window, Windows};

use super::own::Own;
use super::shared::Shared;
use super::{About, Horizon, World};
use crate::chain::Chain;
use crate::error::StoreError;

/// Puts worlds of one instant together.
pub struct Together<'a> {
    shared: &'a Shared,
    horizon: &'a Horizon,
    now: Time,
    /// The windows of the schedules of hosts and places, worked out once for all nodes that look equally far ahead.
    opened: HashMap<(ScheduleTarget, Time, usize), Vec<Window>>,
}

impl<'a> Together<'a> {
    pub fn new(shared: &'a Shared, horizon: &'a Horizon, now: Time) -> Self {
        Self {
            shared,
            horizon,
            now,
            opened: HashMap::new(),
        }
    }

    /// The world of a node. How far limits are used up is not counted.
    pub fn world(&mut self, about: &About<'_>, own: Own) -> Result<World, StoreError> {
        let shared = self.shared;
        let chain = shared.chain(about);
        let known = shared.known(about, &own)?;
        let policies = shared.policies(&chain);
        let ahead = self.ahead(about.protocol, &policies);
        let ids = policies.iter().map(|assigned| assigned.policy.id);
        let wanted = Wanted {
            pauses: shared.pauses(chain.site, ids),
            images: shared.images(&known),
            windows: self.windows(&chain, &ahead),
            repeated: self.repeated(&chain),
            fetch_ahead: self.horizon.fetch_ahead,
            order: own.order,
            policies,
        };
        Ok(World {
            instance: about.instance,
            chain,
            known,
            wanted,
            run: own.run,
            told: about.delivered.clone(),
            slots_end: None,
        })
    }

    /// Which windows matter: those that leave may be given ahead for, to nodes that understand it.
    fn ahead(&self, speaks: &Protocol, policies: &[Assigned]) -> Ahead {
        let (longest, limit) = match speaks {
            Protocol::Own { .. } => {
                let days = policies.iter().map(|a| a.policy.spec.offline_days).max();
                (TimeDelta::days(days.unwrap_or_default().into()), 64)
            }
            Protocol::Eim | Protocol::Unknown => (TimeDelta::zero(), 8),
        };
        Ahead {
            now: self.now,
            until: self.now + longest.max(self.horizon.fetch_ahead),
            limit,
            max_window: self.horizon.max_window,
            opens: self.shared.opens(),
        }
    }

    /// The windows along a chain that matter.
    fn windows(&mut self, chain: &Chain, ahead: &Ahead) -> Windows {
        let shared = self.shared;
        let mut windows = Vec::new();
        for target in targets(chain) {
            let Some(scheduled) = shared.scheduled(target) else {
                continue;
            };
            let alike = (target, ahead.until, ahead.limit);
            let opened = self.opened.entry(alike);
            let opened = opened.or_insert_with(|| scheduled.windows_from(ahead));
            windows.extend_from_slice(opened);
        }
        Windows::from_now_on(windows, self.now)
    }

    /// The repeated schedules along a chain that open windows, by id as the database orders them.
    fn repeated(&self, chain: &Chain) -> Vec<RepeatedSchedule> {
        let opens = self.shared.opens();
        let along = targets(chain).filter_map(|target| self.shared.scheduled(target));
        let all = along.flat_map(|scheduled| &scheduled.repeated);
        let mut all: Vec<_> = all
            .filter(|schedule| opens.admits(schedule.spec.status))
            .cloned()
            .collect();
        all.sort_unstable_by_key(|schedule| schedule.id.bits().cast_signed());
        all
    }
}

/// The host and the places of a chain, as schedules are meant for them.
fn targets(chain: &Chain) -> impl Iterator<Item = ScheduleTarget> {
    let host = [ScheduleTarget::Host(chain.host)].into_iter();
    let site = chain.site.map(ScheduleTarget::Site);
    let regions = chain.regions.iter().copied().map(ScheduleTarget::Region);
    host.chain(site).chain(regions)
}
