//! Whoever makes windows, changes wishes, pauses and orders, all the time, and keeps a book of it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::clock::Time;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::book::{Book, Held, Member, Opened, Paused, Scope, Step, Wished};
use super::desk::{Desk, Trouble};
use super::gallery::Gallery;
use super::replicas::machine_time;

/// How many policies there are to choose from.
const POLICIES: usize = 5;

/// An operator with much to do.
#[derive(Debug)]
pub struct Operator {
    pub(super) desk: Desk,
    pub(super) chance: Chance,
    policies: Vec<String>,
    gallery: Gallery,
    /// What windows and wishes can be meant for, wide scopes first.
    wide: Vec<Scope>,
    members: Vec<Member>,
    /// Those of our own agent that are updated by images.
    imaged: Vec<Member>,
    pub(super) book: Book,
    /// The ids of schedules in the book, by their place in it.
    schedules: Vec<(String, usize)>,
    /// The ids of those that repeat themselves.
    pub(super) repeated: Vec<(String, usize)>,
}

impl Operator {
    /// An operator for these nodes. Makes policies, and wishes the first one for everybody. `patience` is how long the
    /// servers let a run stand still.
    pub async fn new(
        desk: Desk,
        chance: Chance,
        (members, gallery): (Vec<Member>, Gallery),
        patience: TimeDelta,
    ) -> Self {
        let mut policies = Vec::new();
        for n in 0..POLICIES {
            let policy = json!({
                "name": format!("wish-{n}"),
                "updatePolicy": "UPDATE_POLICY_TARGET",
                "updatePackages": format!("demo-{n}"),
            });
            policies.push(desk.make("/os-update-policies", &policy).await);
        }
        let mut wide = vec!["project".to_owned()];
        for member in &members {
            if !member.site.is_empty() && !wide.contains(&member.site) {
                wide.push(member.site.clone());
            }
        }
        let book = Book {
            patience,
            ..gallery.book()
        };
        let is_imaged = |member: &&Member| member.is_image && !member.is_eim;
        let mut operator = Self {
            desk,
            chance,
            policies,
            gallery,
            wide,
            imaged: members.iter().filter(is_imaged).cloned().collect(),
            members,
            book,
            schedules: Vec::new(),
            repeated: Vec::new(),
        };
        let first = operator.policies[0].clone();
        operator.wish("project".to_owned(), first).await;
        for scope in operator.wide.clone() {
            if operator.is_of_images(&scope) {
                let newest = operator.gallery.policies[0].clone();
                operator.wish(scope, newest).await;
            }
        }
        operator
    }

