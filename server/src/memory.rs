//! Memory usage of this process, and its limit.

use std::time::Duration;

use evenkeel_kit::{Lifecycle, tick};
use evenkeel_maintenance_manager::MemoryPressure;

const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Memory counts as short from this percentage of the limit on.
const SHORT_PERCENT: u64 = 90;

/// Memory no longer counts as short below this percentage. The gap avoids frequent changes.
const RECOVERED_PERCENT: u64 = 85;

/// Returns the resident memory of this process in bytes; `None` if the kernel does not provide it
/// (proc(5), `/proc/pid/statm`).
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page)
}

/// Updates the memory state until the process stops. A limit of 0 means no limit.
pub(crate) fn spawn_memory_watch(limit: u64, memory: MemoryPressure, life: &Lifecycle) {
    if limit == 0 {
        return;
    }
    let stopping = life.stopping();
    life.spawn("memory", async move {
        let mut looks = tick::aligned_interval(MEMORY_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = looks.tick() => {}
            }
            if let Some(resident) = resident_bytes() {
                update_memory_state(&memory, resident, limit);
            }
        }
    });
}

fn update_memory_state(memory: &MemoryPressure, resident: u64, limit: u64) {
    let is_short = is_short(resident, limit, memory.is_short());
    if !memory.set_short(is_short) {
        return;
    }
    if is_short {
        tracing::warn!(
            resident,
            limit,
            "memory is short: new connections of agents are refused, and polls are answered at once \
             (southbound.memory_limit)"
        );
    } else {
        tracing::info!(resident, limit, "memory is no longer short");
    }
}

/// Returns whether memory is short, with hysteresis.
fn is_short(resident: u64, limit: u64, was_short: bool) -> bool {
    let hundredths = if was_short { RECOVERED_PERCENT } else { SHORT_PERCENT };
    u128::from(resident) * 100 >= u128::from(limit) * u128::from(hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_plausible() {
        let resident = resident_bytes().expect("the kernel provides the resident memory");
        assert!((1 << 20..1 << 40).contains(&resident), "{resident}");
    }

    #[test]
    fn short_memory_recovers_only_with_a_margin() {
        let memory = MemoryPressure::default();
        for (resident, expected) in [(89, false), (90, true), (86, true), (84, false), (86, false)]
        {
            update_memory_state(&memory, resident, 100);
            assert_eq!(memory.is_short(), expected, "{resident}");
        }
        update_memory_state(&memory, u64::MAX, u64::MAX);
        assert!(memory.is_short());
    }
}
