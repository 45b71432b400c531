//! Downloads of an image, compared with reading the same bytes with `cat`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use evenkeel_registry::Digest;
use reqwest::{Certificate, Client};
use serde::Serialize;

use super::registry::PublishedRegistry;
use crate::bench_harness::BenchHarness;
use crate::children;
use crate::measure::as_f64;
use crate::report::round_figure;

const DOWNLOAD_TIMEOUT: Duration = Duration::from_mins(10);

/// Speed of a download.
#[derive(Debug, Serialize)]
pub struct FileFigures {
    /// Source of the image.
    pub what: &'static str,
    /// Speed, in MiB per second.
    pub mib_per_second: f64,
}

/// Downloads the image over TLS: first when the server has not fetched it yet, then from its cache.
pub async fn measure(
    harness: &BenchHarness,
    published: &PublishedRegistry,
) -> anyhow::Result<Vec<FileFigures>> {
    let image = published.image();
    let authority = Certificate::from_pem(harness.authority()?.certificate_pem().as_bytes())?;
    let client = Client::builder()
        .no_proxy()
        .tls_certs_only([authority])
        .timeout(DOWNLOAD_TIMEOUT)
        .build()?;
    let (address, digest) = (harness.address("files")?, Digest::compute(image));
    let url = format!("https://{address}/files/sha256/{}", digest.hex());
    let mut figures = Vec::new();
    for what in ["not cached", "cached", "cached, again"] {
        let began = Instant::now();
        download(&client, &url, image.len()).await?;
        figures.push(FileFigures::new(what, image.len(), began));
    }
    let image_file = harness.folder().join("image");
    tokio::fs::write(&image_file, image).await?;
    let script = ["-c", "exec cat \"$0\" > /dev/null"];
    let file = image_file.to_string_lossy();
    let began = Instant::now();
    children::command_output(Path::new("sh"), &[&script[..], &[&file]].concat(), &[]).await?;
    figures.push(FileFigures::new("cat", image.len(), began));
    Ok(figures)
}

/// Downloads a file and discards its content.
async fn download(client: &Client, url: &str, length: usize) -> anyhow::Result<()> {
    let mut answer = client.get(url).send().await?.error_for_status()?;
    let mut received = 0;
    while let Some(chunk) = answer.chunk().await? {
        received += chunk.len();
    }
    ensure!(received == length, "received {received} of {length} bytes");
    Ok(())
}

impl FileFigures {
    fn new(what: &'static str, bytes: usize, began: Instant) -> Self {
        let mib = as_f64(bytes as u64) / f64::from(1 << 20);
        Self { what, mib_per_second: round_figure(mib / began.elapsed().as_secs_f64().max(1e-9)) }
    }
}
