//! Stores equal answers once: idle nodes share the same answer.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use prost::Message;

use crate::evaluate::{Answer, AnswerPayload};

/// The minimum number of answers before unused ones are purged.
const MIN_ANSWERS_TO_PURGE: usize = 1_024;

/// Answers above this size, in bytes, are large. They may differ for each node, such as lists of
/// versions, so they are cached only within the memory limit.
const LARGE_ANSWER_BYTES: usize = 1 << 10;

/// All cached answers.
#[derive(Debug)]
pub struct InternedAnswers {
    table: HashTable<InternedAnswer>,
    /// The size of the answers in bytes up to which large ones are cached.
    memory_limit: usize,
    /// The size of the answers in bytes.
    answer_bytes: usize,
    /// The number of answers at which the next purge runs.
    purge_at_len: usize,
    /// The number of rejected answers.
    rejected: usize,
}

#[derive(Debug)]
struct InternedAnswer {
    hash: u64,
    answer: Arc<Answer>,
}

impl InternedAnswers {
    /// Without answers. A memory limit of 0 means no limit.
    pub fn new(memory_limit: u64) -> Self {
        let memory_limit = match memory_limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        Self {
            table: HashTable::new(),
            memory_limit,
            answer_bytes: 0,
            purge_at_len: 0,
            rejected: 0,
        }
    }

    /// Whether an answer may be cached. Small answers always may, and large ones that are already
    /// stored.
    pub fn has_room(&mut self, hash: u64, answer: &Answer) -> bool {
        if answer_size(answer) <= LARGE_ANSWER_BYTES || self.answer_bytes < self.memory_limit {
            return true;
        }
        let is_it = |entry: &InternedAnswer| *entry.answer == *answer;
        if self.table.find(hash, is_it).is_some() {
            return true;
        }
        // A purge may free enough memory, so it runs after a number of rejections.
        self.rejected = self.rejected.wrapping_add(1);
        if self.rejected.is_multiple_of(MIN_ANSWERS_TO_PURGE) {
            self.purge();
        }
        false
    }

    /// Stores an answer, or returns the equal one that is already stored.
    pub fn intern(&mut self, hash: u64, answer: Answer) -> Arc<Answer> {
        let existing = self
            .table
            .find(hash, |entry| *entry.answer == answer)
            .map(|entry| Arc::clone(&entry.answer));
        if let Some(existing) = existing {
            return existing;
        }
        if self.table.len() >= self.purge_at_len.max(MIN_ANSWERS_TO_PURGE) {
            self.purge();
        }
        let answer = Arc::new(answer);
        self.answer_bytes += answer_size(&answer);
        let entry = InternedAnswer { hash, answer: Arc::clone(&answer) };
        self.table.insert_unique(hash, entry, |entry| entry.hash);
        answer
    }

    /// Removes unused answers.
    fn purge(&mut self) {
        self.table.retain(|entry| Arc::strong_count(&entry.answer) > 1);
        self.answer_bytes = self.table.iter().map(|entry| answer_size(&entry.answer)).sum();
        self.purge_at_len = self.table.len() * 2;
    }

    /// The number of answers.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The memory in bytes.
    pub fn bytes(&self) -> usize {
        self.answer_bytes + self.table.allocation_size()
    }
}

/// The approximate size of an answer in bytes.
fn answer_size(answer: &Answer) -> usize {
    let payload = match &answer.payload {
        AnswerPayload::Own(own) => own.decision.encoded_len(),
        AnswerPayload::Eim(eim) => eim.encoded_len(),
    };
    size_of::<Answer>() + 2 * size_of::<usize>() + payload
}

pub fn answer_hash(answer: &Answer, hashers: &[RandomState; 2]) -> u64 {
    let [_, keys] = hashers;
    let mut hasher = keys.build_hasher();
    match &answer.payload {
        AnswerPayload::Own(own) => {
            own.decision.encode_to_vec().hash(&mut hasher);
            (own.next, own.want_facts, own.want_packages).hash(&mut hasher);
        }
        AnswerPayload::Eim(eim) => eim.encode_to_vec().hash(&mut hasher),
    }
    (answer.tag, answer.requires_fence, answer.limit_scope, answer.waits_for_slot)
        .hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::maintmgr::{OsProfileUpdateSource, PlatformUpdateStatusResponse};

    use super::*;

    fn answer(tag: u64) -> Answer {
        Answer {
            payload: AnswerPayload::Eim(PlatformUpdateStatusResponse::default()),
            tag,
            requires_fence: false,
            limit_scope: None,
            waits_for_slot: false,
        }
    }

    #[test]
    fn large_answers_stay_within_their_limit() {
        let large = |tag| Answer {
            payload: AnswerPayload::Eim(PlatformUpdateStatusResponse {
                os_profile_update_source: Some(OsProfileUpdateSource {
                    profile_name: "x".repeat(1 << 20),
                    ..OsProfileUpdateSource::default()
                }),
                ..PlatformUpdateStatusResponse::default()
            }),
            ..answer(tag)
        };
        let mut answers = InternedAnswers::new(64 << 20);
        let mut interned = Vec::new();
        while answers.has_room(u64::MAX, &large(u64::MAX)) {
            let tag = u64::try_from(interned.len()).expect("a number");
            interned.push(answers.intern(tag, large(tag)));
        }
        assert_eq!(interned.len(), 64);
        assert!(answers.has_room(u64::MAX, &answer(0)), "small answers are accepted");
        assert!(answers.has_room(7, &large(7)), "it is already stored");
        interned.truncate(32);
        let another = large(u64::MAX);
        assert!(!answers.has_room(u64::MAX, &another), "not purged yet");
        while !answers.has_room(u64::MAX, &another) {}
        assert!(answers.bytes() < 40 << 20, "{}", answers.bytes());
    }

    #[test]
    fn equal_answers_are_stored_once() {
        let (mut answers, keys) =
            (InternedAnswers::new(0), [RandomState::new(), RandomState::new()]);
        let mut intern = |one: Answer| answers.intern(answer_hash(&one, &keys), one);
        let (one, again, other) = (intern(answer(1)), intern(answer(1)), intern(answer(2)));
        assert!(Arc::ptr_eq(&one, &again));
        assert!(!Arc::ptr_eq(&one, &other));
        assert_eq!(answers.len(), 2);
    }

    #[test]
    fn answers_with_equal_hashes_are_distinguished() {
        let mut answers = InternedAnswers::new(0);
        let (one, other) = (answers.intern(7, answer(1)), answers.intern(7, answer(2)));
        assert_eq!((one.tag, other.tag), (1, 2));
    }

    #[test]
    fn unused_answers_are_purged() {
        let mut answers = InternedAnswers::new(0);
        let interned: Vec<_> = (0..100).map(|n| answers.intern(n, answer(n))).collect();
        for n in 100..100_000 {
            answers.intern(n, answer(n));
        }
        assert!(answers.len() <= MIN_ANSWERS_TO_PURGE, "{}", answers.len());
        for (n, one) in (0..).zip(&interned) {
            assert!(Arc::ptr_eq(one, &answers.intern(n, answer(n))));
        }
        assert_eq!(answers.answer_bytes, answers.len() * answer_size(&answer(0)));
    }
}
