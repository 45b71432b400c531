//! Answers, each kept once: nodes that have nothing to do are told the same.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use prost::Message;

use super::{Answer, Said};

/// From how many answers on those are looked for that nobody is told any more.
const FEW: usize = 1_024;

/// Answers that take up more bytes are large, and how many bytes there may be for one of those to be remembered: lists of
/// versions, of which each node could have its own.
const LARGE: usize = 1 << 10;
const LARGE_IN_ALL: usize = 64 << 20;

/// All answers that are remembered.
#[derive(Debug, Default)]
pub struct Answers {
    table: HashTable<Kept>,
    /// How many bytes the answers take up.
    weight: usize,
    /// With how many they are looked through again.
    full: usize,
    /// How many had no room.
    left_out: usize,
}

#[derive(Debug)]
struct Kept {
    likeness: u64,
    answer: Arc<Answer>,
}

impl Answers {
    /// Whether an answer may be remembered. All but large ones always may, and those that are remembered for others.
    pub fn has_room(&mut self, likeness: u64, answer: &Answer) -> bool {
        if weight(answer) <= LARGE || self.weight < LARGE_IN_ALL {
            return true;
        }
        let is_it = |kept: &Kept| *kept.answer == *answer;
        if self.table.find(likeness, is_it).is_some() {
            return true;
        }
        // Perhaps there is, once those are gone that nobody is told any more; that is seen now and then.
        self.left_out = self.left_out.wrapping_add(1);
        if self.left_out.is_multiple_of(FEW) {
            self.purge();
        }
        false
    }

    /// The answer as it is kept, perhaps for others already.
    pub fn intern(&mut self, likeness: u64, answer: Answer) -> Arc<Answer> {
        let found = self
            .table
            .find(likeness, |kept| *kept.answer == answer)
            .map(|kept| Arc::clone(&kept.answer));
        if let Some(found) = found {
            return found;
        }
        if self.table.len() >= self.full.max(FEW) {
            self.purge();
        }
        let answer = Arc::new(answer);
        self.weight += weight(&answer);
        let kept = Kept {
            likeness,
            answer: Arc::clone(&answer),
        };
        self.table
            .insert_unique(likeness, kept, |kept| kept.likeness);
        answer
    }

    /// Throws away what nobody is told any more.
    fn purge(&mut self) {
        self.table
            .retain(|kept| Arc::strong_count(&kept.answer) > 1);
        self.weight = self.table.iter().map(|kept| weight(&kept.answer)).sum();
        self.full = self.table.len() * 2;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How many bytes they take up.
    pub fn bytes(&self) -> usize {
        self.weight + self.table.allocation_size()
    }
}

/// About how many bytes an answer takes up, behind its pointer.
fn weight(answer: &Answer) -> usize {
    let said = match &answer.said {
        Said::Own(own) => own.decision.encoded_len(),
        Said::Eim(eim) => eim.encoded_len(),
    };
    size_of::<Answer>() + 2 * size_of::<usize>() + said
}

/// A number that is the same for answers that are the same.
pub fn likeness(answer: &Answer, hashers: &[RandomState; 2]) -> u64 {
    let [_, keys] = hashers;
    let mut hasher = keys.build_hasher();
    match &answer.said {
        Said::Own(own) => {
            own.decision.encode_to_vec().hash(&mut hasher);
            (own.next, own.want_facts, own.want_packages).hash(&mut hasher);
        }
        Said::Eim(eim) => eim.encode_to_vec().hash(&mut hasher),
    }
    (answer.tag, answer.fresh, answer.counted, answer.in_line).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::maintmgr::{OsProfileUpdateSource, PlatformUpdateStatusResponse};

    use super::*;

    fn answer(tag: u64) -> Answer {
        Answer {
            said: Said::Eim(PlatformUpdateStatusResponse::default()),
            tag,
            fresh: false,
            counted: None,
            in_line: false,
        }
    }

    #[test]
    fn large_answers_take_no_more_room_than_they_may() {
        let large = |tag| Answer {
            said: Said::Eim(PlatformUpdateStatusResponse {
                os_profile_update_source: Some(OsProfileUpdateSource {
                    profile_name: "x".repeat(1 << 20),
                    ..OsProfileUpdateSource::default()
                }),
                ..PlatformUpdateStatusResponse::default()
            }),
            ..answer(tag)
        };
        let mut answers = Answers::default();
        let mut kept = Vec::new();
        while answers.has_room(u64::MAX, &large(u64::MAX)) {
            let tag = u64::try_from(kept.len()).expect("a number");
            kept.push(answers.intern(tag, large(tag)));
        }
        assert_eq!(kept.len(), 64);
        assert!(answers.has_room(u64::MAX, &answer(0)), "small ones have");
        assert!(answers.has_room(7, &large(7)), "it is there for another");
        kept.truncate(32);
        let another = large(u64::MAX);
        assert!(!answers.has_room(u64::MAX, &another), "nobody has looked");
        while !answers.has_room(u64::MAX, &another) {}
        assert!(answers.bytes() < 40 << 20, "{}", answers.bytes());
    }

    #[test]
    fn the_same_answer_is_kept_once() {
        let (mut answers, keys) = (Answers::default(), [RandomState::new(), RandomState::new()]);
        let mut keep = |one: Answer| answers.intern(likeness(&one, &keys), one);
        let (one, again, other) = (keep(answer(1)), keep(answer(1)), keep(answer(2)));
        assert!(Arc::ptr_eq(&one, &again));
        assert!(!Arc::ptr_eq(&one, &other));
        assert_eq!(answers.len(), 2);
    }

    #[test]
    fn answers_that_only_look_alike_are_told_apart() {
        let mut answers = Answers::default();
        let (one, other) = (answers.intern(7, answer(1)), answers.intern(7, answer(2)));
        assert_eq!((one.tag, other.tag), (1, 2));
    }

    #[test]
    fn what_nobody_is_told_any_more_is_thrown_away() {
        let mut answers = Answers::default();
        let kept: Vec<_> = (0..100).map(|n| answers.intern(n, answer(n))).collect();
        for n in 100..100_000 {
            answers.intern(n, answer(n));
        }
        assert!(answers.len() <= FEW, "{}", answers.len());
        for (n, one) in (0..).zip(&kept) {
            assert!(Arc::ptr_eq(one, &answers.intern(n, answer(n))));
        }
        assert_eq!(answers.weight, answers.len() * weight(&answer(0)));
    }
}
