//! Processor time and memory of processes, from the kernel (proc(5)).

use std::fs;
use std::time::Duration;

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// Processor time of a process, including its dead children. The time of the process itself has
/// nanosecond precision (`clock_getcpuclockid(3)`). The time in `stat` is truncated to ticks of
/// about 10 ms, which is all that an idle server uses within seconds.
pub fn cpu_time(pid: u32) -> Duration {
    // A process that has ended uses no more time.
    own_cpu_time(pid).unwrap_or_default() + dead_children_cpu_time(pid)
}

fn own_cpu_time(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    clock.now().ok().map(Duration::from)
}

fn dead_children_cpu_time(pid: u32) -> Duration {
    let ticks = stat_fields(pid).map_or(0, |fields| {
        // cutime and cstime are fields 16 and 17; two fields come before the state.
        fields[13..15].iter().filter_map(|field| field.parse::<u64>().ok()).sum()
    });
    Duration::from_secs_f64(as_f64(ticks) / as_f64(rustix::param::clock_ticks_per_second()))
}

/// Proportional set size (PSS) of a process, in MiB.
pub fn pss_mib(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    as_f64(kib.unwrap_or(0)) / 1_024.0
}

/// Resident set size of a process, including shared memory, in MiB.
pub fn vm_rss_mib(pid: u32) -> f64 {
    as_f64(read_status(pid, "VmRSS:")) / 1_024.0
}

/// Peak resident set size of a process since its start, or since [`reset_peak`], in MiB.
pub fn peak_mib(pid: u32) -> f64 {
    as_f64(read_status(pid, "VmHWM:")) / 1_024.0
}

/// Resets the peak resident set size of a process (proc(5), `clear_refs`). Fails if the process has
/// ended, or belongs to another user.
pub fn reset_peak(pid: u32) -> std::io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Number of voluntary context switches of all threads of a process.
pub fn wake_ups(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    ids.map(|thread| {
        read_number(&format!("/proc/{pid}/task/{thread}/status"), "voluntary_ctxt_switches:")
    })
    .sum()
}

fn read_status(pid: u32, name: &str) -> u64 {
    read_number(&format!("/proc/{pid}/status"), name)
}

/// Reads a number from a file with a name and a number on each line.
fn read_number(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A process and its direct children: the processes of Postgres.
pub fn family(parent: u32) -> Vec<u32> {
    let mut pids = vec![parent];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if stat_fields(pid).is_some_and(|fields| fields[1].parse() == Ok(parent)) {
            pids.push(pid);
        }
    }
    pids
}

/// The fields of `/proc/PID/stat` from the state on. The name before it may contain any character.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(") ")?.1;
    let fields: Vec<String> = rest.split(' ').map(str::to_owned).collect();
    (fields.len() > 15).then_some(fields)
}

/// Measures the cost of processes together. A child that ends meanwhile counts for its parent.
#[derive(Debug)]
pub struct Meter {
    pids: Vec<u32>,
    /// The process whose children count as well, including later ones.
    parent: Option<u32>,
    before: Duration,
}

impl Meter {
    pub fn start(pids: Vec<u32>) -> Self {
        let before = total_cpu_time(&pids);
        Self { pids, parent: None, before }
    }

    /// Starts to measure a process and all of its current and later children.
    pub fn start_for_family(parent: u32) -> Self {
        Self { parent: Some(parent), ..Self::start(family(parent)) }
    }

    /// Processor time since the start.
    pub fn spent(&self) -> Duration {
        total_cpu_time(&self.all_pids()).saturating_sub(self.before)
    }

    /// Current memory (PSS), in MiB.
    pub fn pss_mib(&self) -> f64 {
        self.all_pids().iter().map(|pid| pss_mib(*pid)).sum()
    }

    fn all_pids(&self) -> Vec<u32> {
        let mut all = self.pids.clone();
        let current = self.parent.map(family).unwrap_or_default();
        all.extend(current.into_iter().filter(|pid| !self.pids.contains(pid)));
        all
    }
}

fn total_cpu_time(pids: &[u32]) -> Duration {
    pids.iter().map(|pid| cpu_time(*pid)).sum()
}

/// Converts a count for output.
#[expect(clippy::cast_precision_loss, reason = "figures need no full precision")]
pub const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn cpu_time_below_a_tick_is_counted() {
        let me = std::process::id();
        let before = cpu_time(me);
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_millis(2) {
            black_box(started_at);
        }
        assert!(before < cpu_time(me));
    }
}
