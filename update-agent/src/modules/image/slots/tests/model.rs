//! A model of a machine with two slots, checked exhaustively.
//!
//! The search visits every reachable state of a small machine: the content of its disks, the
//! running slot, and the progress in the order of the writes. Anything may happen at any time: the
//! power fails, the agent is killed, the record is lost, a person selects another slot in the menu
//! of the loader, an update is requested with or without permission to retry, or is withdrawn. A
//! repair by the boot control may fail: an entry is not removed, or a healthy image is not blessed.
//! The server may be unreachable for a whole trial. Only the real [`step`] and [`reconcile`] change
//! the record.
//!
//! A write is one move, and the power fails before or after it. That covers every power cut during
//! a write that is flushed before the next one begins. Writes of more than one sector have more
//! outcomes: a slot is torn first, and the rename that blesses an entry may lose both names. The
//! counting of the loader is one write here.
//!
//! The same search runs for a boot control that counts no boots and starts a slot once. It cannot
//! distinguish an order that was followed from one in whose place another slot was started. So it
//! may record an image as bad that was never started, and the model counts that image as tried.
//! It runs once more for RAUC, whose boot loaders follow such an order several times, and which
//! makes the other slot the first one when the image on trial is rejected.
//!
//! The state omits everything that `step` and `reconcile` ignore: sequence numbers (the newest
//! entry comes first), texts, times, and all boots of a trial but the latest.

mod laws;
mod machine;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use self::laws::{check_always, check_at_rest};
use self::machine::{ModelMachine, Phase, WriteStep};
use super::*;
use crate::modules::image::slots::table::MAX_UNDECIDED_TRIALS;

/// The order of the writes before the reset into a new image. The documentation of `slots` gives
/// the reasons.
const ORDER: [WriteStep; 9] = [
    WriteStep::Intend,
    WriteStep::Withdraw,
    WriteStep::Tear,
    WriteStep::Fill,
    WriteStep::Wrote,
    WriteStep::Kernel,
    WriteStep::Arm,
    WriteStep::Enter,
    WriteStep::Reset,
];

/// Maximum number of moves after which an undisturbed machine must rest.
const MAX_MOVES_TO_REST: usize = 200;

/// How a new image is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// By an entry whose boots the loader counts.
    Counts,
    /// By an entry without a counter, which is wrong.
    CountsNothing,
    /// By an order that the loader follows once, with a mark.
    Once,
    /// The same without a mark, which is wrong.
    OnceUnmarked,
    /// By an order that the loader follows several times, with a mark: RAUC.
    Attempts,
}

impl Control {
    /// Whether a mark shows that a slot has or had an order.
    fn is_marked(self) -> bool {
        matches!(self, Self::Once | Self::OnceUnmarked | Self::Attempts)
    }

    /// Number of boots for which the loader follows an order.
    fn orders(self) -> u8 {
        match self {
            Self::Counts | Self::CountsNothing => 0,
            Self::Once | Self::OnceUnmarked => 1,
            Self::Attempts => 2,
        }
    }
}

/// Variant of the agent to check.
struct Model {
    order: Vec<WriteStep>,
    control: Control,
    /// Whether an entry is blessed before the image proved itself, as a service of the image might
    /// do.
    is_blessed_early: bool,
}

impl Model {
    fn real() -> Self {
        Self { order: ORDER.to_vec(), control: Control::Counts, is_blessed_early: false }
    }

    /// Position of a write in the order.
    fn position(&self, write: WriteStep) -> usize {
        let index = self.order.iter().position(|one| *one == write);
        index.expect("a write of the order")
    }

    /// Position at which an update of an armed slot continues.
    fn arming_position(&self) -> usize {
        self.position(WriteStep::Arm).min(self.position(WriteStep::Enter))
    }
}

/// All machines that were reached, in the order in which they were found.
#[derive(Default)]
struct Exploration {
    machines: Vec<ModelMachine>,
    numbers: HashMap<ModelMachine, usize>,
    parents: Vec<usize>,
    moves: usize,
}

impl Exploration {
    fn add(&mut self, machine: ModelMachine, parent: usize) {
        if self.numbers.contains_key(&machine) {
            return;
        }
        self.numbers.insert(machine.clone(), self.machines.len());
        self.machines.push(machine);
        self.parents.push(parent);
    }

    /// All states that lead to a machine, followed by the violated law.
    fn story(&self, number: usize, broken: &str) -> String {
        let mut way = vec![number];
        let mut at = number;
        while at != 0 {
            at = self.parents[at];
            way.push(at);
        }
        let mut text = String::new();
        for at in way.iter().rev() {
            writeln!(text, "{:?}", self.machines[*at]).expect("to text");
        }
        text.push_str(broken);
        text
    }
}

/// Visits every reachable machine and checks the laws that always hold.
fn explore(model: &Model) -> Result<Exploration, String> {
    let mut explored = Exploration::default();
    explored.add(ModelMachine::new(), 0);
    let mut number = 0;
    while let Some(machine) = explored.machines.get(number).cloned() {
        let moves = check_always(&machine).and_then(|()| machine.moves(model));
        let moves = moves.map_err(|broken| explored.story(number, &broken))?;
        explored.moves += moves.len();
        for next in moves {
            explored.add(next, number);
        }
        number += 1;
    }
    Ok(explored)
}

