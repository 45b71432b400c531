//! Full lists, which the server streams: their speed, and the memory of the server.

use std::time::Instant;

use anyhow::ensure;
use serde::Serialize;

use super::client::{RequestSpec, RestClient};
use super::fleet::Fleet;
use crate::bench_harness::BenchHarness;
use crate::measure::as_f64;
use crate::report::{micros_each, round_figure};

const BYTES_PER_MIB: f64 = 1_048_576.0;

/// Number of bytes at the end of an answer that are checked: more than the text after its items.
const TAIL_BYTES: usize = 256;

#[derive(Clone, Debug, Serialize)]
pub struct FullListFigures {
    /// Name of the list.
    pub what: &'static str,
    /// Number of items.
    pub items: usize,
    /// Length of the answer, in MiB.
    pub mib: f64,
    /// Duration, in seconds.
    pub seconds: f64,
    /// Speed, in MiB per second.
    pub mib_per_second: f64,
    /// Processor time of the server per item, in microseconds.
    pub cpu_us_per_item_server: f64,
    /// Processor time of Postgres per item, in microseconds.
    pub cpu_us_per_item_postgres: f64,
    /// Memory of the server before the request, in MiB.
    pub rss_mib_before: f64,
    /// Peak memory of the server during the request, in MiB.
    pub rss_mib_peak: f64,
    /// Memory of the server after the request, in MiB.
    pub rss_mib_after: f64,
}

/// Requests each full list once.
pub async fn measure(
    harness: &BenchHarness,
    client: &RestClient,
    fleet: &Fleet,
) -> anyhow::Result<Vec<FullListFigures>> {
    let lists = [
        ("all hosts", "/compute/hosts", fleet.host_count()),
        ("all instances", "/compute/instances", fleet.host_count()),
        ("all runs", "/os-update-runs", fleet.run_count()),
    ];
    let mut figures = Vec::new();
    for (what, path, items) in lists {
        figures.push(measure_list(harness, client, (what, path, items)).await?);
    }
    Ok(figures)
}

async fn measure_list(
    harness: &BenchHarness,
    client: &RestClient,
    (what, path, items): (&'static str, &str, usize),
) -> anyhow::Result<FullListFigures> {
    let before = harness.rss_mib();
    harness.reset_peak()?;
    let (server, postgres) = harness.meters();
    let began = Instant::now();
    let mut answer = client.send_streaming(&RequestSpec::get(path)).await?;
    let (mut bytes, mut end) = (0_u64, Vec::new());
    while let Some(piece) = answer.chunk().await? {
        bytes += piece.len() as u64;
        end.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
        end.drain(..end.len().saturating_sub(TAIL_BYTES));
    }
    let seconds = began.elapsed().as_secs_f64();
    let end = String::from_utf8_lossy(&end);
    ensure!(
        ends_with_total(&end, items),
        "{what}: the answer does not end with a total of {items}: …{end}"
    );
    let mib = as_f64(bytes) / BYTES_PER_MIB;
    Ok(FullListFigures {
        what,
        items,
        mib: round_figure(mib),
        seconds: round_figure(seconds),
        mib_per_second: round_figure(mib / seconds.max(1e-9)),
        cpu_us_per_item_server: micros_each(server.spent(), items.max(1) as u64),
        cpu_us_per_item_postgres: micros_each(postgres.spent(), items.max(1) as u64),
        rss_mib_before: round_figure(before),
        rss_mib_peak: round_figure(harness.peak_mib()),
        rss_mib_after: round_figure(harness.rss_mib()),
    })
}

/// Whether an answer ends like a full list with this number of items.
fn ends_with_total(text: &str, items: usize) -> bool {
    let expected =
        format!("],\"totalElements\":{items},\"hasNext\":false,\"nextPageToken\":\"\"}}");
    text.ends_with(&expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_ends_with_its_total() {
        let text =
            r#"{"resourceId":"host-1"}],"totalElements":12,"hasNext":false,"nextPageToken":""}"#;
        assert!(ends_with_total(text, 12));
        assert!(!ends_with_total(text, 2), "another number");
        assert!(!ends_with_total(&text[..text.len() - 1], 12), "truncated");
    }
}
