//! The nodes of the fleet: hosts of a large project, with a credential each. Some nodes have a client
//! certificate as well.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::id::{HostId, InstanceId, SiteId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_simulator::polling::PollingNode;
use evenkeel_store::hosts::JoinRequest;
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::{Store, hosts, nodes, schedules};
use rustls::sign::{CertifiedKey, SigningKey};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};

use super::node_credentials::{CredentialIssuer, certified_key, private_key};
use crate::bench_harness::BenchHarness;
use crate::report::print_status;
use crate::seed;

/// Maximum number of sites.
const MAX_SITES: u32 = 1_000;

/// Hosts or schedules that one transaction changes.
const ROWS_PER_TRANSACTION: usize = 200;

/// Number of concurrent transactions.
const CONCURRENT_TRANSACTIONS: usize = 4;

/// Digest of the facts that own nodes have in the seeded database.
pub const SEEDED_FACTS_DIGEST: [u8; 32] = [3; 32];

/// Replaces the UUID in the line of an own node.
const OWN_NODE_MARKER: &str = "own";

/// The nodes of the fleet.
#[derive(Clone, Debug)]
pub struct NodeList {
    /// The project.
    pub tenant: TenantId,
    /// Nodes that call, by number.
    pub members: Vec<ListedNode>,
    /// Own nodes that do not call; unknown clients use their credentials.
    spare: Vec<ListedNode>,
}

#[derive(Clone, Debug)]
pub struct ListedNode {
    /// Number among all nodes.
    pub number: u32,
    pub host: HostId,
    pub instance: InstanceId,
    /// UUID that EIM's agent sends; `None` for own nodes.
    pub uuid: Option<String>,
    /// Whether it is an own node with a client certificate.
    pub is_certified: bool,
}

/// Numbers of hosts and nodes.
#[derive(Clone, Copy, Debug)]
pub struct NodeCounts {
    /// Registered hosts.
    pub registered: u32,
    /// Nodes that call.
    pub nodes: u32,
    /// Percentage of EIM nodes.
    pub eim: u32,
    /// Additional own nodes that do not call.
    pub spare: u32,
}

impl NodeCounts {
    /// Whether the node with this number is an EIM node.
    const fn is_eim(self, number: u32) -> bool {
        number % 100 < self.eim
    }
}

impl NodeList {
    /// Seeds the project. Each site has a window tomorrow, so no node has an update to start today.
    /// `certified` contains for each driver how many of its first nodes have a client certificate, if
    /// they are own nodes.
    pub async fn create(
        harness: &BenchHarness,
        counts: NodeCounts,
        certified: &[u32],
    ) -> anyhow::Result<Self> {
        let size = ProjectSize {
            hosts: counts.registered,
            sites: (counts.registered / 10).clamp(1, MAX_SITES),
        };
        let (store, tenant, seeded) = seed::fill_project(harness, size, false).await?;
        let now = SystemClock.now();
        create_windows(&store, tenant, &seeded.sites, now).await?;
        let numbered = (0_u32..).zip(seeded.hosts.iter().zip(&seeded.instances));
        let mut members: Vec<_> = numbered
            .take(usize::try_from(counts.nodes + counts.spare)?)
            .map(|(number, (host, instance))| ListedNode {
                number,
                host: *host,
                instance: *instance,
                uuid: None,
                is_certified: false,
            })
            .collect();
        let nodes = usize::try_from(counts.nodes)?.min(members.len());
        let spare = members.split_off(nodes);
        let eim = members.iter().filter(|member| counts.is_eim(member.number));
        let eim: Vec<_> = eim.map(|member| (member.number, member.host)).collect();
        print_status(&format!("{} nodes use EIM's protocol", eim.len()));
        for member in &mut members {
            let is_own = !counts.is_eim(member.number);
            member.is_certified = is_own && is_among_first(member.number, certified)?;
        }
        let own = members.iter().filter(|member| member.is_certified);
        let own: Vec<_> = own.map(|member| (member.number, member.host)).collect();
        let enrolment = Enrolment::Own(certified_key()?.public_key());
        change_hosts(&store, tenant, &own, enrolment, now).await?;
        let converted = change_hosts(&store, tenant, &eim, Enrolment::Eim, now).await?;
        for (number, uuid) in converted {
            if let Some(member) = members.get_mut(usize::try_from(number)?) {
                member.uuid = Some(uuid);
            }
        }
        fill::vacuum_and_checkpoint(&store, &harness.superuser_url()).await?;
        store.close().await;
        Ok(Self { tenant, members, spare })
    }

