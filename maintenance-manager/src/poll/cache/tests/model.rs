//! In any order of events, no answer is found that is older than a marked change of its node.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const NODES: u32 = 4;

/// An event. Numbers name nodes, sites, regions or reads; those without an object are ignored.
#[derive(Clone, Copy, Debug)]
enum ModelStep {
    /// A reader is about to look a node up in the database.
    BeginRead(u32),
    /// The reader sees the database.
    ReadDatabase(usize),
    /// The reader has an answer.
    FinishRead(usize),
    Commit(ModelWrite),
    /// This process commits a change of a node.
    CommitHere(u32),
    /// The follower reads and applies this many changes.
    FollowerPass(usize),
    /// The position in the log is lost, and the log is followed from its end.
    LoseLog,
}

#[derive(Clone, Copy, Debug)]
enum ModelWrite {
    Node(u32),
    MoveHost(u32, u32),
    MoveSite(u32, u32),
    Site(u32),
    Region(u32),
    Project,
    Slot(u32),
}

/// The database and its readers.
struct CacheModel {
    cache: AnswerCache,
    /// The site of each node.
    sites: Vec<u32>,
    /// The region of each site.
    regions: Vec<u32>,
    /// The committed changes, each with the nodes that it affects.
    log: Vec<(LoggedChange, Vec<u32>)>,
    /// The number of applied changes.
    marked: usize,
    /// For each node the length of the log at its last commit in this process.
    reported: Vec<usize>,
    pending_reads: Vec<PendingRead>,
}

struct PendingRead {
    node: u32,
    as_of: Option<Pass>,
    answer: Option<NewAnswer>,
}

impl CacheModel {
    fn new() -> Self {
        let count = usize::try_from(NODES).expect("a small number");
        Self {
            cache: cache(),
            sites: vec![0; count],
            regions: vec![0; count],
            log: Vec::new(),
            marked: 0,
            reported: vec![0; count],
            pending_reads: Vec::new(),
        }
    }

    fn at<T: Copy>(of: &[T], n: u32) -> T {
        of[usize::try_from(n).expect("a small number")]
    }

    fn region(&self, node: u32) -> u32 {
        Self::at(&self.regions, Self::at(&self.sites, node))
    }

    /// The current answer of the database. Its tag is the length of the log.
    fn read_database(&self, read: &PendingRead) -> NewAnswer {
        let node = read.node;
        let site = Self::at(&self.sites, node);
        // Half of the nodes depend on the limits of their site.
        let counted = node.is_multiple_of(2).then(|| Scope::Site(SiteId::nth(site)));
        let committed = u64::try_from(self.log.len()).expect("a small number");
        NewAnswer {
            answer: Answer { limit_scope: counted, ..answer(committed) },
            as_of: read.as_of,
            ..fresh_answer_at(&self.cache, node, site, self.region(node))
        }
    }

    fn nodes_where(is_concerned: impl Fn(u32) -> bool) -> Vec<u32> {
        (0..NODES).filter(|node| is_concerned(*node)).collect()
    }

    fn commit(&mut self, write: ModelWrite) {
        let site = |node| Self::at(&self.sites, node);
        let (change, concerned) = match write {
            ModelWrite::Node(node) => {
                (assigned(Scope::Instance(InstanceId::nth(node))), vec![node])
            }
            ModelWrite::MoveHost(node, to) => {
                self.sites[usize::try_from(node).expect("a small number")] = to;
                let host = Scope::Host(HostId::nth(node));
                (changed(ChangeKind::Host, Some(host)), vec![node])
            }
            ModelWrite::MoveSite(target, region) => {
                let affected = Self::nodes_where(|node| site(node) == target);
                self.regions[usize::try_from(target).expect("a small number")] = region;
                let scope = Scope::Site(SiteId::nth(target));
                (changed(ChangeKind::Site, Some(scope)), affected)
            }
            ModelWrite::Site(target) => {
                let scope = Scope::Site(SiteId::nth(target));
                (assigned(scope), Self::nodes_where(|node| site(node) == target))
            }
            ModelWrite::Region(target) => {
                let scope = Scope::Region(RegionId::nth(target));
                (assigned(scope), Self::nodes_where(|node| self.region(node) == target))
            }
            ModelWrite::Project => {
                (changed(ChangeKind::Settings, None), Self::nodes_where(|_| true))
            }
            ModelWrite::Slot(target) => {
                let scope = Scope::Site(SiteId::nth(target));
                let affected = Self::nodes_where(|node| node % 2 == 0 && site(node) == target);
                (changed(ChangeKind::Slot, Some(scope)), affected)
            }
        };
        self.log.push((change, concerned));
    }

