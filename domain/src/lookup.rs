//! Lookups in lists whose lengths a peer chooses.

#[cfg(any(test, feature = "testing"))]
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

/// For each key the value of the first entry with that key. A search through all entries for each key would take as many
/// comparisons as the product of both lengths.
pub fn find_first<K: Eq + Hash, V: Copy>(
    entries: impl IntoIterator<Item = (K, V)>,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Option<V>> {
    let mut first = HashMap::new();
    for (key, value) in entries {
        first.entry(LookupKey(key)).or_insert(value);
    }
    keys.into_iter().map(|key| first.get(&LookupKey(key)).copied()).collect()
}

/// A key. Tests count how often keys are compared and hashed.
struct LookupKey<K>(K);

impl<K: PartialEq> PartialEq for LookupKey<K> {
    fn eq(&self, other: &Self) -> bool {
        count_comparison();
        self.0 == other.0
    }
}

impl<K: Eq> Eq for LookupKey<K> {}

impl<K: Hash> Hash for LookupKey<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        count_comparison();
        self.0.hash(state);
    }
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// How many keys were compared and hashed in this thread, for tests.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn count_comparisons() -> usize {
    COMPARISONS.get()
}

#[cfg(any(test, feature = "testing"))]
fn count_comparison() {
    COMPARISONS.set(COMPARISONS.get() + 1);
}

#[cfg(not(any(test, feature = "testing")))]
const fn count_comparison() {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_key_finds_its_first_entry(
            entries in prop::collection::vec((0u8..6, any::<u8>()), 0..12),
            keys in prop::collection::vec(0u8..8, 0..12),
        ) {
            let naive = keys.iter().map(|key| {
                entries.iter().find(|(other, _)| other == key).map(|(_, value)| *value)
            });
            let naive: Vec<_> = naive.collect();
            prop_assert_eq!(find_first(entries, keys), naive);
        }
    }

    /// The largest list of packages, against results of the same packages, of other packages, and of one package only.
    #[test]
    fn comparisons_grow_no_faster_than_n_log_n() {
        const N: usize = 100_000;
        for (name, entry, key) in
            [("same", usize::MAX, 0), ("other", usize::MAX, N), ("one package", 1, 0)]
        {
            let before = count_comparisons();
            let entries = (0..N).map(|n| (n % entry, n));
            let keys = (0..N).map(|n| key + n);
            assert_eq!(find_first(entries, keys).len(), N);
            let compared = count_comparisons() - before;
            let n = 2 * N;
            let limit = 2 * n * usize::try_from(n.ilog2()).expect("a small number");
            assert!((n..=limit).contains(&compared), "{name}: {compared} of {limit}");
        }
    }
}
