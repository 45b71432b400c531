//! What was touched lately: an answer that was being looked for meanwhile is not remembered, even if nothing was remembered
//! of its node that could have been marked.

use std::collections::HashMap;
use std::mem::{replace, take};

/// How long it is remembered at least, in seconds.
const KEPT: u32 = 60;

/// How much is remembered of such a time at most.
const MOST: usize = 100_000;

/// Something that was touched, with the bits of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// A host.
    Host(u32),
    /// An instance.
    Instance(u32),
    /// A site.
    Site(u32),
    /// A region.
    Region(u32),
}

/// In which pass what was touched last.
#[derive(Debug, Default)]
pub struct Recent {
    now: Span,
    before: Span,
    /// When the present span began.
    since: u32,
    /// The last pass of which something is not remembered any more.
    floor: u32,
}

#[derive(Debug, Default)]
struct Span {
    touched: HashMap<(u32, Thing), u32>,
    /// The last pass that touched anything.
    last: u32,
}

impl Recent {
    /// Something of a project was touched by a pass.
    pub fn note(&mut self, tenant: u32, thing: Thing, pass: u32) {
        if self.now.touched.len() >= MOST {
            let full = take(&mut self.now);
            self.floor = self.floor.max(full.last);
        }
        self.now.touched.insert((tenant, thing), pass);
        self.now.last = self.now.last.max(pass);
    }

    /// Forgets what is old enough.
    pub fn turn(&mut self, seconds: u32) {
        if seconds.saturating_sub(self.since) < KEPT {
            return;
        }
        let old = replace(&mut self.before, take(&mut self.now));
        self.floor = self.floor.max(old.last);
        self.since = seconds;
    }

    /// Whether it is certain that something was not touched after a pass.
    pub fn is_calm(&self, tenant: u32, thing: Thing, as_of: u32) -> bool {
        let last = |span: &Span| span.touched.get(&(tenant, thing)).copied();
        let touched = last(&self.now).max(last(&self.before));
        as_of >= self.floor && touched.is_none_or(|pass| pass <= as_of)
    }

    /// How many bytes that takes up.
    pub fn bytes(&self) -> usize {
        let spans = self.now.touched.capacity() + self.before.touched.capacity();
        spans * (size_of::<((u32, Thing), u32)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Thing = Thing::Host(7);

    #[test]
    fn what_was_touched_is_known_for_a_minute() {
        let mut recent = Recent::default();
        recent.note(1, NODE, 5);
        for seconds in [0, 30, 60, 90] {
            recent.turn(seconds);
            assert!(!recent.is_calm(1, NODE, 4), "{seconds}");
            assert!(recent.is_calm(1, NODE, 5));
            assert!(recent.is_calm(1, Thing::Instance(7), 4));
            assert!(recent.is_calm(2, NODE, 4));
        }
    }

    #[test]
    fn afterwards_nothing_so_old_is_certain() {
        let mut recent = Recent::default();
        recent.note(1, NODE, 5);
        recent.turn(60);
        recent.note(1, Thing::Host(8), 9);
        recent.turn(120);
        assert!(!recent.is_calm(1, NODE, 4));
        assert!(!recent.is_calm(2, Thing::Site(1), 4));
        assert!(recent.is_calm(1, NODE, 5));
        assert!(!recent.is_calm(1, Thing::Host(8), 8));
    }

    #[test]
    fn little_is_remembered_of_a_great_change() {
        let mut recent = Recent::default();
        let most = u32::try_from(MOST).expect("a small number");
        for n in 0..3 * most {
            recent.note(1, Thing::Host(n), 1 + n / most);
        }
        assert!(recent.now.touched.len() <= MOST);
        assert!((0..3 * most).all(|n| !recent.is_calm(1, Thing::Host(n), n / most)));
        assert!(recent.is_calm(1, Thing::Host(0), 3));
    }
}
