//! Who calls: hosts of a large project, of ours or of the ancestor's, each with a credential.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys};
use evenkeel_domain::Time;
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::id::{HostId, InstanceId, SiteId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::hosts::Joining;
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::{Store, hosts, nodes, schedules};
use tokio::task::JoinSet;
use tonic::metadata::{Ascii, MetadataValue};

use crate::report::remark;
use crate::seed;
use crate::station::Station;

/// Sites there are at most.
const SITES: u32 = 1_000;

/// How many hosts, or schedules, one transaction changes.
const BATCH: usize = 200;

/// How many transactions go on beside each other.
const BESIDE: usize = 4;

/// Stands in place of a UUID in the line of a node of ours.
const OWN: &str = "own";

/// Who calls, of all that are registered.
#[derive(Clone, Debug)]
pub struct Roster {
    /// The project.
    pub tenant: TenantId,
    /// Who calls, by number.
    pub members: Vec<Member>,
    /// Nodes of ours that do not: their credentials are for clients that do harm.
    spare: Vec<Member>,
}

/// One that calls.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its place among all of them.
    pub number: u32,
    /// Its host.
    pub host: HostId,
    /// Its instance.
    pub instance: InstanceId,
    /// By which the ancestor's agent names it; none if it is one of ours.
    pub uuid: Option<String>,
}

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Registered hosts.
    pub registered: u32,
    /// Those that call.
    pub nodes: u32,
    /// How many of a hundred speak as the ancestor's.
    pub eim: u32,
    /// Nodes of ours besides, which do not call.
    pub spare: u32,
}

impl Numbers {
    /// Whether the node with this number speaks as the ancestor's.
    const fn is_eim(self, number: u32) -> bool {
        number % 100 < self.eim
    }
}

impl Roster {
    /// Fills the project of a station. Each site has a window tomorrow, so nobody has anything to do today.
    pub async fn make(station: &Station, numbers: Numbers) -> anyhow::Result<Self> {
        let size = Size {
            hosts: numbers.registered,
            sites: (numbers.registered / 10).clamp(1, SITES),
        };
        let (store, tenant, filled) = seed::filled(station, size, false).await?;
        let now = SystemClock.now();
        windows(&store, tenant, &filled.sites, now).await?;
        let places = (0_u32..).zip(filled.hosts.iter().zip(&filled.instances));
        let mut members: Vec<_> = places
            .take(usize::try_from(numbers.nodes + numbers.spare)?)
            .map(|(number, (host, instance))| Member {
                number,
                host: *host,
                instance: *instance,
                uuid: None,
            })
            .collect();
        let nodes = usize::try_from(numbers.nodes)?.min(members.len());
        let spare = members.split_off(nodes);
        let eim = members
            .iter()
            .filter(|member| numbers.is_eim(member.number));
        let eim: Vec<_> = eim.map(|member| (member.number, member.host)).collect();
        remark(&format!("{} nodes speak as the ancestor's", eim.len()));
        for (number, uuid) in ancestors(&store, tenant, &eim, now).await? {
            if let Some(member) = members.get_mut(usize::try_from(number)?) {
                member.uuid = Some(uuid);
            }
        }
        fill::settle(&store, &station.superuser()).await?;
        store.close().await;
        Ok(Self {
            tenant,
            members,
            spare,
        })
    }

    /// Those of ours, by number.
    pub fn own(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.uuid.is_none())
    }

    /// Writes a file for each driver with those that it drives, and their credentials.
    pub fn write(&self, station: &Station, drivers: u32) -> anyhow::Result<Vec<PathBuf>> {
        let authority = authority(station)?;
        let now = SystemClock.now();
        let mut parts = vec![String::new(); usize::try_from(drivers)?];
        for member in &self.members {
            let token = self.token(&authority, member, now)?;
            let uuid = member.uuid.as_deref().unwrap_or(OWN);
            let part = usize::try_from(member.number % drivers)?;
            let part = parts.get_mut(part).context("a driver for each node")?;
            writeln!(part, "{} {uuid} {token}", member.number)?;
        }
        let write = |(part, text): (usize, String)| -> anyhow::Result<PathBuf> {
            let path = station.folder().join(format!("nodes-{part}"));
            write_secretly(&path, &text)?;
            Ok(path)
        };
        parts.into_iter().enumerate().map(write).collect()
    }

    /// The credentials of the nodes that do not call, each as the value of a header `authorization`.
    pub fn spare_credentials(&self, station: &Station) -> anyhow::Result<Vec<String>> {
        let authority = authority(station)?;
        let now = SystemClock.now();
        let credential = |member: &Member| -> anyhow::Result<String> {
            let token = self.token(&authority, member, now)?;
            Ok(format!("Bearer {token}"))
        };
        self.spare.iter().map(credential).collect()
    }

    fn token(&self, authority: &Authority, member: &Member, now: Time) -> anyhow::Result<String> {
        let (tenant, host) = (self.tenant.uuid(), member.host.to_string());
        let issued = authority.issue_node(tenant, &host, TimeDelta::days(90), now)?;
        Ok(issued.token.reveal().to_owned())
    }
}

