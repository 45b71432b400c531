//! Whole lists: told as a stream, in how much memory of the server.

use std::time::Instant;

use anyhow::ensure;
use serde::Serialize;

use super::client::{Asked, Client};
use super::fleet::Fleet;
use crate::measure::as_f64;
use crate::report::{each, tidy};
use crate::station::Station;

const MIB: f64 = 1_048_576.0;

/// How much of the end of an answer is looked at, in bytes: more than what stands behind its items.
const END: usize = 256;

/// What it takes to tell a whole list.
#[derive(Clone, Debug, Serialize)]
pub struct Whole {
    /// Which list.
    pub what: &'static str,
    /// How many it has.
    pub items: usize,
    /// How long the answer is, in MiB.
    pub mib: f64,
    /// How long it takes.
    pub seconds: f64,
    /// How much of it comes in a second, in MiB.
    pub mib_per_second: f64,
    /// Processor time of the server for one item, in microseconds.
    pub cpu_us_per_item_server: f64,
    /// Processor time of Postgres for one item, in microseconds.
    pub cpu_us_per_item_postgres: f64,
    /// Memory of the server before, in MiB.
    pub rss_mib_before: f64,
    /// The most memory of the server meanwhile, in MiB.
    pub rss_mib_peak: f64,
    /// Memory of the server afterwards, in MiB.
    pub rss_mib_after: f64,
}

/// Asks once for each whole list.
pub async fn measure(
    station: &Station,
    client: &Client,
    fleet: &Fleet,
) -> anyhow::Result<Vec<Whole>> {
    let lists = [
        ("all hosts", "/compute/hosts", fleet.size()),
        ("all instances", "/compute/instances", fleet.size()),
        ("all runs", "/os-update-runs", fleet.runs()),
    ];
    let mut found = Vec::new();
    for (what, path, items) in lists {
        found.push(one(station, client, (what, path, items)).await?);
    }
    Ok(found)
}

async fn one(
    station: &Station,
    client: &Client,
    (what, path, items): (&'static str, &str, usize),
) -> anyhow::Result<Whole> {
    let before = station.rss_mib();
    station.reset_peak()?;
    let (server, postgres) = station.meters();
    let began = Instant::now();
    let mut answer = client.open(&Asked::get(path)).await?;
    let (mut bytes, mut end) = (0_u64, Vec::new());
    while let Some(piece) = answer.chunk().await? {
        bytes += piece.len() as u64;
        end.extend_from_slice(&piece[piece.len().saturating_sub(END)..]);
        end.drain(..end.len().saturating_sub(END));
    }
    let seconds = began.elapsed().as_secs_f64();
    let end = String::from_utf8_lossy(&end);
    ensure!(ends(&end, items), "{what}: not {items} of them: …{end}");
    let mib = as_f64(bytes) / MIB;
    Ok(Whole {
        what,
        items,
        mib: tidy(mib),
        seconds: tidy(seconds),
        mib_per_second: tidy(mib / seconds.max(1e-9)),
        cpu_us_per_item_server: each(server.spent(), items.max(1)),
        cpu_us_per_item_postgres: each(postgres.spent(), items.max(1)),
        rss_mib_before: tidy(before),
        rss_mib_peak: tidy(station.peak_mib()),
        rss_mib_after: tidy(station.rss_mib()),
    })
}

/// Whether an answer ends as that of a whole list with so many items.
fn ends(text: &str, items: usize) -> bool {
    let wanted = format!("],\"totalElements\":{items},\"hasNext\":false,\"nextPageToken\":\"\"}}");
    text.ends_with(&wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_list_ends_with_its_number() {
        let text =
            r#"{"resourceId":"host-1"}],"totalElements":12,"hasNext":false,"nextPageToken":""}"#;
        assert!(ends(text, 12));
        assert!(!ends(text, 2), "another number");
        assert!(!ends(&text[..text.len() - 1], 12), "broken off");
    }
}