    fn run_step(&mut self, step: ModelStep) {
        match step {
            ModelStep::BeginRead(node) => self.pending_reads.push(PendingRead {
                node,
                as_of: self.cache.last_pass(),
                answer: None,
            }),
            ModelStep::ReadDatabase(n) if n < self.pending_reads.len() => {
                let answer = self.read_database(&self.pending_reads[n]);
                self.pending_reads[n].answer.get_or_insert(answer);
            }
            ModelStep::FinishRead(n) if n < self.pending_reads.len() => {
                let read = self.pending_reads.remove(n);
                let answer = read.answer.clone();
                let answer = answer.unwrap_or_else(|| self.read_database(&read));
                self.cache.insert(answer, NOW);
            }
            ModelStep::ReadDatabase(_) | ModelStep::FinishRead(_) => {}
            ModelStep::Commit(write) => self.commit(write),
            ModelStep::CommitHere(node) => {
                self.commit(ModelWrite::Node(node));
                self.reported[usize::try_from(node).expect("a small number")] = self.log.len();
                self.cache.invalidate_node(project(1), HostId::nth(node), InstanceId::nth(node));
            }
            ModelStep::FollowerPass(most) => {
                let end = self.log.len().min(self.marked + most);
                let changes = self.log[self.marked..end].iter();
                let changes: Vec<LoggedChange> = changes.map(|(change, _)| *change).collect();
                self.cache.apply_changes(&changes);
                self.marked = end;
            }
            ModelStep::LoseLog => {
                self.marked = self.log.len();
                self.cache.invalidate_all("test");
                catch_up(&self.cache);
            }
        }
    }

    /// The minimum number of changes that a valid answer for a node must include.
    fn min_known(&self, node: u32) -> usize {
        let mut marked = self.log[..self.marked].iter();
        let last = marked.rposition(|(_, concerned)| concerned.contains(&node));
        let last = last.map_or(0, |at| at + 1);
        last.max(Self::at(&self.reported, node))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for node in 0..NODES {
            if let Some(hit) = lookup(&self.cache, &own(node)) {
                let known_changes = usize::try_from(hit.answer.tag).expect("a small number");
                let min_known = self.min_known(node);
                prop_assert!(
                    known_changes >= min_known,
                    "node {node}: {known_changes} < {min_known}"
                );
            }
        }
        Ok(())
    }
}

fn write_strategy() -> impl Strategy<Value = ModelWrite> {
    let one = 0..NODES;
    prop_oneof![
        one.clone().prop_map(ModelWrite::Node),
        (one.clone(), one.clone()).prop_map(|(node, site)| ModelWrite::MoveHost(node, site)),
        (one.clone(), one.clone()).prop_map(|(site, region)| ModelWrite::MoveSite(site, region)),
        one.clone().prop_map(ModelWrite::Site),
        one.clone().prop_map(ModelWrite::Region),
        Just(ModelWrite::Project),
        one.prop_map(ModelWrite::Slot),
    ]
}

fn step_strategy() -> impl Strategy<Value = ModelStep> {
    let one = 0..NODES;
    prop_oneof![
        4 => one.clone().prop_map(ModelStep::BeginRead),
        3 => (0..4_usize).prop_map(ModelStep::ReadDatabase),
        4 => (0..4_usize).prop_map(ModelStep::FinishRead),
        3 => write_strategy().prop_map(ModelStep::Commit),
        1 => one.prop_map(ModelStep::CommitHere),
        2 => (0..4_usize).prop_map(ModelStep::FollowerPass),
        1 => Just(ModelStep::LoseLog),
    ]
}

proptest! {
    #[test]
    fn no_answer_is_older_than_a_marked_change(steps in vec(step_strategy(), 0..120)) {
        let mut model = CacheModel::new();
        for step_strategy in steps {
            model.run_step(step_strategy);
            model.check()?;
        }
    }
}

#[test]
fn the_model_finds_an_answer() {
    let mut model = CacheModel::new();
    for step_strategy in
        [ModelStep::BeginRead(1), ModelStep::ReadDatabase(0), ModelStep::FinishRead(0)]
    {
        model.run_step(step_strategy);
    }
    assert!(lookup(&model.cache, &own(1)).is_some());
}
