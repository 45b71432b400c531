//! Who gets which policy: nearest that fits wins (engine section 2).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{BadId, HostId, InstanceId, RegionId, SiteId};
use crate::invalid::Invalid;
use crate::os::Image;
use crate::policy::UpdatePolicy;

named! {
    /// How near an assignment is to an instance, nearest first.
    Level {
        /// This very instance.
        Instance = "instance",
        /// Its host.
        Host = "host",
        /// The site where its host stands.
        Site = "site",
        /// The region of that site, or one that this region lies in.
        Region = "region",
        /// All of the project.
        Project = "project",
    }
}

/// What a policy is assigned to. Shown as the id, or `project`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// One instance.
    Instance(InstanceId),
    /// The instance of one host.
    Host(HostId),
    /// Every instance at a site.
    Site(SiteId),
    /// Every instance in a region and in the regions inside it.
    Region(RegionId),
    /// Every instance of the project.
    Project,
}

impl Scope {
    /// How near it is.
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

    /// The bits of the id, 0 for the project.
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

    /// The scope of this level with these bits, as the database keeps them.
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

/// How many nodes an assignment may change at once, and when it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// At most so many are changed at the same time; none is no limit.
    pub max_concurrent: Option<u32>,
    /// After so many failures nothing is started any more; none is never.
    pub stop_after_failures: Option<u32>,
}

impl Limits {
    /// The greatest limit.
    pub const MAX: u32 = i32::MAX.cast_unsigned();

    /// Reads limits.
    ///
    /// # Errors
    /// A limit is greater than [`Limits::MAX`], or 0, which would mean that nothing ever starts: that is what a pause
    /// is for.
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

    /// Whether there are any.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.max_concurrent.is_some() || self.stop_after_failures.is_some()
    }
}

/// How far the limits of an assignment are used up, as one instance sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brake {
    /// Slots that other instances hold.
    pub held: u32,
    /// Whether this instance holds one.
    pub mine: bool,
    /// Runs that failed since the policy was assigned or the assignment was resumed.
    pub failures: u32,
    /// Until when this instance lets the others go first, because it let a window pass for nothing.
    pub behind: Option<Time>,
}

/// A policy that is assigned along the chain of an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    /// To what.
    pub scope: Scope,
    /// Which.
    pub policy: UpdatePolicy,
    /// The image that the policy names, if it names one.
    pub image: Option<Image>,
    /// How fast it may go.
    pub limits: Limits,
    /// How far that is used up.
    pub brake: Brake,
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
    fn a_limit_of_nothing_is_a_mistake() {
        assert_eq!(
            Limits::parse(Some(0), None).expect_err("0").field,
            "maxConcurrent"
        );
        assert_eq!(
            Limits::parse(None, Some(0)).expect_err("0").field,
            "stopAfterFailures"
        );
        assert!(!Limits::parse(None, None).expect("none").any());
    }

    #[test]
    fn a_limit_that_could_not_be_kept_as_it_is_is_a_mistake() {
        let (most, beyond) = (Some(Limits::MAX), Some(Limits::MAX + 1));
        let kept = Limits::parse(most, most).expect("the greatest");
        let kept = (kept.max_concurrent, kept.stop_after_failures);
        assert_eq!(kept, (most, most));
        for (limits, field) in [
            (Limits::parse(beyond, None), "maxConcurrent"),
            (Limits::parse(None, beyond), "stopAfterFailures"),
        ] {
            let error = limits.expect_err("too great");
            assert_eq!(error.field, field);
            assert_eq!(error.why, "must be at most 2147483647");
        }
    }
}