    /// The own nodes, by number.
    pub fn own_nodes(&self) -> impl Iterator<Item = &ListedNode> {
        self.members.iter().filter(|member| member.uuid.is_none())
    }

    /// Writes a file for each driver with its nodes, their credentials and their certificates.
    pub fn write_files(
        &self,
        harness: &BenchHarness,
        drivers: u32,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let issuer = CredentialIssuer::open(harness, self.tenant)?;
        let mut parts = vec![String::new(); usize::try_from(drivers)?];
        for member in &self.members {
            let token = issuer.issue_token(member)?;
            let uuid = member.uuid.as_deref().unwrap_or(OWN_NODE_MARKER);
            let part = usize::try_from(member.number % drivers)?;
            let part = parts.get_mut(part).context("there is no driver for a node")?;
            write!(part, "{} {uuid} {token}", member.number)?;
            if member.is_certified {
                write!(part, " {}", STANDARD.encode(issuer.issue_certificate(member)?))?;
            }
            writeln!(part)?;
        }
        let write = |(part, text): (usize, String)| -> anyhow::Result<PathBuf> {
            let path = harness.folder().join(format!("nodes-{part}"));
            write_private_file(&path, &text)?;
            Ok(path)
        };
        parts.into_iter().enumerate().map(write).collect()
    }

    /// The credentials of the nodes that do not call, as values of the `authorization` header.
    pub fn spare_credentials(&self, harness: &BenchHarness) -> anyhow::Result<Vec<String>> {
        let issuer = CredentialIssuer::open(harness, self.tenant)?;
        let credential = |member: &ListedNode| -> anyhow::Result<String> {
            Ok(format!("Bearer {}", issuer.issue_token(member)?))
        };
        self.spare.iter().map(credential).collect()
    }
}

/// A node as listed in the file of a driver.
#[derive(Clone, Debug)]
pub struct NodeEntry {
    /// Number among all nodes.
    pub number: u32,
    /// UUID that EIM's agent sends; `None` for own nodes.
    pub uuid: Option<String>,
    /// The value of the `authorization` header.
    pub authorization: MetadataValue<Ascii>,
    /// The client certificate with its key; `None` for a node that shares a connection.
    pub certificate: Option<CertifiedKey>,
}

impl NodeEntry {
    pub fn read_file(path: &Path) -> anyhow::Result<Vec<Self>> {
        let (text, key) = (std::fs::read_to_string(path)?, private_key()?);
        text.lines().map(|line| Self::parse(line, &key)).collect()
    }

    /// The node, which calls for the first time at this instant.
    pub fn create_node(&self, planned_at: Instant) -> PollingNode {
        match &self.uuid {
            None => PollingNode::new_own(self.number, SEEDED_FACTS_DIGEST, planned_at),
            Some(uuid) => PollingNode::new_eim(uuid, planned_at),
        }
    }

    fn parse(line: &str, key: &Arc<dyn SigningKey>) -> anyhow::Result<Self> {
        let mut fields = line.split(' ');
        let (number, uuid, token) = (fields.next(), fields.next(), fields.next());
        let uuid = uuid.context("a line of the node file has no UUID")?;
        let token = token.context("a line of the node file has no credential")?;
        let certificate = fields.next().map(|text| STANDARD.decode(text)).transpose()?;
        let certificate =
            certificate.map(|der| CertifiedKey::new(vec![der.into()], Arc::clone(key)));
        Ok(Self {
            number: number.unwrap_or_default().parse()?,
            uuid: (uuid != OWN_NODE_MARKER).then(|| uuid.to_owned()),
            authorization: format!("Bearer {token}").parse()?,
            certificate,
        })
    }
}

/// Whether a node is among the first ones of its driver. `counts` has the number of first nodes of
/// each driver, whose nodes are in the order of their numbers.
fn is_among_first(number: u32, counts: &[u32]) -> anyhow::Result<bool> {
    let drivers = u32::try_from(counts.len())?;
    let driver = number.checked_rem(drivers).context("there is no driver")?;
    let first = counts.get(usize::try_from(driver)?).context("there is no driver for a node")?;
    Ok(number / drivers < *first)
}

