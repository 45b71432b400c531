//! The fuzz loop, and the generator of texts that are nearly valid.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Maximum time for one input. A slower one is a defect even on a busy machine.
const MAX_INPUT_DURATION: Duration = Duration::from_secs(10);

/// Runs a target until the time is up. The target makes its input from the given generator.
pub fn fuzz(name: &str, mut target: impl FnMut(&mut StdRng)) {
    let time = Duration::from_secs(setting("EVENKEEL_FUZZ_SECONDS").unwrap_or(1));
    let first = setting("EVENKEEL_FUZZ_SEED").unwrap_or_else(|| rand::random::<u64>() >> 16);
    println!("fuzz {name}: from EVENKEEL_FUZZ_SEED={first} for {time:?}");
    let (began, mut seed) = (Instant::now(), first);
    while seed == first || began.elapsed() < time {
        let failed = FailureReporter { name, seed };
        let input = Instant::now();
        target(&mut StdRng::seed_from_u64(seed));
        assert!(input.elapsed() < MAX_INPUT_DURATION, "one input took {:?}", input.elapsed());
        drop(failed);
        seed += 1;
    }
    println!("fuzz {name}: {} inputs", seed - first);
}

/// Prints how to reproduce the input that failed.
struct FailureReporter<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for FailureReporter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (name, seed) = (self.name, self.seed);
            println!("fuzz {name}: failed; EVENKEEL_FUZZ_SEED={seed} begins with this input");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no configuration to load")]
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// A text: a sample after a few changes, two spliced samples, or random letters. `letters` are those with a meaning for
/// the target.
pub fn text(rng: &mut StdRng, samples: &[&str], letters: &str) -> String {
    let letters: Vec<char> = letters.chars().collect();
    let sample = |rng: &mut StdRng| -> Vec<char> {
        samples.choose(rng).map_or_else(Vec::new, |s| s.chars().collect())
    };
    let mut text = match rng.random_range(0..10) {
        0 => Vec::new(),
        1 => {
            let (mut head, tail) = (sample(rng), sample(rng));
            head.truncate(rng.random_range(0..=head.len()));
            head.extend(&tail[rng.random_range(0..=tail.len())..]);
            head
        }
        _ => sample(rng),
    };
    for _ in 0..rng.random_range(0..4) {
        mutate(rng, &mut text, &letters);
    }
    text.into_iter().collect()
}

/// Inserts, removes, replaces or repeats a part.
fn mutate(rng: &mut StdRng, text: &mut Vec<char>, letters: &[char]) {
    let at = rng.random_range(0..=text.len());
    let until = rng.random_range(at..=text.len().min(at + 8));
    match rng.random_range(0..4) {
        0 => {
            text.drain(at..until);
        }
        1 => {
            let part: Vec<char> = text[at..until].to_vec();
            for _ in 0..rng.random_range(1..30) {
                text.splice(at..at, part.iter().copied());
            }
        }
        2 => {
            let any = (0..rng.random_range(1..6)).map(|_| letter(rng, letters)).collect::<Vec<_>>();
            text.splice(at..at, any);
        }
        _ => {
            let any = letter(rng, letters);
            text.splice(at..until, [any]);
        }
    }
}

/// Mostly a letter with a meaning, sometimes any character.
fn letter(rng: &mut StdRng, letters: &[char]) -> char {
    match letters.choose(rng) {
        Some(letter) if rng.random_ratio(7, 8) => *letter,
        _ => rng.random(),
    }
}
