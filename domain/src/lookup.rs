//! Lookups in lists whose lengths a peer chooses.

use std::collections::HashMap;
use std::hash::Hash;

/// For each key the value of the first entry with that key. A search through all entries for each key would take as many
/// comparisons as the product of both lengths.
pub fn find_first<K: Eq + Hash, V: Copy>(
    entries: impl IntoIterator<Item = (K, V)>,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Option<V>> {
    let mut first = HashMap::new();
    for (key, value) in entries {
        first.entry(key).or_insert(value);
    }
    keys.into_iter().map(|key| first.get(&key).copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use proptest::prelude::*;

    use super::*;

    /// A key that counts how often it is compared and hashed.
    struct CountedKey<'a>(usize, &'a Cell<usize>);

    impl CountedKey<'_> {
        fn count(&self) {
            self.1.set(self.1.get() + 1);
        }
    }

    impl PartialEq for CountedKey<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.count();
            self.0 == other.0
        }
    }

    impl Eq for CountedKey<'_> {}

    impl Hash for CountedKey<'_> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.count();
            self.0.hash(state);
        }
    }

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
            let compared = Cell::new(0);
            let entries = (0..N).map(|n| (CountedKey(n % entry, &compared), n));
            let keys = (0..N).map(|n| CountedKey(key + n, &compared));
            assert_eq!(find_first(entries, keys).len(), N);
            let n = 2 * N;
            let limit = 2 * n * usize::try_from(n.ilog2()).expect("a small number");
            assert!(compared.get() <= limit, "{name}: {} of {limit}", compared.get());
        }
    }
}
