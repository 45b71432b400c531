//! The resources that requests name.

use evenkeel_domain::id::{HostId, InstanceId, OsId, RunId, SiteId, scatter};
use evenkeel_store::testing::fill::SeededProject;
use serde_json::Value;

/// The seeded fleet, and the hosts that were created later.
#[derive(Debug)]
pub struct Fleet {
    seeded: SeededProject,
    created_hosts: Vec<String>,
}

impl Fleet {
    /// A fleet of seeded resources.
    pub const fn new(seeded: SeededProject) -> Self {
        Self { seeded, created_hosts: Vec::new() }
    }

    /// Number of seeded hosts.
    pub const fn host_count(&self) -> usize {
        self.seeded.hosts.len()
    }

    /// Number of seeded runs.
    pub const fn run_count(&self) -> usize {
        self.seeded.runs.len()
    }

    /// An offset at 90% of the hosts, which exists in every list.
    pub const fn far_offset(&self) -> usize {
        self.host_count() / 10 * 9
    }

    /// OS profile of the instances.
    pub const fn os(&self) -> OsId {
        self.seeded.os
    }

    /// The id of a seeded host.
    pub fn host(&self, n: u32) -> HostId {
        pick(&self.seeded.hosts, n)
    }

    /// The id of a seeded site.
    pub fn site(&self, n: u32) -> SiteId {
        pick(&self.seeded.sites, n)
    }

    /// The id of a seeded instance.
    pub fn instance(&self, n: u32) -> InstanceId {
        pick(&self.seeded.instances, n)
    }

    /// The id of a seeded run.
    pub fn run(&self, n: u32) -> RunId {
        pick(&self.seeded.runs, n)
    }

    /// Index of host `n`, from which the names of the host and of its instance are derived.
    pub fn host_index(&self, n: u32) -> u32 {
        u32::try_from(pick_index(self.host_count(), n)).unwrap_or(0)
    }

    /// Index of run `n`, from which the name of the run is derived.
    pub fn run_index(&self, n: u32) -> u32 {
        u32::try_from(pick_index(self.run_count(), n)).unwrap_or(0)
    }

    /// The id of the `n`th host that was created later. It has no instance.
    pub fn created_host(&self, n: u32) -> Option<&str> {
        let n = usize::try_from(n).ok()?;
        self.created_hosts.get(n).map(String::as_str)
    }

    /// Records the id of a created host.
    pub fn record_host(&mut self, answer: &[u8]) {
        let host: Value = serde_json::from_slice(answer).unwrap_or_default();
        if let Some(id) = host["resourceId"].as_str() {
            self.created_hosts.push(id.to_owned());
        }
    }
}

/// Picks an element. The same number picks the same element; consecutive numbers pick distant ones.
fn pick<T: Copy>(of: &[T], n: u32) -> T {
    of[pick_index(of.len(), n)]
}

fn pick_index(of: usize, n: u32) -> usize {
    usize::try_from(scatter(n)).unwrap_or(0) % of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_existing_resources() {
        let mut fleet = Fleet::new(SeededProject {
            os: OsId::nth(0),
            sites: vec![SiteId::nth(0)],
            hosts: (0..20).map(HostId::nth).collect(),
            instances: (0..20).map(InstanceId::nth).collect(),
            runs: (0..40).map(RunId::nth).collect(),
        });
        assert_eq!((fleet.host_count(), fleet.run_count(), fleet.far_offset()), (20, 40, 18));
        for n in 0..100 {
            assert_eq!(fleet.host(n), HostId::nth(fleet.host_index(n)));
            assert_eq!(fleet.run(n), RunId::nth(fleet.run_index(n)));
        }
        assert_eq!(fleet.created_host(0), None);
        fleet.record_host(br#"{"resourceId": "host-0a1b2c3d"}"#);
        fleet.record_host(b"nothing");
        assert_eq!(fleet.created_host(0), Some("host-0a1b2c3d"));
        assert_eq!(fleet.created_host(1), None);
    }
}
