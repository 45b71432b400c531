//! A machine with two slots, in all its fates.
//!
//! The search goes through every state that a small machine can come to: what is on its disks, what runs, and how far
//! that has come in the order of writes. Anything may happen anywhere: the power goes, the agent is killed, the record
//! is lost, a person chooses another slot in the loader's menu, a wish comes with an order or without, or is withdrawn;
//! and what the boot control is asked to do may fail: an entry is not removed, or what proved itself is not kept. Or
//! the server is away for a whole trial.
//! The record is moved by the real [`step`] and [`reconcile`] alone.
//!
//! A write is one move, and the power goes before it or behind it. That is all that a cut can do to a write that is
//! flushed before the next one begins; those that are more than one sector have further ends: a slot is torn first, and
//! the rename that blesses an entry may lose both names. The counting of the loader is one write here.
//!
//! The same search is made for a boot control that counts nothing and starts a slot once, which cannot tell an order
//! that was followed from one that another slot was started in place of: an image that was never started may be called
//! bad there, and is taken for tried here.
//!
//! What step and reconcile do not look at is left out of a state: numbers of entries (the newest comes first), words,
//! times, and all but the last boot of a trial.

mod laws;
mod machine;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use self::laws::{goes_on, holds};
use self::machine::{Machine, Place, Write};
use super::*;
use crate::modules::image::slots::table::MOST_UNDECIDED;

/// The order of writes before a reset into a new image. [`super`] says why.
const ORDER: [Write; 9] = [
    Write::Intend,
    Write::Withdraw,
    Write::Tear,
    Write::Fill,
    Write::Wrote,
    Write::Kernel,
    Write::Arm,
    Write::Enter,
    Write::Reset,
];

/// Nothing that is still at work takes more moves than this to come to rest.
const MOST_MOVES: usize = 200;

/// How something new is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    /// By an entry that the loader counts down.
    Counts,
    /// By an entry that it does not: wrong.
    CountsNothing,
    /// By an order that the loader follows once, of which a mark is left.
    Once,
    /// The same without the mark: wrong.
    OnceUnmarked,
}

impl Control {
    fn is_once(self) -> bool {
        matches!(self, Self::Once | Self::OnceUnmarked)
    }
}

/// How the agent writes.
struct Model {
    order: Vec<Write>,
    control: Control,
    /// Whether an entry is blessed before the image proved itself, as an image's own service may do.
    is_blessed_early: bool,
}

impl Model {
    fn real() -> Self {
        Self {
            order: ORDER.to_vec(),
            control: Control::Counts,
            is_blessed_early: false,
        }
    }

    /// Where in the order something is written.
    fn at(&self, write: Write) -> usize {
        let found = self.order.iter().position(|one| *one == write);
        found.expect("it is written")
    }

    /// Where an armed slot is gone on with.
    fn at_arming(&self) -> usize {
        self.at(Write::Arm).min(self.at(Write::Enter))
    }
}

/// Every machine that was come to, in the order in which it was found.
#[derive(Default)]
struct Found {
    machines: Vec<Machine>,
    numbers: HashMap<Machine, usize>,
    parents: Vec<usize>,
    moves: usize,
}

impl Found {
    fn add(&mut self, machine: Machine, parent: usize) {
        if self.numbers.contains_key(&machine) {
            return;
        }
        self.numbers.insert(machine.clone(), self.machines.len());
        self.machines.push(machine);
        self.parents.push(parent);
    }

    /// How a machine came about, for whoever has to mend it.
    fn story(&self, number: usize, broken: &str) -> String {
        let mut way = vec![number];
        let mut at = number;
        while at != 0 {
            at = self.parents[at];
            way.push(at);
        }
        let mut told = String::new();
        for at in way.iter().rev() {
            writeln!(told, "{:?}", self.machines[*at]).expect("to text");
        }
        told.push_str(broken);
        told
    }
}

/// Goes to every machine that there can be, and looks whether all is as it must be.
fn explore(model: &Model) -> Result<Found, String> {
    let mut found = Found::default();
    found.add(Machine::new(), 0);
    let mut number = 0;
    while let Some(machine) = found.machines.get(number).cloned() {
        let moves = holds(&machine).and_then(|()| machine.moves(model));
        let moves = moves.map_err(|broken| found.story(number, &broken))?;
        found.moves += moves.len();
        for next in moves {
            found.add(next, number);
        }
        number += 1;
    }
    Ok(found)
}

