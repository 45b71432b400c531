//! How much memory this process holds, and may hold.

use std::time::Duration;

use evenkeel_kit::{Lifecycle, beat};
use evenkeel_maintenance_manager::Memory;

/// How often it is looked how much memory is held.
const LOOK: Duration = Duration::from_millis(500);

/// Memory is short above so many hundredths of the limit.
const SHORT: u64 = 90;

/// And no more below so many, so that one connection more or less does not decide.
const ENOUGH: u64 = 85;

/// How many bytes of memory this process holds. None if the kernel does not say (proc(5), `/proc/pid/statm`).
pub(crate) fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page)
}

/// Says whether memory is short until the process stops. A limit of 0 is none.
pub(crate) fn watch(limit: u64, memory: Memory, life: &Lifecycle) {
    if limit == 0 {
        return;
    }
    let stopping = life.stopping();
    life.spawn("memory", async move {
        let mut looks = beat::ticks(LOOK);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = looks.tick() => {}
            }
            if let Some(held) = resident() {
                note(&memory, held, limit);
            }
        }
    });
}

fn note(memory: &Memory, held: u64, limit: u64) {
    let is_short = is_short(held, limit, memory.is_short());
    if !memory.note(is_short) {
        return;
    }
    if is_short {
        tracing::warn!(
            held,
            limit,
            "memory is short: new connections of agents are turned away, and polls are no longer held \
             (southbound.memory_limit)"
        );
    } else {
        tracing::info!(held, limit, "there is memory again");
    }
}

/// Whether so much is too near to the limit.
fn is_short(held: u64, limit: u64, was_short: bool) -> bool {
    let hundredths = if was_short { ENOUGH } else { SHORT };
    u128::from(held) * 100 >= u128::from(limit) * u128::from(hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_some_memory() {
        let held = resident().expect("the kernel says how much");
        assert!((1 << 20..1 << 40).contains(&held), "{held}");
    }

    #[test]
    fn what_was_short_is_so_until_there_is_clearly_enough() {
        let memory = Memory::default();
        for (held, expected) in [
            (89, false),
            (90, true),
            (86, true),
            (84, false),
            (86, false),
        ] {
            note(&memory, held, 100);
            assert_eq!(memory.is_short(), expected, "{held}");
        }
        note(&memory, u64::MAX, u64::MAX);
        assert!(memory.is_short());
    }
}
