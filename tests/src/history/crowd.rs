//! The nodes, each in a task of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_kit::SystemClock;
use evenkeel_proto::agent::BootedImage;
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
use uuid::Uuid;

use super::book::Member;
use super::desk::Desk;
use super::door::Door;
use super::gallery::{Gallery, PROFILE};
use super::replicas::Replicas;
use super::say;

/// How long nodes may take to finish what they have.
const FINISH: Duration = Duration::from_mins(3);

/// Nodes that share a connection to each server: a connection of its own for each would be mostly handshakes, because
/// servers are killed all the time.
const TOGETHER: usize = 4;

/// Of so many nodes one is updated by images, the others by packages.
const IMAGES: usize = 5;

/// Of so many nodes of the ancestor's agent one never comes to an end with any update: however short a history is, runs
/// are given up in it.
const STUCK: usize = 16;

/// How many nodes there are, and what goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Crowded {
    /// Of our own agent.
    pub own: usize,
    /// Of the ancestor's.
    pub eim: usize,
    /// In how many sites those are that are updated by packages; a third of them are the ancestor's nodes'. The others
    /// are in two more.
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
    gallery: Gallery,
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
        let sites = Sites::make(desk, crowded.sites).await;
        let mut crowd = Self {
            weather: Weather::new(crowded.faults),
            gallery: Gallery::open(desk).await,
            members: Vec::new(),
            nodes: Vec::new(),
        };
        let mut door = Door::open(replicas, desk).await;
        for n in 0..crowded.own + crowded.eim {
            if n % TOGETHER == 0 {
                door.connect(replicas);
            }
            let uuid = chance.uuid();
            let kind = (n >= crowded.own, n % IMAGES == 0);
            let os = kind.1.then_some(crowd.gallery.oldest.as_str());
            let (mut member, credential) = join(&door, desk, (uuid, kind.0, os), &mut chance).await;
            member.site.clone_from(sites.of(&member, n));
            let path = format!("/compute/hosts/{}", member.host);
            let body = json!({ "siteId": member.site });
            let patched = desk.ask(0, Method::PATCH, &path, Some(&body)).await;
            patched.expect("a host can be put into a site");
            let line = Line::new(door.channels.clone(), &credential, &crowd.weather);
            let line = line.expect("a credential");
            let clock = NodeClock::new(Arc::new(SystemClock), skew(&mut chance));
            let part = Chance::new(crowded.seed, n as u64 + 100);
            crowd.nodes.push(if member.is_eim {
                // What such an agent says has no number: what it says late cannot be told from news.
                let line = line.with_faults(Faults {
                    straggle: 0,
                    ..crowded.faults
                });
                let node = EimNode::new(&uuid.to_string(), clock, part, line);
                let node = node.living(eim::Pace::BRISK, habits(n - crowded.own));
                Node::Eim(Box::new(match os {
                    None => node,
                    Some(_) => node.with_image(Gallery::first_picture()),
                }))
            } else {
                let habits = own::Habits {
                    holds: n % 2 == 0,
                    ..own::Habits::default()
                };
                let node = OwnNode::new(clock, part, line, habits);
                Node::Own(Box::new(match os {
                    None => node,
                    Some(_) => node.with_image(PROFILE, &Gallery::first_picture().image),
                }))
            });
            crowd.members.push(member);
        }
        crowd
    }

    /// The images that they run and may run.
    pub fn gallery(&self) -> Gallery {
        self.gallery.clone()
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

/// The sites of each kind of nodes. Those who need rest between two windows are among themselves, and so are those who
/// are updated by images.
struct Sites {
    busy: Vec<String>,
    calm: Vec<String>,
    busy_images: String,
    calm_images: String,
}

impl Sites {
    async fn make(desk: &Desk, count: usize) -> Self {
        let mut all = Vec::new();
        for n in 0..count + 2 {
            let site = json!({ "name": format!("site-{n}") });
            all.push(desk.make("/sites", &site).await);
        }
        let calm_images = all.pop().expect("a site");
        let busy_images = all.pop().expect("a site");
        let calm = all.split_off(count - count / 3);
        Self {
            busy: all,
            calm,
            busy_images,
            calm_images,
        }
    }

    fn of(&self, member: &Member, number: usize) -> &String {
        match (member.is_eim, member.is_image) {
            (false, false) => &self.busy[number % self.busy.len()],
            (true, false) => &self.calm[number % self.calm.len()],
            (false, true) => &self.busy_images,
            (true, true) => &self.calm_images,
        }
    }
}

/// Lets a node in: with its UUID, whether its agent is the ancestor's, and the image that it runs if it runs one.
async fn join(
    door: &Door,
    desk: &Desk,
    (uuid, is_eim, os): (Uuid, bool, Option<&str>),
    chance: &mut Chance,
) -> (Member, String) {
    match (is_eim, os) {
        (true, None) => door.register(desk, uuid).await,
        (true, Some(os)) => door.register_with(desk, uuid, os).await,
        (false, None) => door.enroll(uuid, None, chance).await,
        (false, Some(os)) => {
            // What it runs is known before it joins, or it says so itself.
            if chance.hits(500) {
                door.register_with(desk, uuid, os).await;
            }
            let booted = BootedImage {
                profile_name: PROFILE.to_owned(),
                image_id: Gallery::first_picture().image,
            };
            door.enroll(uuid, Some(booted), chance).await
        }
    }
}

/// How the ancestor's node of this number lives.
fn habits(number: usize) -> eim::Habits {
    let usual = eim::Habits::default();
    match number % STUCK {
        1 => eim::Habits {
            stuck: 1_000,
            ..usual
        },
        _ => usual,
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
