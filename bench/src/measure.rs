//! What processes cost, as the kernel counts it (proc(5)).

use std::fs;
use std::time::Duration;

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// Processor time of a process, its dead children included. Its own is known to the nanosecond, but for what runs just now
/// (`clock_getcpuclockid(3)`); what `stat` tells is in ticks of some 10 ms, cut off, which is all that an idle server spends
/// within seconds.
pub fn cpu(pid: u32) -> Duration {
    // A process that has ended spends nothing more.
    own_cpu(pid).unwrap_or_default() + cpu_of_dead_children(pid)
}

fn own_cpu(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    clock.now().ok().map(Duration::from)
}

fn cpu_of_dead_children(pid: u32) -> Duration {
    let ticks = stat(pid).map_or(0, |fields| {
        // cutime and cstime are fields 16 and 17; two stand before the state.
        fields[13..15]
            .iter()
            .filter_map(|field| field.parse::<u64>().ok())
            .sum()
    });
    Duration::from_secs_f64(as_f64(ticks) / as_f64(rustix::param::clock_ticks_per_second()))
}

/// Memory of a process that is its own share of what is in use, in MiB.
pub fn rss_mib(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("Pss:")?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<u64>()
            .ok()
    });
    as_f64(kib.unwrap_or(0)) / 1_024.0
}

/// Memory of a process that is in use, what it shares with others included, in MiB.
pub fn rss_of_mib(pid: u32) -> f64 {
    as_f64(status(pid, "VmRSS:")) / 1_024.0
}

/// The most memory that a process had in use since it began, or since [`reset_peak`], in MiB.
pub fn peak_mib(pid: u32) -> f64 {
    as_f64(status(pid, "VmHWM:")) / 1_024.0
}

/// Lets the count of the most memory of a process begin anew (proc(5), `clear_refs`).
///
/// # Errors
/// The process is gone, or is not ours to look at.
pub fn reset_peak(pid: u32) -> std::io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// How often the threads of a process went to sleep and were woken.
pub fn wake_ups(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    ids.map(|thread| {
        field(
            &format!("/proc/{pid}/task/{thread}/status"),
            "voluntary_ctxt_switches:",
        )
    })
    .sum()
}

fn status(pid: u32, name: &str) -> u64 {
    field(&format!("/proc/{pid}/status"), name)
}

/// A number from a file with a name and a number on each line.
fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A process and all its children, as Postgres has them.
pub fn family(parent: u32) -> Vec<u32> {
    let mut found = vec![parent];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if stat(pid).is_some_and(|fields| fields[1].parse() == Ok(parent)) {
            found.push(pid);
        }
    }
    found
}

/// The fields of `/proc/PID/stat` from the state on: the name before it may hold anything.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(") ")?.1;
    let fields: Vec<String> = rest.split(' ').map(str::to_owned).collect();
    (fields.len() > 15).then_some(fields)
}

/// What processes cost together over a span of time. A child that ended meanwhile is in its parent's count.
#[derive(Debug)]
pub struct Meter {
    pids: Vec<u32>,
    /// Whose children count as well, also those that it has later.
    parent: Option<u32>,
    before: Duration,
}

impl Meter {
    /// Begins to count.
    pub fn start(pids: Vec<u32>) -> Self {
        let before = total(&pids);
        Self {
            pids,
            parent: None,
            before,
        }
    }

    /// Begins to count for a process and all children that it has, now or later.
    pub fn of_family(parent: u32) -> Self {
        Self {
            parent: Some(parent),
            ..Self::start(family(parent))
        }
    }

    /// What was spent since then.
    pub fn spent(&self) -> Duration {
        total(&self.all()).saturating_sub(self.before)
    }

    /// The memory in use now, in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.all().iter().map(|pid| rss_mib(*pid)).sum()
    }

    fn all(&self) -> Vec<u32> {
        let mut all = self.pids.clone();
        let born = self.parent.map(family).unwrap_or_default();
        all.extend(born.into_iter().filter(|pid| !self.pids.contains(pid)));
        all
    }
}

fn total(pids: &[u32]) -> Duration {
    pids.iter().map(|pid| cpu(*pid)).sum()
}

/// For figures that people read.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_less_than_a_tick_is_counted_as_well() {
        let me = std::process::id();
        let before = cpu(me);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) {
            black_box(begun);
        }
        assert!(before < cpu(me));
    }
}