fn write_private_file(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Creates a window of one hour tomorrow for each site, each 30 seconds after the previous one.
async fn create_windows(
    store: &Store,
    tenant: TenantId,
    sites: &[SiteId],
    now: Time,
) -> anyhow::Result<()> {
    let mut start = now + TimeDelta::days(1);
    for part in sites.chunks(ROWS_PER_TRANSACTION) {
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

/// How the nodes of some hosts identify themselves.
#[derive(Clone, Debug)]
enum Enrolment {
    /// Own nodes with this public key.
    Own(Vec<u8>),
    /// EIM nodes, which have never enrolled.
    Eim,
}

/// Changes how nodes identify themselves. Returns their numbers and UUIDs.
async fn change_hosts(
    store: &Store,
    tenant: TenantId,
    hosts: &[(u32, HostId)],
    enrolment: Enrolment,
    now: Time,
) -> anyhow::Result<Vec<(u32, String)>> {
    let mut shares = vec![Vec::new(); CONCURRENT_TRANSACTIONS];
    for (index, host) in hosts.iter().enumerate() {
        if let Some(share) = shares.get_mut(index % CONCURRENT_TRANSACTIONS) {
            share.push(*host);
        }
    }
    let mut tasks = JoinSet::new();
    for share in shares {
        tasks.spawn(change_share(store.clone(), tenant, share, enrolment.clone(), now));
    }
    let mut uuids = Vec::with_capacity(hosts.len());
    while let Some(done) = tasks.join_next().await {
        uuids.extend(done??);
    }
    Ok(uuids)
}

async fn change_share(
    store: Store,
    tenant: TenantId,
    share: Vec<(u32, HostId)>,
    enrolment: Enrolment,
    now: Time,
) -> anyhow::Result<Vec<(u32, String)>> {
    let mut uuids = Vec::with_capacity(share.len());
    for part in share.chunks(ROWS_PER_TRANSACTION) {
        let tx = store.tenant(tenant).await?;
        for (number, id) in part {
            let host = hosts::find(&tx, *id).await?;
            let uuid = host.uuid.context("a host has no UUID")?;
            let public_key = match &enrolment {
                Enrolment::Own(public_key) => public_key.clone(),
                Enrolment::Eim => Vec::new(),
            };
            let joining = JoinRequest { uuid, serial: None, hostname: host.hostname, public_key };
            hosts::record_join(&tx, *id, &joining, now).await?;
            if matches!(enrolment, Enrolment::Eim) {
                let mut node = nodes::lock(&tx, *id).await?;
                node.protocol = AgentProtocol::Eim;
                node.facts_digest = Vec::new();
                nodes::save(&tx, &node).await?;
            }
            uuids.push((*number, uuid.to_string()));
        }
        tx.commit().await?;
    }
    Ok(uuids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eim_nodes_are_spread_evenly() {
        let counts = NodeCounts { registered: 1_000, nodes: 1_000, eim: 20, spare: 0 };
        let of = |range: std::ops::Range<u32>| range.filter(|n| counts.is_eim(*n)).count();
        assert_eq!((of(0..1_000), of(500..600)), (200, 20));
    }

    #[test]
    fn the_first_nodes_of_each_driver_have_certificates() {
        let certified = |number| is_among_first(number, &[2, 1]).expect("a driver");
        let numbers: Vec<u32> = (0..8).filter(|number| certified(*number)).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(is_among_first(0, &[]).is_err());
    }

    #[test]
    fn a_driver_reads_its_node_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nodes");
        write_private_file(&path, "3 own abc AAEC\n4 0000-11 def\n").expect("a file");
        let entries = NodeEntry::read_file(&path).expect("cards");
        assert_eq!((entries[0].number, &entries[0].uuid), (3, &None));
        assert_eq!(entries[1].uuid.as_deref(), Some("0000-11"));
        assert_eq!(entries[1].authorization, "Bearer def");
        let certificate = entries[0].certificate.as_ref().expect("a certificate");
        assert_eq!(certificate.cert[0].as_ref(), [0, 1, 2]);
        assert!(entries[1].certificate.is_none());
        std::fs::write(&path, "5 own abc no-base64").expect("a file");
        assert!(NodeEntry::read_file(&path).is_err(), "no certificate");
        std::fs::write(&path, "5 own").expect("a file");
        assert!(NodeEntry::read_file(&path).is_err(), "no credential");
    }
}
