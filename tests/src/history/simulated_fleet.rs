//! Simulated nodes, each in its own task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_kit::SystemClock;
use evenkeel_proto::agent::BootedImage;
use evenkeel_simulator::clock::NodeClock;
use evenkeel_simulator::connection::{Faults, Network, NodeConnection};
use evenkeel_simulator::eim::{self, EimNode};
use evenkeel_simulator::ground_truth::{EimGroundTruth, OwnGroundTruth};
use evenkeel_simulator::own::{self, OwnNode};
use evenkeel_simulator::rng::Rng;
use reqwest::Method;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::image_catalog::{ImageCatalog, PROFILE};
use super::operator_client::OperatorClient;
use super::operator_log::SimulatedMember;
use super::print_progress;
use super::registrar::NodeRegistrar;
use super::replicas::Replicas;

/// How long nodes may take to finish their open work.
const FINISH_TIMEOUT: Duration = Duration::from_mins(3);

/// Number of nodes that share a connection to each server. With a connection per node most of the load would be
/// handshakes, because servers are killed all the time.
const NODES_PER_CONNECTION: usize = 4;

/// One of this number of nodes is updated by images, the others by packages.
const NODES_PER_IMAGE_NODE: usize = 5;

/// One of this number of nodes with EIM's agent never finishes an update, so that even a short history has runs that
/// time out.
const EIM_NODES_PER_STUCK_NODE: usize = 16;

/// Number of nodes, and faults.
#[derive(Clone, Copy, Debug)]
pub struct FleetSettings {
    /// Number of nodes with our own agent.
    pub own: usize,
    /// Number of nodes with EIM's agent.
    pub eim: usize,
    /// Number of sites of package nodes; a third of them is for nodes with EIM's agent. Image nodes are in two
    /// additional sites.
    pub sites: usize,
    /// Faults on the connections.
    pub faults: Faults,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// What a node really did.
#[derive(Clone, Debug)]
pub enum GroundTruth {
    /// A node with our own agent.
    Own(OwnGroundTruth),
    /// A node with EIM's agent.
    Eim(EimGroundTruth),
}

/// The simulated nodes.
#[derive(Debug)]
pub struct SimulatedFleet {
    /// Network that all connections share.
    pub network: Network,
    catalog: ImageCatalog,
    members: Vec<SimulatedMember>,
    nodes: Vec<SimulatedNode>,
}

#[derive(Debug)]
enum SimulatedNode {
    Own(Box<OwnNode>),
    Eim(Box<EimNode>),
}

/// What the nodes do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Live,
    Wait,
    Finish,
}

impl SimulatedFleet {
    /// Registers and enrolls the nodes.
    ///
    /// # Panics
    /// A node cannot join.
    pub async fn enroll(
        replicas: &Replicas,
        client: &OperatorClient,
        settings: FleetSettings,
    ) -> Self {
        let mut rng = Rng::new(settings.seed, 0);
        let sites = FleetSites::create(client, settings.sites).await;
        let mut fleet = Self {
            network: Network::new(settings.faults),
            catalog: ImageCatalog::create(client).await,
            members: Vec::new(),
            nodes: Vec::new(),
        };
        let mut registrar = NodeRegistrar::open(replicas, client).await;
        for n in 0..settings.own + settings.eim {
            if n % NODES_PER_CONNECTION == 0 {
                registrar.connect(replicas);
            }
            let uuid = rng.uuid();
            let kind = (n >= settings.own, n % NODES_PER_IMAGE_NODE == 0);
            let os = kind.1.then_some(fleet.catalog.oldest.as_str());
            let (mut member, credential) =
                join_node(&registrar, client, (uuid, kind.0, os), &mut rng).await;
            member.site.clone_from(sites.for_member(&member, n));
            let path = format!("compute/hosts/{}", member.host);
            let body = json!({ "siteId": member.site });
            let patched = client.send(0, Method::PATCH, &path, Some(&body)).await;
            patched.expect("a host can be moved to a site");
            let connection =
                NodeConnection::new(registrar.channels.clone(), &credential, &fleet.network);
            let connection = connection.expect("a credential");
            let clock = NodeClock::new(Arc::new(SystemClock), draw_skew(&mut rng));
            let part = Rng::new(settings.seed, n as u64 + 100);
            fleet.nodes.push(if member.is_eim {
                // EIM's reports have no number: the server cannot tell a late one from a new one.
                let connection = connection.with_faults(Faults { straggle: 0, ..settings.faults });
                let node = EimNode::new(&uuid.to_string(), clock, part, connection);
                let node = node.with_habits(eim::Pace::FAST, eim_habits(n - settings.own));
                SimulatedNode::Eim(Box::new(match os {
                    None => node,
                    Some(_) => node.with_image(ImageCatalog::first_image()),
                }))
            } else {
                let habits =
                    own::OwnHabits { uses_long_polls: n % 2 == 0, ..own::OwnHabits::default() };
                let node = OwnNode::new(clock, part, connection, habits);
                SimulatedNode::Own(Box::new(match os {
                    None => node,
                    Some(_) => node.with_image(PROFILE, &ImageCatalog::first_image().version),
                }))
            });
            fleet.members.push(member);
        }
        fleet
    }

    /// The images that the nodes may run.
    pub fn catalog(&self) -> ImageCatalog {
        self.catalog.clone()
    }

    /// Hosts, instances and sites of the nodes.
    pub fn members(&self) -> Vec<SimulatedMember> {
        self.members.clone()
    }

