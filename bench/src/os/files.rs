//! An image as nodes fetch it, and beside it the same bytes from `cat`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use evenkeel_registry::Digest;
use reqwest::{Certificate, Client};
use serde::Serialize;

use super::registry::Published;
use crate::children;
use crate::measure::as_f64;
use crate::report::tidy;
use crate::station::Station;

/// How long a file may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// How fast a file came.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// From where.
    pub what: &'static str,
    /// How much of it came a second.
    pub mib_per_second: f64,
}

/// Fetches the image twice over TLS: for the first time, and from the server's cache.
pub async fn measure(station: &Station, published: &Published) -> anyhow::Result<Vec<Figures>> {
    let image = published.image();
    let authority = Certificate::from_pem(station.authority()?.certificate_pem().as_bytes())?;
    let client = Client::builder()
        .no_proxy()
        .tls_certs_only([authority])
        .timeout(PATIENCE)
        .build()?;
    let (address, digest) = (station.address("files")?, Digest::of(image));
    let url = format!("https://{address}/files/sha256/{}", digest.hex());
    let mut found = Vec::new();
    for what in [
        "not fetched yet",
        "from the cache",
        "from the cache, once more",
    ] {
        let began = Instant::now();
        fetch(&client, &url, image.len()).await?;
        found.push(Figures::of(what, image.len(), began));
    }
    let beside = station.folder().join("image");
    tokio::fs::write(&beside, image).await?;
    let script = ["-c", "exec cat \"$0\" > /dev/null"];
    let file = beside.to_string_lossy();
    let began = Instant::now();
    children::output(Path::new("sh"), &[&script[..], &[&file]].concat(), &[]).await?;
    found.push(Figures::of("cat", image.len(), began));
    Ok(found)
}

/// Fetches all of a file, and keeps nothing of it.
async fn fetch(client: &Client, url: &str, length: usize) -> anyhow::Result<()> {
    let mut answer = client.get(url).send().await?.error_for_status()?;
    let mut came = 0;
    while let Some(chunk) = answer.chunk().await? {
        came += chunk.len();
    }
    ensure!(came == length, "{came} of {length} bytes came");
    Ok(())
}

impl Figures {
    fn of(what: &'static str, bytes: usize, began: Instant) -> Self {
        let mib = as_f64(bytes as u64) / f64::from(1 << 20);
        Self {
            what,
            mib_per_second: tidy(mib / began.elapsed().as_secs_f64().max(1e-9)),
        }
    }
}
