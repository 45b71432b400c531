//! Assignments of policies: of the policies that fit an instance, the nearest one applies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{BadId, HostId, InstanceId, RegionId, SiteId};
use crate::invalid::Invalid;
use crate::os::Image;
use crate::policy::UpdatePolicy;

named! {
    /// Distance of an assignment from an instance, nearest first.
    Level {
        Instance = "instance",
        Host = "host",
        /// The site of its host.
        Site = "site",
        /// The region of that site, or a region that contains it.
        Region = "region",
        /// The whole project.
        Project = "project",
    }
}

/// What a policy is assigned to. Printed as the id, or as `project`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Instance(InstanceId),
    /// The instance of a host.
    Host(HostId),
    /// All instances at a site.
    Site(SiteId),
    /// All instances in a region and in the regions inside it.
    Region(RegionId),
    /// All instances of the project.
    Project,
}

impl Scope {
    /// The distance of this scope from an instance.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Instance(_) => Level::Instance,
            Self::Host(_) => Level::Host,
            Self::Site(_) => Level::Site,
            Self::Region(_) => Level::Region,
            Self::Project => Level::Project,
        }
    }

    /// The bits of the id; 0 for the project.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Instance(id) => id.bits(),
            Self::Host(id) => id.bits(),
            Self::Site(id) => id.bits(),
            Self::Region(id) => id.bits(),
            Self::Project => 0,
        }
    }

    /// The scope of this level with these bits, as stored in the database.
    #[must_use]
    pub const fn from_bits(level: Level, bits: u32) -> Self {
        match level {
            Level::Instance => Self::Instance(InstanceId::from_bits(bits)),
            Level::Host => Self::Host(HostId::from_bits(bits)),
            Level::Site => Self::Site(SiteId::from_bits(bits)),
            Level::Region => Self::Region(RegionId::from_bits(bits)),
            Level::Project => Self::Project,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(id) => id.fmt(f),
            Self::Host(id) => id.fmt(f),
            Self::Site(id) => id.fmt(f),
            Self::Region(id) => id.fmt(f),
            Self::Project => f.write_str("project"),
        }
    }
}

impl FromStr for Scope {
    type Err = BadId;

    /// Reads an id of an instance, host, site or region, or `project`.
    fn from_str(text: &str) -> Result<Self, BadId> {
        match text.split('-').next().unwrap_or_default() {
            "project" if text == "project" => Ok(Self::Project),
            InstanceId::PREFIX => text.parse().map(Self::Instance),
            HostId::PREFIX => text.parse().map(Self::Host),
            SiteId::PREFIX => text.parse().map(Self::Site),
            RegionId::PREFIX => text.parse().map(Self::Region),
            _ => Err(BadId::OtherKind {
                text: text.to_owned(),
                prefix: "inst, host, site or region",
            }),
        }
    }
}

/// How many nodes an assignment may update at once, and after how many failures it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateLimits {
    /// Maximum number of nodes that are updated at the same time; `None` for no limit.
    pub max_concurrent: Option<u32>,
    /// Number of failures after which no further update starts; `None` for no limit.
    pub stop_after_failures: Option<u32>,
}

impl UpdateLimits {
    /// The greatest limit: the database stores limits as `i32`.
    pub const MAX: u32 = i32::MAX.cast_unsigned();

    /// Parses limits.
    ///
    /// # Errors
    /// A limit is greater than [`UpdateLimits::MAX`], or 0. With 0 nothing would ever start; use a pause for that.
    pub fn parse(
        max_concurrent: Option<u32>,
        stop_after_failures: Option<u32>,
    ) -> Result<Self, Invalid> {
        let sensible = |field, limit: Option<u32>| match limit {
            Some(0) => Err(Invalid::new(field, "must be at least 1; pause it instead")),
            Some(limit) if limit > Self::MAX => {
                let why = format!("must be at most {}", Self::MAX);
                Err(Invalid::new(field, why))
            }
            limit => Ok(limit),
        };
        Ok(Self {
            max_concurrent: sensible("maxConcurrent", max_concurrent)?,
            stop_after_failures: sensible("stopAfterFailures", stop_after_failures)?,
        })
    }

    /// Whether at least one limit is set.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.max_concurrent.is_some() || self.stop_after_failures.is_some()
    }
}

/// How far the limits of an assignment are used up, seen from one instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUsage {
    /// Number of slots that other instances hold.
    pub held_by_others: u32,
    /// Whether this instance holds a slot.
    pub holds_slot: bool,
    /// Number of failed runs since the policy was assigned or the assignment was resumed.
    pub failures: u32,
    /// Until when this instance lets the others go first, because it did not use its last window.
    pub yields_until: Option<Time>,
}

/// A policy that is assigned to an instance, directly or through its host, site, region or project.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignedPolicy {
    /// What the policy is assigned to.
    pub scope: Scope,
    pub policy: UpdatePolicy,
    /// The image that the policy names, if it names one.
    pub image: Option<Image>,
    pub limits: UpdateLimits,
    /// How far the limits are used up.
    pub usage: LimitUsage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_reads_as_it_prints() {
        for scope in [
            Scope::Instance(InstanceId::nth(1)),
            Scope::Host(HostId::nth(2)),
            Scope::Site(SiteId::nth(3)),
            Scope::Region(RegionId::nth(4)),
            Scope::Project,
        ] {
            assert_eq!(scope.to_string().parse(), Ok(scope));
            assert_eq!(Scope::from_bits(scope.level(), scope.bits()), scope);
        }
        for bad in ["", "projects", "project-1", "os-00000001", "host-1"] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_rejected() {
        assert_eq!(UpdateLimits::parse(Some(0), None).expect_err("0").field, "maxConcurrent");
        assert_eq!(UpdateLimits::parse(None, Some(0)).expect_err("0").field, "stopAfterFailures");
        assert!(!UpdateLimits::parse(None, None).expect("none").is_limited());
    }

    #[test]
    fn a_limit_above_the_maximum_is_rejected() {
        let (max, beyond) = (Some(UpdateLimits::MAX), Some(UpdateLimits::MAX + 1));
        let parsed = UpdateLimits::parse(max, max).expect("the greatest");
        let pair = (parsed.max_concurrent, parsed.stop_after_failures);
        assert_eq!(pair, (max, max));
        for (limits, field) in [
            (UpdateLimits::parse(beyond, None), "maxConcurrent"),
            (UpdateLimits::parse(None, beyond), "stopAfterFailures"),
        ] {
            let error = limits.expect_err("too great");
            assert_eq!(error.field, field);
            assert_eq!(error.why, "must be at most 2147483647");
        }
    }
}
