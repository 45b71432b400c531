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

    /// The target that the columns of a row name.
    pub fn read(
        host: Option<i32>,
        site: Option<i32>,
        region: Option<i32>,
    ) -> Option<ScheduleTarget> {
        let to_host = |bits: i32| ScheduleTarget::Host(HostId::from_bits(bits.cast_unsigned()));
        let to_site = |bits: i32| ScheduleTarget::Site(SiteId::from_bits(bits.cast_unsigned()));
        let to_region =
            |bits: i32| ScheduleTarget::Region(RegionId::from_bits(bits.cast_unsigned()));
        host.map(to_host).or(site.map(to_site)).or(region.map(to_region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_written() {
        let id = 0xffff_fffe;
        for target in [
            None,
            Some(ScheduleTarget::Host(HostId::from_bits(id))),
            Some(ScheduleTarget::Site(SiteId::from_bits(id))),
            Some(ScheduleTarget::Region(RegionId::from_bits(id))),
        ] {
            let bits = TargetBits::from_target(target);
            assert_eq!(TargetBits::read(bits.host, bits.site, bits.region), target);
        }
    }
}