/// What signs the credentials of nodes, with the server's own keys.
fn authority(station: &Station) -> anyhow::Result<Authority> {
    let keys = Keys::open(&station.data().join("keys"))?;
    Ok(Authority::new(keys, evenkeel_auth::Settings::default()))
}

/// What a driver knows of a node.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its place among all nodes.
    pub number: u32,
    /// By which the ancestor's agent names it; none if it is one of ours.
    pub uuid: Option<String>,
    /// The value of its header `authorization`.
    pub authorization: MetadataValue<Ascii>,
}

impl Card {
    /// Those of a file.
    pub fn read(path: &Path) -> anyhow::Result<Vec<Self>> {
        let text = std::fs::read_to_string(path)?;
        text.lines().map(Self::of).collect()
    }

    fn of(line: &str) -> anyhow::Result<Self> {
        let mut words = line.split(' ');
        let (number, uuid, token) = (words.next(), words.next(), words.next());
        let uuid = uuid.context("a node has no name")?;
        let token = token.context("a node has no credential")?;
        Ok(Self {
            number: number.unwrap_or_default().parse()?,
            uuid: (uuid != OWN).then(|| uuid.to_owned()),
            authorization: format!("Bearer {token}").parse()?,
        })
    }
}

fn write_secretly(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Gives each site a window of an hour tomorrow, each a bit later than the one before.
async fn windows(
    store: &Store,
    tenant: TenantId,
    sites: &[SiteId],
    now: Time,
) -> anyhow::Result<()> {
    let mut start = now + TimeDelta::days(1);
    for part in sites.chunks(BATCH) {
        let tx = store.tenant(tenant).await?;
        for site in part {
            start += TimeDelta::seconds(30);
            let window = SingleSpec {
                name: Name::default(),
                status: ScheduleStatus::OsUpdate,
                start,
                end: Some(start + TimeDelta::hours(1)),
                target: Some(ScheduleTarget::Site(*site)),
            };
            schedules::create(&tx, &window, now).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Makes these hosts nodes of the ancestor's agent, which never joined. Returns by what each names itself.
async fn ancestors(
    store: &Store,
    tenant: TenantId,
    hosts: &[(u32, HostId)],
    now: Time,
) -> anyhow::Result<Vec<(u32, String)>> {
    let mut shares = vec![Vec::new(); BESIDE];
    for (place, host) in hosts.iter().enumerate() {
        if let Some(share) = shares.get_mut(place % BESIDE) {
            share.push(*host);
        }
    }
    let mut tasks = JoinSet::new();
    for share in shares {
        tasks.spawn(turned(store.clone(), tenant, share, now));
    }
    let mut named = Vec::with_capacity(hosts.len());
    while let Some(done) = tasks.join_next().await {
        named.extend(done??);
    }
    Ok(named)
}

async fn turned(
    store: Store,
    tenant: TenantId,
    share: Vec<(u32, HostId)>,
    now: Time,
) -> anyhow::Result<Vec<(u32, String)>> {
    let mut named = Vec::with_capacity(share.len());
    for part in share.chunks(BATCH) {
        let tx = store.tenant(tenant).await?;
        for (number, id) in part {
            let host = hosts::find(&tx, *id).await?;
            let uuid = host.uuid.context("a host without a UUID")?;
            let joining = Joining {
                uuid,
                serial: None,
                hostname: host.hostname,
                public_key: Vec::new(),
            };
            hosts::joined(&tx, *id, &joining, now).await?;
            let mut node = nodes::lock(&tx, *id).await?;
            node.protocol = Protocol::Eim;
            node.facts_digest = Vec::new();
            nodes::save(&tx, &node).await?;
            named.push((*number, uuid.to_string()));
        }
        tx.commit().await?;
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_ancestors_is_spread_over_all() {
        let numbers = Numbers {
            registered: 1_000,
            nodes: 1_000,
            eim: 20,
            spare: 0,
        };
        let of = |range: std::ops::Range<u32>| range.filter(|n| numbers.is_eim(*n)).count();
        assert_eq!((of(0..1_000), of(500..600)), (200, 20));
    }

    #[test]
    fn a_driver_reads_what_was_written_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nodes");
        write_secretly(&path, "3 own abc\n4 0000-11 def\n").expect("a file");
        let cards = Card::read(&path).expect("cards");
        assert_eq!((cards[0].number, &cards[0].uuid), (3, &None));
        assert_eq!(cards[1].uuid.as_deref(), Some("0000-11"));
        assert_eq!(cards[1].authorization, "Bearer def");
        std::fs::write(&path, "5 own").expect("a file");
        assert!(Card::read(&path).is_err(), "no credential");
    }
}
