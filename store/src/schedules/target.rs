//! Targets of schedules in both schedule tables: at most one of three columns is set.

use evenkeel_domain::id::{HostId, RegionId, SiteId};
use evenkeel_domain::schedule::ScheduleTarget;

/// The values of the target columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetBits {
    pub host: Option<i32>,
    pub site: Option<i32>,
    pub region: Option<i32>,
}

impl TargetBits {
    pub fn from_target(target: Option<ScheduleTarget>) -> Self {
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
        self.host.map(host).or(self.site.map(site)).or(self.region.map(region))
    }
}
