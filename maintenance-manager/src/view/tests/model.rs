//! Whatever happens in whatever order: no answer is recalled that is older than a change of its node which was marked.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const NODES: u32 = 4;

/// Something that happens. Numbers name nodes, sites, regions or evaluations, as far as there are as many.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody is about to look a node up in the database.
    Begin(u32),
    /// He sees the database.
    See(usize),
    /// He has an answer.
    Finish(usize),
    Commit(Wrote),
    /// Something about a node is committed by this process.
    Report(u32),
    /// The follower reads and marks so much.
    Pass(usize),
    /// The log is lost, and followed from its end.
    Rebuild,
}

#[derive(Clone, Copy, Debug)]
enum Wrote {
    Node(u32),
    Move(u32, u32),
    Lie(u32, u32),
    Site(u32),
    Region(u32),
    Project,
    Slot(u32),
}

/// The database, and what looks into it.
struct World {
    view: View,
    /// Where the nodes stand.
    sites: Vec<u32>,
    /// Where the sites lie.
    regions: Vec<u32>,
    /// What was committed: a change, and whom it concerns.
    log: Vec<(Change, Vec<u32>)>,
    /// How much of that was marked.
    marked: usize,
    /// For each node, how much was committed when this process wrote about it.
    reported: Vec<usize>,
    looking: Vec<Looking>,
}

struct Looking {
    node: u32,
    as_of: Option<Pass>,
    seen: Option<Learnt>,
}

impl World {
    fn new() -> Self {
        let count = usize::try_from(NODES).expect("a small number");
        Self {
            view: view(),
            sites: vec![0; count],
            regions: vec![0; count],
            log: Vec::new(),
            marked: 0,
            reported: vec![0; count],
            looking: Vec::new(),
        }
    }

    fn at<T: Copy>(of: &[T], n: u32) -> T {
        of[usize::try_from(n).expect("a small number")]
    }

    fn region(&self, node: u32) -> u32 {
        Self::at(&self.regions, Self::at(&self.sites, node))
    }

    /// What the database says at this moment. The tag is how much was committed.
    fn see(&self, looking: &Looking) -> Learnt {
        let node = looking.node;
        let site = Self::at(&self.sites, node);
        // Half of them go by the limits of their site.
        let counted = node
            .is_multiple_of(2)
            .then(|| Scope::Site(SiteId::nth(site)));
        let committed = u64::try_from(self.log.len()).expect("a small number");
        Learnt {
            answer: Answer {
                counted,
                ..answer(committed)
            },
            as_of: looking.as_of,
            ..found_at(&self.view, node, site, self.region(node))
        }
    }

    fn those(is_concerned: impl Fn(u32) -> bool) -> Vec<u32> {
        (0..NODES).filter(|node| is_concerned(*node)).collect()
    }

    fn commit(&mut self, wrote: Wrote) {
        let site = |node| Self::at(&self.sites, node);
        let (change, concerned) = match wrote {
            Wrote::Node(node) => (wished(Scope::Instance(InstanceId::nth(node))), vec![node]),
            Wrote::Move(node, to) => {
                self.sites[usize::try_from(node).expect("a small number")] = to;
                let host = Scope::Host(HostId::nth(node));
                (changed(Kind::Host, Some(host)), vec![node])
            }
            Wrote::Lie(one, region) => {
                let those = Self::those(|node| site(node) == one);
                self.regions[usize::try_from(one).expect("a small number")] = region;
                let scope = Scope::Site(SiteId::nth(one));
                (changed(Kind::Site, Some(scope)), those)
            }
            Wrote::Site(one) => {
                let scope = Scope::Site(SiteId::nth(one));
                (wished(scope), Self::those(|node| site(node) == one))
            }
            Wrote::Region(one) => {
                let scope = Scope::Region(RegionId::nth(one));
                (wished(scope), Self::those(|node| self.region(node) == one))
            }
            Wrote::Project => (changed(Kind::Settings, None), Self::those(|_| true)),
            Wrote::Slot(one) => {
                let scope = Scope::Site(SiteId::nth(one));
                let those = Self::those(|node| node % 2 == 0 && site(node) == one);
                (changed(Kind::Slot, Some(scope)), those)
            }
        };
        self.log.push((change, concerned));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin(node) => self.looking.push(Looking {
                node,
                as_of: self.view.pass(),
                seen: None,
            }),
            Step::See(n) if n < self.looking.len() => {
                let seen = self.see(&self.looking[n]);
                self.looking[n].seen.get_or_insert(seen);
            }
            Step::Finish(n) if n < self.looking.len() => {
                let looking = self.looking.remove(n);
                let seen = looking.seen.clone();
                let seen = seen.unwrap_or_else(|| self.see(&looking));
                self.view.learn(seen, NOW);
            }
            Step::See(_) | Step::Finish(_) => {}
            Step::Commit(wrote) => self.commit(wrote),
            Step::Report(node) => {
                self.commit(Wrote::Node(node));
                self.reported[usize::try_from(node).expect("a small number")] = self.log.len();
                self.view
                    .forget(project(1), HostId::nth(node), InstanceId::nth(node));
            }
            Step::Pass(most) => {
                let end = self.log.len().min(self.marked + most);
                let changes = self.log[self.marked..end].iter();
                let changes: Vec<Change> = changes.map(|(change, _)| *change).collect();
                self.view.apply(&changes);
                self.marked = end;
            }
            Step::Rebuild => {
                self.marked = self.log.len();
                self.view.rebuild("test");
                catch_up(&self.view);
            }
        }
    }

    /// How much of the log an answer for a node must know at the least.
    fn least(&self, node: u32) -> usize {
        let mut marked = self.log[..self.marked].iter();
        let last = marked.rposition(|(_, concerned)| concerned.contains(&node));
        let last = last.map_or(0, |at| at + 1);
        last.max(Self::at(&self.reported, node))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for node in 0..NODES {
            if let Some(hit) = recalled(&self.view, &own(node)) {
                let known = usize::try_from(hit.answer.tag).expect("a small number");
                let least = self.least(node);
                prop_assert!(known >= least, "node {node}: {known} < {least}");
            }
        }
        Ok(())
    }
}

fn wrote() -> impl Strategy<Value = Wrote> {
    let one = 0..NODES;
    prop_oneof![
        one.clone().prop_map(Wrote::Node),
        (one.clone(), one.clone()).prop_map(|(node, site)| Wrote::Move(node, site)),
        (one.clone(), one.clone()).prop_map(|(site, region)| Wrote::Lie(site, region)),
        one.clone().prop_map(Wrote::Site),
        one.clone().prop_map(Wrote::Region),
        Just(Wrote::Project),
        one.prop_map(Wrote::Slot),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let one = 0..NODES;
    prop_oneof![
        4 => one.clone().prop_map(Step::Begin),
        3 => (0..4_usize).prop_map(Step::See),
        4 => (0..4_usize).prop_map(Step::Finish),
        3 => wrote().prop_map(Step::Commit),
        1 => one.prop_map(Step::Report),
        2 => (0..4_usize).prop_map(Step::Pass),
        1 => Just(Step::Rebuild),
    ]
}

proptest! {
    #[test]
    fn no_answer_is_older_than_what_was_marked(steps in vec(step(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check()?;
        }
    }
}

#[test]
fn the_model_recalls_at_all() {
    let mut world = World::new();
    for step in [Step::Begin(1), Step::See(0), Step::Finish(0)] {
        world.take(step);
    }
    assert!(recalled(&world.view, &own(1)).is_some());
}