/// For each machine, the machine at which it rests if nothing disturbs it.
fn find_rests(model: &Model, explored: &Exploration) -> Result<Vec<usize>, String> {
    let mut rests: Vec<Option<usize>> = vec![None; explored.machines.len()];
    for start in 0..explored.machines.len() {
        let mut way = Vec::new();
        let mut at = start;
        let rest = loop {
            if let Some(rest) = rests[at] {
                break rest;
            }
            way.push(at);
            if way.len() > MAX_MOVES_TO_REST {
                return Err(explored.story(start, "it never comes to rest"));
            }
            match explored.machines[at].next_undisturbed(model) {
                Err(broken) => return Err(explored.story(at, &broken)),
                Ok(None) => break at,
                Ok(Some(next)) => at = explored.numbers[&next],
            }
        };
        for number in way {
            rests[number] = Some(rest);
        }
    }
    Ok(rests.into_iter().flatten().collect())
}

/// Checks all laws. Returns the reached machines, or the story of the first violation.
fn check_model(model: &Model) -> Result<Exploration, String> {
    let explored = explore(model)?;
    let rests = find_rests(model, &explored)?;
    for (number, machine) in explored.machines.iter().enumerate() {
        if rests[number] != number {
            continue;
        }
        let until_rest = |next: ModelMachine| &explored.machines[rests[explored.numbers[&next]]];
        check_at_rest(machine, model, until_rest)
            .map_err(|broken| explored.story(number, &broken))?;
    }
    Ok(explored)
}

/// Checks all laws, prints statistics, and checks that the search covered all kinds of states.
fn must_hold(model: &Model) -> Exploration {
    let start = Instant::now();
    let explored = check_model(model).unwrap_or_else(|story| panic!("{story}"));
    println!(
        "{} states, {} moves, {:.1} s",
        explored.machines.len(),
        explored.moves,
        start.elapsed().as_secs_f64()
    );
    let any_phase =
        |phase: fn(&Phase) -> bool| explored.machines.iter().any(|one| phase(&one.phase));
    assert!(any_phase(|phase| matches!(phase, Phase::Passing(2))));
    assert!(any_phase(|phase| matches!(phase, Phase::Failing(2))));
    assert!(any_phase(|phase| matches!(phase, Phase::EndingUndecided(2))));
    assert!(any_phase(|phase| matches!(phase, Phase::Disarming(1))));
    assert!(explored.machines.len() > 10_000, "the model has lost some of its moves");
    let is_counted = |one: &ModelMachine| {
        let undecided = one.record.find_undecided(&slot_image(machine::GOOD).file);
        undecided.is_some_and(|undecided| undecided.times == MAX_UNDECIDED_TRIALS)
    };
    assert!(explored.machines.iter().any(is_counted), "the server is never unreachable");
    // It was neither blessed nor rejected, and still runs.
    let runs_on = |one: &ModelMachine| one.phase == Phase::Idle && one.is_on_trial();
    assert!(explored.machines.iter().any(runs_on), "nothing ever fails");
    explored
}

#[test]
fn in_every_case_a_complete_image_boots_and_the_machine_comes_to_rest() {
    must_hold(&Model::real());
}

#[test]
fn with_one_shot_boots_the_machine_comes_to_rest_as_well() {
    let model = Model { control: Control::Once, ..Model::real() };
    let explored = must_hold(&model);
    let is_marked =
        |one: &ModelMachine| Slot::ALL.iter().any(|slot| *one.entry(*slot) == BootEntry::OneShot);
    assert!(explored.machines.iter().any(is_marked));
}

#[test]
fn with_orders_for_several_boots_the_machine_comes_to_rest_as_well() {
    let model = Model { control: Control::Attempts, ..Model::real() };
    must_hold(&model);
}

/// The law that a wrong model violates first.
fn first_violation(model: &Model) -> String {
    match check_model(model) {
        Ok(explored) => panic!("no violation in {} states", explored.machines.len()),
        Err(story) => story.lines().last().unwrap_or_default().to_owned(),
    }
}

#[test]
fn an_entry_that_remains_while_its_slot_is_written_is_caught() {
    let order = ORDER.into_iter().filter(|write| *write != WriteStep::Withdraw);
    let model = Model { order: order.collect(), ..Model::real() };
    assert_eq!(first_violation(&model), "a boot entry refers to an incomplete image");
}

#[test]
fn a_new_entry_without_a_counter_is_caught() {
    let model = Model { control: Control::CountsNothing, ..Model::real() };
    assert_eq!(first_violation(&model), "the final boot is not a complete and good image");
}

#[test]
fn an_entry_before_its_record_is_caught() {
    let mut model = Model::real();
    let (record, entry) = (model.position(WriteStep::Arm), model.position(WriteStep::Enter));
    model.order.swap(record, entry);
    assert_eq!(first_violation(&model), "a slot that may boot is not on trial in the record");
}

#[test]
fn a_one_shot_without_a_mark_is_caught() {
    let model = Model { control: Control::OnceUnmarked, ..Model::real() };
    assert_eq!(first_violation(&model), "a failed image is tried again without permission");
}

#[test]
fn a_blessing_before_the_proof_is_caught() {
    let model = Model { is_blessed_early: true, ..Model::real() };
    assert_eq!(first_violation(&model), "the final boot is not a complete and good image");
}