    /// Works until it is asked to stop; then takes everything back that would begin or hold anything.
    pub async fn work(mut self, stop: CancellationToken) -> Book {
        while !stop.is_cancelled() {
            self.step().await;
            let pause = Duration::from_millis(self.chance.between(40, 260));
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.leave().await;
        self.book
    }

    async fn step(&mut self) {
        match self.chance.between(0, 99) {
            0..=24 => {
                let scope = self.wide_scope();
                self.open(scope).await;
            }
            25..=27 => {
                let scope = self.wide_scope();
                self.repeat(scope).await;
            }
            28 => self.repeat_no_more().await,
            29 => {
                let server = usize::from(self.chance.hits(500));
                self.gallery
                    .publish(&self.desk, server, &mut self.book)
                    .await;
            }
            30..=39 => {
                let host = self.member().host;
                self.open(host).await;
            }
            40..=59 => {
                let scope = self.wide_scope();
                self.assign(scope).await;
            }
            60..=69 => {
                let member = self.member();
                let scope = if self.chance.hits(500) {
                    member.host
                } else {
                    member.instance
                };
                self.assign(scope).await;
            }
            70..=77 => self.unassign().await,
            78..=81 => self.close().await,
            82..=85 => {
                let scope = self.pause_scope();
                self.pause(scope).await;
            }
            86..=92 => self.resume().await,
            // What failed on a node stays away from it until somebody orders it.
            93..=95 => {
                let member = self.held_back().await;
                self.order(member, true).await;
            }
            _ => {
                let member = self.member();
                let is_now = self.chance.hits(600);
                self.order(member, is_now).await;
            }
        }
    }

    fn member(&mut self) -> Member {
        self.chance.pick(&self.members).clone()
    }

    /// A node of our own agent that is updated by images: one whose image failed there, if there is one.
    async fn held_back(&mut self) -> Member {
        let any = self.chance.pick(&self.imaged).clone();
        for member in &self.imaged {
            let path = format!("/compute/instances/{}", member.instance);
            let instance = self.desk.get(&path).await;
            let mut conditions = instance["conditions"].as_array().into_iter().flatten();
            // Not always the first of them: it may fail again and again.
            if conditions.any(|one| one["type"] == "quarantined") && self.chance.hits(500) {
                return member.clone();
            }
        }
        any
    }

    fn wide_scope(&mut self) -> Scope {
        self.chance.pick(&self.wide).clone()
    }

    /// Whether it is one of nodes that are updated by images.
    fn is_of_images(&self, scope: &str) -> bool {
        let mut members = self.members.iter();
        scope != "project" && members.any(|member| member.is_image && member.is_in(scope))
    }

    /// A place for a window. A project has none of its own: its first site stands for it.
    pub(super) fn place(&self, scope: Scope) -> Scope {
        if scope == "project" {
            self.wide[1 % self.wide.len()].clone()
        } else {
            scope
        }
    }

    fn pause_scope(&mut self) -> Scope {
        if self.chance.hits(400) {
            self.chance.pick(&self.policies).clone()
        } else {
            self.wide_scope()
        }
    }

    /// Makes a window: mostly a short one soon; sometimes one that only nodes with a wrong clock take for now.
    async fn open(&mut self, scope: Scope) {
        let scope = self.place(scope);
        let needs_rest = |member: &&Member| member.is_eim && member.is_in(&scope);
        let is_calm = self.members.iter().any(|member| needs_rest(&member));
        let now = machine_time();
        let mut before = self
            .book
            .windows
            .iter()
            .filter(|opened| opened.scope == scope);
        if is_calm && before.any(|opened| now < opened.window.1) {
            return;
        }
        let from = match self.chance.between(0, 9) {
            0 | 1 if !is_calm => self.chance.signed(285, 310),
            _ => self.chance.signed(2, 5),
        };
        let length = match self.chance.between(0, 19) {
            0 if !is_calm => self.chance.signed(600, 1_200),
            _ if is_calm => self.chance.signed(16, 26),
            _ => self.chance.signed(2, 12),
        };
        let start = now.timestamp() + from;
        let end = start + length;
        let mut body = json!({
            "name": "window",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start,
            "endSeconds": end,
        });
        body[target_of(&scope)] = Value::from(scope.clone());
        let server = usize::from(self.chance.hits(500));
        let asked = machine_time();
        let made = self
            .desk
            .ask(server, Method::POST, "/schedules/single", Some(&body))
            .await;
        let done = made.is_ok().then(machine_time);
        if let Err(Trouble::Refused(status, text)) = &made {
            // It took so long that the start had passed.
            assert_eq!(*status, 400, "POST /schedules/single {body}: {text}");
            return;
        }
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        if let Ok(made) = made {
            let id = made["resourceId"].as_str().unwrap_or_default().to_owned();
            self.schedules.push((id, self.book.windows.len()));
        }
        self.book.windows.push(Opened {
            scope,
            window: (at(start), at(end)),
            is_order: false,
            held: Held::since(Step { asked, done }),
        });
    }

    /// Takes a window back.
    async fn close(&mut self) {
        if self.schedules.is_empty() {
            return;
        }
        let last = self.schedules.len() - 1;
        let at = usize::try_from(self.chance.between(0, last as u64)).unwrap_or(0);
        let (id, window) = self.schedules.swap_remove(at);
        let path = format!("/schedules/single/{id}");
        let (_, step) = self.desk.until_done(Method::DELETE, &path, None).await;
        self.book.windows[window].held.gone = Some(step);
    }

    async fn assign(&mut self, scope: Scope) {
        let policy = if self.is_of_images(&scope) {
            // What is newest is worth the most, and what was published last is next.
            let all = &self.gallery.policies;
            let few = [&all[0], &all[all.len() - 1], self.chance.pick(all)];
            (*self.chance.pick(&few)).clone()
        } else {
            self.chance.pick(&self.policies).clone()
        };
        self.wish(scope, policy).await;
    }

    async fn wish(&mut self, scope: Scope, policy: String) {
        let mut body = json!({ "osUpdatePolicyId": policy });
        if self.chance.hits(150) {
            body["maxConcurrent"] = Value::from(self.chance.between(1, 4));
        }
        if self.chance.hits(50) {
            body["stopAfterFailures"] = Value::from(self.chance.between(2, 6));
        }
        let path = format!("/assignments/{scope}");
        let (answer, step) = self.desk.until_done(Method::PUT, &path, Some(&body)).await;
        answer.unwrap_or_else(|trouble| panic!("PUT {path} {body}: {trouble:?}"));
        self.book.forget(&scope, step);
        self.book.wishes.push(Wished {
            scope,
            policy,
            held: Held::since(step),
        });
    }

    async fn unassign(&mut self) {
        let open: Vec<_> = self
            .book
            .wishes
            .iter()
            .filter(|wished| wished.held.gone.is_none())
            .collect();
        // Mostly something narrow, so that there is mostly something to do.
        let narrow: Vec<_> = open
            .iter()
            .filter(|wished| wished.scope != "project")
            .collect();
        if !narrow.is_empty() {
            let scope = self.chance.pick(&narrow).scope.clone();
            self.take_back(&scope).await;
        } else if self.chance.hits(100) {
            self.take_back("project").await;
        }
    }

    async fn take_back(&mut self, scope: &str) {
        let path = format!("/assignments/{scope}");
        let (_, step) = self.desk.until_done(Method::DELETE, &path, None).await;
        self.book.forget(scope, step);
    }

    async fn pause(&mut self, scope: Scope) {
        if self
            .book
            .pauses
            .iter()
            .any(|paused| paused.scope == scope && paused.held.gone.is_none())
        {
            return;
        }
        let path = format!("/pauses/{scope}");
        let body = json!({ "reason": "as drawn by lot" });
        let (answer, step) = self.desk.until_done(Method::PUT, &path, Some(&body)).await;
        answer.unwrap_or_else(|trouble| panic!("PUT {path}: {trouble:?}"));
        let held = Held::since(step);
        self.book.pauses.push(Paused { scope, held });
    }

    /// Takes all pauses back.
    async fn resume(&mut self) {
        for paused in self
            .book
            .pauses
            .iter_mut()
            .filter(|paused| paused.held.gone.is_none())
        {
            let path = format!("/pauses/{}", paused.scope);
            let (_, step) = self.desk.until_done(Method::DELETE, &path, None).await;
            paused.held.gone = Some(step);
        }
    }

    /// Orders an update of a node now, or that what has not begun is given up.
    async fn order(&mut self, member: Member, is_now: bool) {
        let path = format!("/compute/instances/{}/order", member.instance);
        let seconds = self.chance.signed(3, 20);
        let body = if is_now {
            json!({ "kind": "now", "seconds": seconds, "reason": "as drawn by lot" })
        } else {
            json!({ "kind": "cancel", "reason": "as drawn by lot" })
        };
        let (answer, step) = self.desk.until_done(Method::PUT, &path, Some(&body)).await;
        answer.unwrap_or_else(|trouble| panic!("PUT {path} {body}: {trouble:?}"));
        let until = |at: Time| at + TimeDelta::seconds(seconds);
        // The latest order of an instance replaces the one before.
        let mut before = self.book.windows.iter_mut();
        if let Some(last) = before.rfind(|o| o.is_order && o.scope == member.instance) {
            last.held.gone.get_or_insert(step);
        }
        if is_now {
            self.book.windows.push(Opened {
                scope: member.instance,
                window: (step.asked, step.done.map_or(step.asked, until)),
                is_order: true,
                held: Held::since(step),
            });
        } else {
            self.book.cancelled.push((member.instance, step));
        }
    }

    /// Leaves nothing behind that would begin or hold anything.
    async fn leave(&mut self) {
        self.resume().await;
        let open: Vec<_> = self
            .book
            .wishes
            .iter()
            .filter(|wished| wished.held.gone.is_none())
            .collect();
        let scopes: Vec<_> = open.iter().map(|wished| wished.scope.clone()).collect();
        for scope in scopes {
            self.take_back(&scope).await;
        }
    }
}

/// The field of a schedule that says for whom it is.
pub(super) fn target_of(scope: &str) -> &'static str {
    if scope.starts_with("host-") {
        "targetHostId"
    } else {
        "targetSiteId"
    }
}

impl Book {
    /// The wish of a scope is replaced, or taken back.
    fn forget(&mut self, scope: &str, step: Step) {
        for wished in &mut self.wishes {
            if wished.scope == scope && wished.held.gone.is_none() {
                wished.held.gone = Some(step);
            }
        }
    }
}