/// Where each machine comes to rest if nothing happens to it any more.
fn rests(model: &Model, found: &Found) -> Result<Vec<usize>, String> {
    let mut rests: Vec<Option<usize>> = vec![None; found.machines.len()];
    for start in 0..found.machines.len() {
        let mut way = Vec::new();
        let mut at = start;
        let rest = loop {
            if let Some(rest) = rests[at] {
                break rest;
            }
            way.push(at);
            if way.len() > MOST_MOVES {
                return Err(found.story(start, "it never comes to rest"));
            }
            match found.machines[at].calm(model) {
                Err(broken) => return Err(found.story(at, &broken)),
                Ok(None) => break at,
                Ok(Some(next)) => at = found.numbers[&next],
            }
        };
        for number in way {
            rests[number] = Some(rest);
        }
    }
    Ok(rests.into_iter().flatten().collect())
}

/// All that must hold; what was found, or how the first machine came about for which it does not.
fn judge(model: &Model) -> Result<Found, String> {
    let found = explore(model)?;
    let rests = rests(model, &found)?;
    for (number, machine) in found.machines.iter().enumerate() {
        if rests[number] != number {
            continue;
        }
        let until_rest = |next: Machine| &found.machines[rests[found.numbers[&next]]];
        goes_on(machine, model, until_rest).map_err(|broken| found.story(number, &broken))?;
    }
    Ok(found)
}

/// Judges, says how much there was, and how far all of it went.
fn must_hold(model: &Model) -> Found {
    let start = Instant::now();
    let found = judge(model).unwrap_or_else(|story| panic!("{story}"));
    println!(
        "{} states, {} moves, {:.1} s",
        found.machines.len(),
        found.moves,
        start.elapsed().as_secs_f64()
    );
    let places = |place: fn(&Place) -> bool| found.machines.iter().any(|one| place(&one.place));
    assert!(places(|place| matches!(place, Place::Passing(2))));
    assert!(places(|place| matches!(place, Place::Failing(2))));
    assert!(places(|place| matches!(place, Place::Doubting(2))));
    assert!(places(|place| matches!(place, Place::Disarming(1))));
    assert!(
        found.machines.len() > 10_000,
        "the model has lost its moves"
    );
    let is_counted = |one: &Machine| {
        let undecided = one.record.undecided(&image(machine::GOOD).file);
        undecided.is_some_and(|undecided| undecided.times == MOST_UNDECIDED)
    };
    assert!(
        found.machines.iter().any(is_counted),
        "no server is ever away"
    );
    // It was neither kept nor given up, and runs on.
    let runs_on = |one: &Machine| one.place == Place::Idle && one.is_on_trial();
    assert!(found.machines.iter().any(runs_on), "nothing ever fails");
    found
}

#[test]
fn whatever_happens_something_whole_boots_and_all_comes_to_rest_on_old_or_new() {
    must_hold(&Model::real());
}

#[test]
fn whatever_happens_all_comes_to_rest_also_where_a_slot_is_started_once_and_nothing_counts() {
    let model = Model {
        control: Control::Once,
        ..Model::real()
    };
    let found = must_hold(&model);
    let is_marked = |one: &Machine| {
        Slot::ALL
            .iter()
            .any(|slot| *one.entry(*slot) == Entry::Once)
    };
    assert!(found.machines.iter().any(is_marked));
}

/// What the first machine breaks that a wrong order leads to.
fn broken(model: &Model) -> String {
    match judge(model) {
        Ok(found) => panic!("nothing is wrong in {} states", found.machines.len()),
        Err(story) => story.lines().last().unwrap_or_default().to_owned(),
    }
}

#[test]
fn an_entry_that_stays_while_its_slot_is_torn_is_caught() {
    let order = ORDER.into_iter().filter(|write| *write != Write::Withdraw);
    let model = Model {
        order: order.collect(),
        ..Model::real()
    };
    assert_eq!(broken(&model), "a boot entry names what is not whole");
}

#[test]
fn a_new_entry_without_a_counter_is_caught() {
    let model = Model {
        control: Control::CountsNothing,
        ..Model::real()
    };
    assert_eq!(broken(&model), "what boots at last is not whole and good");
}

#[test]
fn an_entry_before_its_record_is_caught() {
    let mut model = Model::real();
    let (record, entry) = (model.at(Write::Arm), model.at(Write::Enter));
    model.order.swap(record, entry);
    assert_eq!(broken(&model), "what may boot is no trial to the record");
}

#[test]
fn an_order_that_leaves_no_mark_is_caught() {
    let model = Model {
        control: Control::OnceUnmarked,
        ..Model::real()
    };
    assert_eq!(
        broken(&model),
        "what failed before is tried again without an order"
    );
}

#[test]
fn a_blessing_before_the_proof_is_caught() {
    let model = Model {
        is_blessed_early: true,
        ..Model::real()
    };
    assert_eq!(broken(&model), "what boots at last is not whole and good");
}