    /// Runs the nodes until this number of polls was answered, then awaits `pause`, and lets the nodes finish their
    /// open work. Returns what each node really did, and whether it finished.
    ///
    /// # Panics
    /// The task of a node panics.
    pub async fn run(
        self,
        polls: u64,
        pause: impl Future<Output = ()>,
    ) -> Vec<(SimulatedMember, GroundTruth, bool)> {
        let (phase_sender, phases) = watch::channel(Phase::Live);
        let mut tasks = JoinSet::new();
        for (number, (member, node)) in self.members.into_iter().zip(self.nodes).enumerate() {
            let phases = phases.clone();
            tasks.spawn(async move {
                let (ground_truth, is_done) = node.run(phases).await;
                (number, member, ground_truth, is_done)
            });
        }
        let begun = Instant::now();
        let mut reported_at = begun;
        while self.network.counters.polls.load(Ordering::Relaxed) < polls {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if reported_at.elapsed() > Duration::from_secs(15) {
                reported_at = Instant::now();
                print_progress(&format!("{:>6.0?} {:?}", begun.elapsed(), self.network.counters));
            }
        }
        phase_sender.send_replace(Phase::Wait);
        print_progress(&format!("{:>6.0?} {:?}", begun.elapsed(), self.network.counters));
        pause.await;
        self.network.stop_faults().await;
        phase_sender.send_replace(Phase::Finish);
        let mut done = tasks.join_all().await;
        done.sort_by_key(|(number, ..)| *number);
        done.into_iter()
            .map(|(_, member, ground_truth, is_done)| (member, ground_truth, is_done))
            .collect()
    }
}

impl SimulatedNode {
    async fn run(mut self, mut phases: watch::Receiver<Phase>) -> (GroundTruth, bool) {
        while *phases.borrow() == Phase::Live {
            let wait = self.turn().await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _changed = phases.changed() => {}
            }
        }
        drop(phases.wait_for(|phase| *phase == Phase::Finish).await);
        match &mut self {
            Self::Own(node) => node.finish(),
            Self::Eim(node) => node.finish(),
        }
        let begun = Instant::now();
        let mut is_done = false;
        while !is_done && begun.elapsed() < FINISH_TIMEOUT {
            let wait = self.turn().await;
            tokio::time::sleep(wait).await;
            is_done = match &self {
                Self::Own(node) => node.is_idle(),
                Self::Eim(node) => node.is_idle(),
            };
        }
        // The server accepts a failure of EIM's agent only after several reports.
        for _ in 0..10 {
            let wait = self.turn().await;
            tokio::time::sleep(wait).await;
        }
        match self {
            Self::Own(node) => (GroundTruth::Own(node.into_ground_truth()), is_done),
            Self::Eim(node) => (GroundTruth::Eim(node.into_ground_truth()), is_done),
        }
    }

    async fn turn(&mut self) -> Duration {
        match self {
            Self::Own(node) => node.turn().await,
            Self::Eim(node) => node.turn().await,
        }
    }
}

/// Sites of each kind of node. Nodes that need a pause between two windows have their own sites, and so have image
/// nodes.
struct FleetSites {
    busy: Vec<String>,
    calm: Vec<String>,
    busy_images: String,
    calm_images: String,
}

impl FleetSites {
    async fn create(client: &OperatorClient, count: usize) -> Self {
        let mut all = Vec::new();
        for n in 0..count + 2 {
            let site = json!({ "name": format!("site-{n}") });
            all.push(client.create("sites", &site).await);
        }
        let calm_images = all.pop().expect("a site");
        let busy_images = all.pop().expect("a site");
        let calm = all.split_off(count - count / 3);
        Self { busy: all, calm, busy_images, calm_images }
    }

    fn for_member(&self, member: &SimulatedMember, number: usize) -> &String {
        match (member.is_eim, member.is_image) {
            (false, false) => &self.busy[number % self.busy.len()],
            (true, false) => &self.calm[number % self.calm.len()],
            (false, true) => &self.busy_images,
            (true, true) => &self.calm_images,
        }
    }
}

/// Lets a node join. `uuid`, whether its agent is EIM's, and the ID of its image if it runs one.
async fn join_node(
    registrar: &NodeRegistrar,
    client: &OperatorClient,
    (uuid, is_eim, os): (Uuid, bool, Option<&str>),
    rng: &mut Rng,
) -> (SimulatedMember, String) {
    match (is_eim, os) {
        (true, None) => registrar.register(client, uuid).await,
        (true, Some(os)) => registrar.register_with(client, uuid, os).await,
        (false, None) => registrar.enroll(uuid, None, rng).await,
        (false, Some(os)) => {
            // Either the server knows the image before the node joins, or the node reports it.
            if rng.happens(500) {
                registrar.register_with(client, uuid, os).await;
            }
            let booted = BootedImage {
                profile_name: PROFILE.to_owned(),
                image_id: ImageCatalog::first_image().version,
            };
            registrar.enroll(uuid, Some(booted), rng).await
        }
    }
}

/// Habits of the node with EIM's agent that has this number.
fn eim_habits(number: usize) -> eim::EimHabits {
    let usual = eim::EimHabits::default();
    match number % EIM_NODES_PER_STUCK_NODE {
        1 => eim::EimHabits { stuck_per_mille: 1_000, ..usual },
        _ => usual,
    }
}

/// Error of a node's clock: none, a few seconds, or up to five minutes.
fn draw_skew(rng: &mut Rng) -> TimeDelta {
    TimeDelta::milliseconds(match rng.between(0, 9) {
        0..=3 => 0,
        4..=6 => rng.between_signed(-3_000, 3_000),
        _ => rng.between_signed(-300_000, 300_000),
    })
}
