//! What is in the database, for requests to name.

use evenkeel_domain::id::{HostId, InstanceId, OsId, RunId, SiteId, scatter};
use evenkeel_store::testing::fill::Filled;
use serde_json::Value;

/// A fleet, and the hosts that were made since.
#[derive(Debug)]
pub struct Fleet {
    filled: Filled,
    made: Vec<String>,
}

impl Fleet {
    /// The fleet that a database was filled with.
    pub const fn new(filled: Filled) -> Self {
        Self {
            filled,
            made: Vec::new(),
        }
    }

    /// How many hosts it was made with.
    pub const fn size(&self) -> usize {
        self.filled.hosts.len()
    }

    /// How many runs it was made with.
    pub const fn runs(&self) -> usize {
        self.filled.runs.len()
    }

    /// Far back in every list of it.
    pub const fn far(&self) -> usize {
        self.size() / 10 * 9
    }

    /// What its instances run.
    pub const fn os(&self) -> OsId {
        self.filled.os
    }

    /// One of its hosts.
    pub fn host(&self, n: u32) -> HostId {
        any(&self.filled.hosts, n)
    }

    /// One of its sites.
    pub fn site(&self, n: u32) -> SiteId {
        any(&self.filled.sites, n)
    }

    /// One of its instances.
    pub fn instance(&self, n: u32) -> InstanceId {
        any(&self.filled.instances, n)
    }

    /// One of its runs.
    pub fn run(&self, n: u32) -> RunId {
        any(&self.filled.runs, n)
    }

    /// The place of one of its hosts, from which the names of the host and of its instance are made.
    pub fn place(&self, n: u32) -> u32 {
        u32::try_from(place(self.size(), n)).unwrap_or(0)
    }

    /// The place of one of its runs, from which the name of the run is made.
    pub fn place_of_run(&self, n: u32) -> u32 {
        u32::try_from(place(self.runs(), n)).unwrap_or(0)
    }

    /// The id of the `n`th host that was made since; it has no instance.
    pub fn made(&self, n: u32) -> Option<&str> {
        let n = usize::try_from(n).ok()?;
        self.made.get(n).map(String::as_str)
    }

    /// Notes a host that was made.
    pub fn note(&mut self, answer: &[u8]) {
        let host: Value = serde_json::from_slice(answer).unwrap_or_default();
        if let Some(id) = host["resourceId"].as_str() {
            self.made.push(id.to_owned());
        }
    }
}

/// One of many. The same number gives the same one; numbers that follow each other lie far apart.
fn any<T: Copy>(of: &[T], n: u32) -> T {
    of[place(of.len(), n)]
}

fn place(of: usize, n: u32) -> usize {
    usize::try_from(scatter(n)).unwrap_or(0) % of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_what_is_there() {
        let mut fleet = Fleet::new(Filled {
            os: OsId::nth(0),
            sites: vec![SiteId::nth(0)],
            hosts: (0..20).map(HostId::nth).collect(),
            instances: (0..20).map(InstanceId::nth).collect(),
            runs: (0..40).map(RunId::nth).collect(),
        });
        assert_eq!((fleet.size(), fleet.runs(), fleet.far()), (20, 40, 18));
        for n in 0..100 {
            assert_eq!(fleet.host(n), HostId::nth(fleet.place(n)));
            assert_eq!(fleet.run(n), RunId::nth(fleet.place_of_run(n)));
        }
        assert_eq!(fleet.made(0), None);
        fleet.note(br#"{"resourceId": "host-0a1b2c3d"}"#);
        fleet.note(b"nothing");
        assert_eq!(fleet.made(0), Some("host-0a1b2c3d"));
        assert_eq!(fleet.made(1), None);
    }
}
