//! Downloads files that configuration documents name, with the client for images.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_fetch::{Digest, Download, ExpectedContent, FillError, RangeRequest, SourceError};
use evenkeel_kit::Clock;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use hyper::body::Bytes;
use tokio::time::{Instant, sleep};
use url::Url;

use super::spool::limits::DEFAULT_LIMITS;
use super::web::{BodyEvent, DownloadError, OpenedFile, ResponseBody, WebClient, WebSettings};
use crate::model::{Failure, FailureKind};
use crate::module_registry::ModuleRegistry;

/// Largest file. A larger one could not be restored.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// How often a download is continued after the connection broke.
const MAX_ATTEMPTS: u32 = 4;

/// Delay before the second attempt. It doubles with each attempt.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time after which an idle connection is looked at again.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Downloads files. An interrupted download continues where it ended.
pub struct FileDownloader {
    web: WebClient,
    clock: Arc<dyn Clock>,
    retry_delay: Duration,
}

impl fmt::Debug for FileDownloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDownloader").field("web", &self.web).finish_non_exhaustive()
    }
}

impl SourceError for DownloadError {
    fn is_wrong_content(&self) -> bool {
        false
    }
}

impl fmt::Display for DownloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient { reason, .. } => reason,
            Self::Permanent(failure) => &failure.reason,
        })
    }
}

impl FileDownloader {
    /// Trusts the authorities of the system, or those that `image.web.roots` names. The servers get
    /// no certificate and no token.
    pub fn new(registry: &ModuleRegistry<'_>) -> Result<Self, Failure> {
        let proxy = registry.config.proxy();
        let proxy =
            proxy.map_err(|error| Failure::new(FailureKind::Unsupported, error.to_string()))?;
        let own = &registry.config.image.web;
        let settings = WebSettings {
            roots: own.roots.clone(),
            hosts: own.hosts.clone(),
            ..WebSettings::default()
        };
        let web = WebClient::new(settings, proxy, registry.time_floor(), None)?;
        let clock = Arc::clone(&registry.clock);
        Ok(Self { web, clock, retry_delay: FIRST_RETRY_DELAY })
    }

    /// Downloads a file with this digest to a path, unless it is there. The error is a sentence
    /// without a full stop.
    pub async fn download(&self, uri: &str, digest: Digest, path: &Path) -> Result<(), String> {
        let failed = |error: &dyn fmt::Display| format!("cannot download {uri}: {error}");
        let url = self.web.parse_file_address(uri).map_err(|why| failed(&why))?;
        let mut download = Download::lock(path.to_owned()).await.map_err(|error| failed(&error))?;
        let expected = ExpectedContent { digest, size: None, limit: MAX_FILE_BYTES };
        let mut attempt = 1;
        loop {
            let filled = download.fill(&expected, |from| self.open(&url, from)).await;
            let Err(error) = filled else {
                return download.persist_as(path).await.map_err(|error| failed(&error));
            };
            let may_pass = matches!(
                error,
                FillError::Incomplete | FillError::Source(DownloadError::Transient { .. })
            );
            if !may_pass || attempt == MAX_ATTEMPTS {
                download.release().await;
                return Err(failed(&error));
            }
            sleep(self.retry_delay * 2_u32.pow(attempt - 1)).await;
            attempt += 1;
        }
    }

    /// The bytes of a file from an offset on.
    async fn open(
        &self,
        url: &Url,
        from: u64,
    ) -> Result<BoxStream<'static, Result<Bytes, DownloadError>>, DownloadError> {
        let requested = RangeRequest { from, ..RangeRequest::default() };
        let within = DEFAULT_LIMITS.open_timeout;
        match self.web.open(url, &requested, within, self.clock.now()).await? {
            OpenedFile::Body { body, from: start, .. } => Ok(read_body(body, from - start)),
            OpenedFile::WrongPart(reason) => {
                Err(DownloadError::Transient { reason, retry_after: None })
            }
            // The whole file is stored, or another one: the digest decides.
            OpenedFile::RangeNotSatisfiable => Ok(stream::empty().boxed()),
        }
    }
}

/// The bytes of a body without the first ones.
fn read_body(body: ResponseBody, skip: u64) -> BoxStream<'static, Result<Bytes, DownloadError>> {
    let chunks = stream::unfold(Some((body, skip)), |state| async {
        let (mut body, mut skip) = state?;
        loop {
            let until = Instant::now() + READ_INTERVAL;
            match body.next_event(until, &DEFAULT_LIMITS.stall_limits).await {
                BodyEvent::Bytes(mut bytes) => {
                    let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
                    skip -= skipped as u64;
                    let bytes = bytes.split_off(skipped);
                    if !bytes.is_empty() {
                        return Some((Ok(bytes), Some((body, skip))));
                    }
                }
                BodyEvent::Idle => {}
                BodyEvent::End => return None,
                BodyEvent::Broken(reason) => {
                    let error = DownloadError::Transient { reason, retry_after: None };
                    return Some((Err(error), None));
                }
            }
        }
    });
    chunks.boxed()
}

#[cfg(test)]
mod tests {
    use evenkeel_kit::SystemClock;

    use super::*;
    use crate::link::TimeFloor;
    use crate::modules::image::web::testing::{TestFileServer, TestReply};

    fn downloader() -> FileDownloader {
        let settings = WebSettings { plain_http: true, ..WebSettings::default() };
        let floor = Arc::new(TimeFloor::unset());
        let web = WebClient::new(settings, None, floor, None).expect("settings");
        FileDownloader { web, clock: Arc::new(SystemClock), retry_delay: Duration::ZERO }
    }

    #[tokio::test]
    async fn a_broken_download_continues_and_is_verified() {
        let content: Vec<u8> = (0..200_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let digest = Digest::compute(&content);
        let copy = content.clone();
        let server = TestFileServer::start(move |number, request| {
            let reply = TestReply::file(&copy, "\"a\"", request);
            if number == 0 { reply.cut(50_000) } else { reply }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        downloader().download(&server.url("/file"), digest, &path).await.expect("complete");
        assert_eq!(std::fs::read(&path).expect("read"), content);
        assert_eq!(server.requests().len(), 2);
        // It is there.
        downloader().download(&server.url("/file"), digest, &path).await.expect("complete");
        assert_eq!(server.requests().len(), 2);
    }

    #[tokio::test]
    async fn another_content_or_a_missing_file_is_an_error() {
        let server = TestFileServer::start(|_, request| match request.path() {
            "/none" => TestReply::status("404 Not Found", &[]),
            _ => TestReply::whole_file(b"other", "\"a\""),
        });
        let folder = tempfile::tempdir().expect("a folder");
        for (path, reason) in [("/file", "its digest is"), ("/none", "404 Not Found")] {
            let file = folder.path().join("file");
            let digest = Digest::compute(b"content");
            let error = downloader().download(&server.url(path), digest, &file).await;
            let error = error.expect_err("refused");
            assert!(
                error.starts_with("cannot download http://") && error.contains(reason),
                "{error}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }
}
