//! Recent changes: an answer that was being read during a change must not be cached, even if the
//! node had no cached answer that could be invalidated.

use std::collections::HashMap;
use std::mem::{replace, take};

/// How long a change is stored at least, in seconds.
const MIN_RETENTION_SECONDS: u32 = 60;

/// The maximum number of changes in a span.
const MAX_CHANGES_PER_SPAN: usize = 100_000;

/// An entity that changed, with the bits of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangedEntity {
    Host(u32),
    Instance(u32),
    Site(u32),
    Region(u32),
}

/// The last pass that changed each entity.
#[derive(Debug, Default)]
pub struct RecentChanges {
    current: ChangeSpan,
    previous: ChangeSpan,
    /// When the current span began.
    span_start: u32,
    /// All changes after this pass are stored.
    floor: u32,
}

#[derive(Debug, Default)]
struct ChangeSpan {
    changes: HashMap<(u32, ChangedEntity), u32>,
    last_pass: u32,
}

impl RecentChanges {
    /// Records that a pass changed an entity of a project.
    pub fn record(&mut self, tenant: u32, entity: ChangedEntity, pass: u32) {
        if self.current.changes.len() >= MAX_CHANGES_PER_SPAN {
            let full = take(&mut self.current);
            self.floor = self.floor.max(full.last_pass);
        }
        self.current.changes.insert((tenant, entity), pass);
        self.current.last_pass = self.current.last_pass.max(pass);
    }

    /// Drops the previous span once the current one is old enough.
    pub fn rotate(&mut self, seconds: u32) {
        if seconds.saturating_sub(self.span_start) < MIN_RETENTION_SECONDS {
            return;
        }
        let old = replace(&mut self.previous, take(&mut self.current));
        self.floor = self.floor.max(old.last_pass);
        self.span_start = seconds;
    }

    /// Whether an entity is certain not to have changed after a pass.
    pub fn is_unchanged_since(&self, tenant: u32, entity: ChangedEntity, as_of: u32) -> bool {
        let last = |span: &ChangeSpan| span.changes.get(&(tenant, entity)).copied();
        let last_change = last(&self.current).max(last(&self.previous));
        as_of >= self.floor && last_change.is_none_or(|pass| pass <= as_of)
    }

    /// The memory in bytes.
    pub fn bytes(&self) -> usize {
        let spans = self.current.changes.capacity() + self.previous.changes.capacity();
        spans * (size_of::<((u32, ChangedEntity), u32)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: ChangedEntity = ChangedEntity::Host(7);

    #[test]
    fn a_change_is_remembered_for_a_minute() {
        let mut recent = RecentChanges::default();
        recent.record(1, NODE, 5);
        for seconds in [0, 30, 60, 90] {
            recent.rotate(seconds);
            assert!(!recent.is_unchanged_since(1, NODE, 4), "{seconds}");
            assert!(recent.is_unchanged_since(1, NODE, 5));
            assert!(recent.is_unchanged_since(1, ChangedEntity::Instance(7), 4));
            assert!(recent.is_unchanged_since(2, NODE, 4));
        }
    }

    #[test]
    fn older_passes_are_uncertain_after_the_rotation() {
        let mut recent = RecentChanges::default();
        recent.record(1, NODE, 5);
        recent.rotate(60);
        recent.record(1, ChangedEntity::Host(8), 9);
        recent.rotate(120);
        assert!(!recent.is_unchanged_since(1, NODE, 4));
        assert!(!recent.is_unchanged_since(2, ChangedEntity::Site(1), 4));
        assert!(recent.is_unchanged_since(1, NODE, 5));
        assert!(!recent.is_unchanged_since(1, ChangedEntity::Host(8), 8));
    }

    #[test]
    fn memory_is_bounded_during_many_changes() {
        let mut recent = RecentChanges::default();
        let most = u32::try_from(MAX_CHANGES_PER_SPAN).expect("a small number");
        for n in 0..3 * most {
            recent.record(1, ChangedEntity::Host(n), 1 + n / most);
        }
        assert!(recent.current.changes.len() <= MAX_CHANGES_PER_SPAN);
        assert!((0..3 * most).all(|n| !recent.is_unchanged_since(
            1,
            ChangedEntity::Host(n),
            n / most
        )));
        assert!(recent.is_unchanged_since(1, ChangedEntity::Host(0), 3));
    }
}
