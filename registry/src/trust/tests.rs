//! Lists of signatures.

use std::cell::Cell;

use super::{MAX_SIGNATURES, append_signatures};

/// A signature that counts how often it is compared.
#[derive(Debug)]
struct CountedSignature<'a>(usize, &'a Cell<usize>);

impl PartialEq for CountedSignature<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.1.set(self.1.get() + 1);
        self.0 == other.0
    }
}

#[test]
fn new_signatures_are_appended_and_the_oldest_ones_removed() {
    let mut list = vec![1, 2];
    assert!(!append_signatures(&mut list, vec![2, 1]));
    assert!(append_signatures(&mut list, vec![2, 3]));
    assert_eq!(list, [1, 2, 3]);
    let end = usize::MAX / 2;
    let more: Vec<usize> = (end - 20..end).collect();
    assert!(append_signatures(&mut list, more));
    let expected: Vec<usize> = (end - MAX_SIGNATURES..end).collect();
    assert_eq!(list, expected);
}

/// Both lists may be as long as a manifest allows.
#[test]
fn long_lists_of_signatures_take_few_comparisons() {
    const LENGTH: usize = 20_000;
    let compared = Cell::new(0);
    let mut list: Vec<_> = (0..LENGTH).map(|n| CountedSignature(n, &compared)).collect();
    let more = (LENGTH..2 * LENGTH).map(|n| CountedSignature(n, &compared)).collect();
    assert!(append_signatures(&mut list, more));
    assert!(compared.get() <= MAX_SIGNATURES * (LENGTH + MAX_SIGNATURES), "{}", compared.get());
}
