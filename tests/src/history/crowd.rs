//! The nodes, each in a task of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_kit::SystemClock;
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::clock::NodeClock;
use evenkeel_simulator::eim::{self, EimNode};
use evenkeel_simulator::line::{Faults, Line, Weather};
use evenkeel_simulator::own::{self, OwnNode};
use evenkeel_simulator::truth::{EimTruth, OwnTruth};
use reqwest::Method;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::book::Member;
use super::desk::Desk;
use super::door::Door;
use super::replicas::Replicas;
use super::say;

/// How long nodes may take to finish what they have.
const FINISH: Duration = Duration::from_mins(3);

/// Nodes that share a connection to each server: a connection of its own for each would be mostly handshakes, because
/// servers are killed all the time.
const TOGETHER: usize = 4;

/// How many nodes there are, and what goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Crowded {
    /// Of our own agent.
    pub own: usize,
    /// Of the ancestor's.
    pub eim: usize,
    /// In how many sites they are; a third of them are the ancestor's nodes'.
    pub sites: usize,
    /// What goes wrong on the lines.
    pub faults: Faults,
    /// Everything is drawn from this.
    pub seed: u64,
}

/// What a node really did.
#[derive(Clone, Debug)]
pub enum Truth {
    /// A node of our own agent.
    Own(OwnTruth),
    /// A node of the ancestor's.
    Eim(EimTruth),
}

/// The nodes.
#[derive(Debug)]
pub struct Crowd {
    /// What all lines share.
    pub weather: Weather,
    members: Vec<Member>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
enum Node {
    Own(Box<OwnNode>),
    Eim(Box<EimNode>),
}

/// What the nodes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Live,
    Wait,
    Finish,
}

impl Crowd {
    /// Lets nodes join.
    ///
    /// # Panics
    /// They cannot.
    pub async fn gather(replicas: &Replicas, desk: &Desk, crowded: Crowded) -> Self {
        let mut chance = Chance::new(crowded.seed, 0);
        let mut sites = Vec::new();
        for n in 0..crowded.sites {
            sites.push(
                desk.make("/sites", &json!({ "name": format!("site-{n}") }))
                    .await,
            );
        }
        let mut crowd = Self {
            weather: Weather::new(crowded.faults),
            members: Vec::new(),
            nodes: Vec::new(),
        };
        let mut door = Door::open(replicas, desk).await;
        for n in 0..crowded.own + crowded.eim {
            if n % TOGETHER == 0 {
                door.connect(replicas);
            }
            let is_own = n < crowded.own;
            let uuid = chance.uuid();
            let (mut member, credential) = if is_own {
                door.enroll(uuid, &mut chance).await
            } else {
                door.register(desk, uuid).await
            };
            // Those who need rest between two windows are among themselves.
            let (busy, calm) = sites.split_at(sites.len() - sites.len() / 3);
            let among = if is_own { busy } else { calm };
            member.site.clone_from(&among[n % among.len()]);
            let path = format!("/compute/hosts/{}", member.host);
            let body = json!({ "siteId": member.site });
            let patched = desk.ask(0, Method::PATCH, &path, Some(&body)).await;
            patched.expect("a host can be put into a site");
            let line = Line::new(door.channels.clone(), &credential, &crowd.weather);
            let line = line.expect("a credential");
            let clock = NodeClock::new(Arc::new(SystemClock), skew(&mut chance));
            let part = Chance::new(crowded.seed, n as u64 + 100);
            crowd.nodes.push(if is_own {
                Node::Own(Box::new(OwnNode::new(
                    clock,
                    part,
                    line,
                    own::Habits::default(),
                )))
            } else {
                // What such an agent says has no number: what it says late cannot be told from news.
                let line = line.with_faults(Faults {
                    straggle: 0,
                    ..crowded.faults
                });
                let node = EimNode::new(&uuid.to_string(), clock, part, line);
                Node::Eim(Box::new(
                    node.living(eim::Pace::BRISK, eim::Habits::default()),
                ))
            });
            crowd.members.push(member);
        }
        crowd
    }

    /// The nodes' places.
    pub fn members(&self) -> Vec<Member> {
        self.members.clone()
    }

    /// Lets the nodes live until so many polls were answered, then calls `pause`; when that has ended they finish what
    /// they have. Returns what each really did, and whether it came to an end with it.
    ///
    /// # Panics
    /// A node does.
    pub async fn live(
        self,
        polls: u64,
        pause: impl Future<Output = ()>,
    ) -> Vec<(Member, Truth, bool)> {
        let (tell, told) = watch::channel(Phase::Live);
        let mut tasks = JoinSet::new();
        for (number, (member, node)) in self.members.into_iter().zip(self.nodes).enumerate() {
            let told = told.clone();
            tasks.spawn(async move {
                let (truth, is_done) = node.live(told).await;
                (number, member, truth, is_done)
            });
        }
        let begun = Instant::now();
        let mut shown = begun;
        while self.weather.tally.polls.load(Ordering::Relaxed) < polls {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if shown.elapsed() > Duration::from_secs(15) {
                shown = Instant::now();
                say(&format!(
                    "{:>6.0?} {:?}",
                    begun.elapsed(),
                    self.weather.tally
                ));
            }
        }
        tell.send_replace(Phase::Wait);
        say(&format!(
            "{:>6.0?} {:?}",
            begun.elapsed(),
            self.weather.tally
        ));
        pause.await;
        self.weather.calm_down().await;
        tell.send_replace(Phase::Finish);
        let mut done = tasks.join_all().await;
        done.sort_by_key(|(number, ..)| *number);
        done.into_iter()
            .map(|(_, member, truth, is_done)| (member, truth, is_done))
            .collect()
    }
}

impl Node {
    async fn live(mut self, mut told: watch::Receiver<Phase>) -> (Truth, bool) {
        while *told.borrow() == Phase::Live {
            let wait = self.turn().await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _changed = told.changed() => {}
            }
        }
        drop(told.wait_for(|phase| *phase == Phase::Finish).await);
        match &mut self {
            Self::Own(node) => node.finish(),
            Self::Eim(node) => node.finish(),
        }
        let begun = Instant::now();
        let mut is_done = false;
        while !is_done && begun.elapsed() < FINISH {
            let wait = self.turn().await;
            tokio::time::sleep(wait).await;
            is_done = match &self {
                Self::Own(node) => node.is_idle(),
                Self::Eim(node) => node.is_idle(),
            };
        }
        // A failure is believed only when it is said several times.
        for _ in 0..10 {
            let wait = self.turn().await;
            tokio::time::sleep(wait).await;
        }
        match self {
            Self::Own(node) => (Truth::Own(node.into_truth()), is_done),
            Self::Eim(node) => (Truth::Eim(node.into_truth()), is_done),
        }
    }

    async fn turn(&mut self) -> Duration {
        match self {
            Self::Own(node) => node.turn().await,
            Self::Eim(node) => node.turn().await,
        }
    }
}

/// By how much a node's clock is wrong: not at all, a little, or up to five minutes.
fn skew(chance: &mut Chance) -> TimeDelta {
    TimeDelta::milliseconds(match chance.between(0, 9) {
        0..=3 => 0,
        4..=6 => chance.signed(-3_000, 3_000),
        _ => chance.signed(-300_000, 300_000),
    })
}
