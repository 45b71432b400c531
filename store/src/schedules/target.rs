//! What schedules are meant for, as both tables of schedules keep it: at most one of three columns.

use evenkeel_domain::id::{HostId, RegionId, SiteId};
use evenkeel_domain::schedule::ScheduleTarget;
use sea_orm::{ColumnTrait, Condition};

use crate::chain::Chain;
use crate::tx::among;

/// The values of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetBits {
    pub host: Option<i32>,
    pub site: Option<i32>,
    pub region: Option<i32>,
}

impl TargetBits {
    pub fn of(target: Option<ScheduleTarget>) -> Self {
        let mut bits = Self::default();
        match target {
            None => {}
            Some(ScheduleTarget::Host(id)) => bits.host = Some(id.bits().cast_signed()),
            Some(ScheduleTarget::Site(id)) => bits.site = Some(id.bits().cast_signed()),
            Some(ScheduleTarget::Region(id)) => bits.region = Some(id.bits().cast_signed()),
        }
        bits
    }

    pub fn target(self) -> Option<ScheduleTarget> {
        let host = |bits: i32| ScheduleTarget::Host(HostId::from_bits(bits.cast_unsigned()));
        let site = |bits: i32| ScheduleTarget::Site(SiteId::from_bits(bits.cast_unsigned()));
        let region = |bits: i32| ScheduleTarget::Region(RegionId::from_bits(bits.cast_unsigned()));
        self.host
            .map(host)
            .or(self.site.map(site))
            .or(self.region.map(region))
    }
}

/// The columns of a table.
#[derive(Clone, Copy, Debug)]
pub struct Columns<C> {
    pub host: C,
    pub site: C,
    pub region: C,
}

impl<C: ColumnTrait> Columns<C> {
    /// Meant for exactly this.
    pub fn is(&self, target: ScheduleTarget) -> Condition {
        let (column, bits) = match target {
            ScheduleTarget::Host(id) => (&self.host, id.bits()),
            ScheduleTarget::Site(id) => (&self.site, id.bits()),
            ScheduleTarget::Region(id) => (&self.region, id.bits()),
        };
        Condition::all().add(column.eq(bits.cast_signed()))
    }

    /// Meant for the host of a chain, or for something that it is in.
    pub fn along(&self, chain: &Chain) -> Condition {
        let mut any = Condition::any().add(self.is(ScheduleTarget::Host(chain.host)));
        if let Some(site) = chain.site {
            any = any.add(self.is(ScheduleTarget::Site(site)));
        }
        if !chain.regions.is_empty() {
            let regions = chain.regions.iter().map(|id| id.bits().cast_signed());
            any = any.add(among(self.region, regions));
        }
        any
    }
}
