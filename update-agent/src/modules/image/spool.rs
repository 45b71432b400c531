//! The file of an image, as it is given: fetched bit by bit into a folder, and handed on only if it is what it should
//! be.
//!
//! The file is named by its SHA-256. Beside it `spool.json` says how much of it is sure. A power cut costs what came
//! since it was written last: the file is cut there, and the rest is asked for by its range. Whatever came in between,
//! from whatever server, the digest of the whole, as it lies on the disk, decides in the end.

mod record;
mod terms;
mod work;

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Clock;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use self::record::Record;
use self::terms::{End, TERMS, Terms, fits};
use self::work::{Flow, Held, Work};
use super::unpack::Form;
use super::web::{Asked, Heard, Line, Opened, Trouble, Web, pace};
use crate::model::{Failure, FailureKind, ImageWish, Sha256};

/// What is gathered before it is written.
const BLOCK: usize = 256 << 10;

/// A longer slice is none.
const LONGEST_SLICE: Duration = Duration::from_hours(1);

/// The file of an image, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// How it is packed.
    pub form: Form,
    /// What it was found to be, and what it must still be when it is unpacked.
    pub sha256: Sha256,
}

/// What came of a slice of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// The whole file. What lies on the disk has the digest that was asked for.
    All(Spooled),
    /// A part. There is more to do, at once.
    Part {
        /// So much of the file is sure.
        bytes: u64,
    },
    /// Nothing can be done for a while, because of this. To ask again earlier does no harm and sends nothing.
    Later(String),
}

/// Fetches files into a folder of its own, one at a time.
pub struct Spool {
    folder: PathBuf,
    web: Web,
    clock: Arc<dyn Clock>,
    terms: Terms,
    held: Arc<Mutex<Held>>,
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool")
            .field("folder", &self.folder)
            .field("web", &self.web)
            .finish_non_exhaustive()
    }
}

/// What is to be done in one slice.
struct Task<'a> {
    wish: &'a ImageWish,
    url: Url,
    until: Instant,
}

impl Task<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Whether a slice goes on.
type Next = ControlFlow<Got, Work>;

impl Spool {
    /// A spool in a folder, which is made when it is needed. What an earlier agent left there is gone on with.
    pub fn new(folder: PathBuf, web: Web, clock: Arc<dyn Clock>) -> Self {
        Self::with(folder, web, clock, TERMS)
    }

    fn with(folder: PathBuf, web: Web, clock: Arc<dyn Clock>, terms: Terms) -> Self {
        Self {
            folder,
            web,
            clock,
            terms,
            held: Arc::default(),
        }
    }

    /// The size of an image's file, without fetching it; `None` if the server does not say, or cannot be asked right
    /// now. Fails if the server knows of no such file, or it is larger than may be.
    pub async fn size(&self, wish: &ImageWish) -> Result<Option<u64>, Failure> {
        let url = self.web.address(&wish.url)?;
        let mut total = self.known_size(&wish.sha256).await?;
        if total.is_none() {
            let now = self.clock.now();
            total = self.web.size(&url, self.terms.open, now).await?;
        }
        if let Some(total) = total {
            fits(wish, total)?;
        }
        Ok(total)
    }

    async fn known_size(&self, sha256: &Sha256) -> Result<Option<u64>, Failure> {
        let folder = self.folder.clone();
        let record = blocking(move || {
            Record::read(&folder).map_err(|error| unreadable(&evenkeel_kit::chain(&error)))
        });
        let is_known = |record: &Record| record.file == *sha256 && !record.is_guessed;
        let record = record.await?.filter(is_known);
        Ok(record.and_then(|record| record.total))
    }

    /// Works on the file of an image for at most `slice`, and so long as a server takes to answer. To let go of it
    /// before it ends is safe: what is sure is kept, and the next call waits until nothing writes any more.
    ///
    /// Fails with [`FailureKind::Download`] if too many attempts failed or the file is not what it should be, with
    /// [`FailureKind::Storage`] if it does not fit, and with [`FailureKind::Unsupported`] if it could not be unpacked.
    pub async fn fetch(&self, wish: &ImageWish, slice: Duration) -> Result<Got, Failure> {
        let task = Task {
            wish,
            url: self.web.address(&wish.url)?,
            until: Instant::now() + slice.min(LONGEST_SLICE),
        };
        let mut held = Arc::clone(&self.held).lock_owned().await;
        held.turn_to(wish.sha256, &task.url);
        let now = self.clock.now();
        if let Some(why) = held.waits(now) {
            return Ok(Got::Later(why.to_owned()));
        }
        let (folder, sha256, terms) = (self.folder.clone(), wish.sha256, self.terms);
        let opened = blocking(move || Work::open(held, &folder, sha256, terms, now));
        let mut work = opened.await?;
        // Less may be allowed than when it was begun.
        fits(wish, work.record.total.unwrap_or(work.bytes))?;
        loop {
            let next = if work.is_whole() {
                self.check(work, &task).await?
            } else if let Some(flow) = work.held.line.take() {
                self.receive(work, flow, &task).await?
            } else {
                self.begin(work, &task).await?
            };
            match next {
                Next::Continue(back) => work = back,
                Next::Break(got) => return Ok(got),
            }
        }
    }

    /// Removes what was fetched, but for one file: what is there of it is gone on with, unless nobody did so for 30
    /// days. Fails if something is being written at this moment.
    pub fn discard_but(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        let Ok(mut held) = self.held.try_lock() else {
            let reason =
                "an image is being fetched at this moment: it is removed once that has ended";
            return Err(Failure::new(FailureKind::Storage, reason));
        };
        if keep.is_none() || held.file.as_ref() != keep {
            *held = Held::default();
        }
        work::tidy(&self.folder, keep, self.clock.now()).map(|_| ())
    }

    /// Asks for what is missing.
    async fn begin(&self, mut work: Work, task: &Task<'_>) -> Result<Next, Failure> {
        let asked = Asked {
            from: work.bytes,
            total: work.record.total,
            etag: work.record.etag.clone(),
        };
        let now = self.clock.now();
        let opened = self.web.open(&task.url, &asked, self.terms.open, now);
        let (line, from, total, etag) = match opened.await {
            Ok(Opened::Line {
                line,
                from,
                total,
                etag,
            }) => (line, from, total, etag),
            Ok(Opened::Astray(why)) => {
                // Without a range the server may do better.
                let (work, ()) = on_disk(work, Work::anew).await?;
                return self.later(work, task, why, None).await;
            }
            Ok(Opened::Past) => return past(work, task).await,
            Err(Trouble::Later { why, after }) => return self.later(work, task, why, after).await,
            Err(Trouble::Final(failure)) => return Err(failure),
        };
        if let Some(total) = total {
            fits(task.wish, total)?;
        }
        if from < work.bytes {
            // The server gives no ranges, or the file is another one. That the line broke was counted when it did.
            tracing::info!(
                lost = work.bytes,
                "the server sends the image from its first byte"
            );
            work = on_disk(work, Work::anew).await?.0;
        }
        // Noted together with the first bytes that are flushed.
        work.record.total = total;
        work.record.is_guessed = false;
        work.record.etag = etag;
        let left = total.map_or(0, |total| total.saturating_sub(work.bytes));
        let (mut work, ()) = on_disk(work, move |work| work.has_room(left)).await?;
        work.held.line = Some(Flow {
            at: from,
            is_resumed: from > 0,
            line,
        });
        Ok(Next::Continue(work))
    }

    /// Takes what comes on a line, until that ends or the slice does.
    async fn receive(
        &self,
        mut work: Work,
        mut flow: Flow,
        task: &Task<'_>,
    ) -> Result<Next, Failure> {
        work.is_resumed = flow.is_resumed;
        let mut block = Vec::with_capacity(BLOCK);
        let mut kept_at = Instant::now();
        let end = loop {
            match self.hear(&mut work, &mut flow.line, task).await {
                Heard::Bytes(bytes) => block.extend_from_slice(&bytes),
                Heard::End => break End::Whole,
                Heard::Nothing => {}
                Heard::Broken(why) => break End::Broken(why),
            }
            let bytes = work.bytes.saturating_add(block.len() as u64);
            let end = terms::end_at(bytes, work.record.total, task.wish.rules.max_bytes);
            if let Some(end) = end.or_else(|| task.is_over().then_some(End::Slice)) {
                break end;
            }
            if block.len() >= BLOCK || kept_at.elapsed() >= self.terms.sync_every {
                (work, block) = keep(work, block).await?;
                kept_at = Instant::now();
                if let Some(failure) = work.unfit.take() {
                    break End::Unfit(failure);
                }
            }
        };
        match end {
            End::Whole => self.complete(keep(work, block).await?.0, task).await,
            End::Slice => {
                let (work, _) = keep(work, block).await?;
                let (mut work, ()) = on_disk(work, |work| work.mark(false)).await?;
                let bytes = work.bytes;
                flow.at = bytes;
                work.held.line = Some(flow);
                Ok(Next::Break(Got::Part { bytes }))
            }
            End::Broken(why) => {
                let (work, _) = keep(work, block).await?;
                self.later(work, task, why, None).await
            }
            End::Excess => {
                let (work, ()) = on_disk(work, Work::anew).await?;
                let why = "the server sends more than it says the file has".to_owned();
                self.later(work, task, why, None).await
            }
            End::TooLarge => {
                let found = work.bytes.saturating_add(block.len() as u64);
                on_disk(work, Work::discard).await?;
                Err(terms::too_large(task.wish, &format!("at least {found}")))
            }
            End::Unfit(failure) => wrong(work, failure).await,
        }
    }

    /// No more comes on a line.
    async fn complete(&self, mut work: Work, task: &Task<'_>) -> Result<Next, Failure> {
        match work.record.total {
            Some(total) if work.bytes < total => {
                let why = format!("the server sent {} of {total} bytes", work.bytes);
                return self.later(work, task, why, None).await;
            }
            Some(_) => {}
            // Only the digest can tell whether that was all.
            None => {
                work.record.total = Some(work.bytes);
                work.record.is_guessed = true;
            }
        }
        let (work, ()) = on_disk(work, |work| work.mark(false)).await?;
        Ok(Next::Continue(work))
    }

    /// Listens, as fast as it may.
    async fn hear(&self, work: &mut Work, line: &mut Line, task: &Task<'_>) -> Heard {
        let rate = task.wish.rules.download_bytes_per_second;
        let now = Instant::now();
        let owed = work.held.bucket(rate).owed(now);
        if !owed.is_zero() {
            let left = task.until.saturating_duration_since(now);
            tokio::time::sleep(owed.min(left)).await;
            if owed >= left {
                return Heard::Nothing;
            }
        }
        let heard = line.more(task.until, &self.terms.patience).await;
        if let Heard::Bytes(bytes) = &heard {
            work.held.bucket(rate).take(bytes.len(), Instant::now());
        }
        heard
    }

    /// It failed for now. What came is kept, and nothing is asked for until it may help.
    async fn later(
        &self,
        mut work: Work,
        task: &Task<'_>,
        why: String,
        after: Option<Duration>,
    ) -> Result<Next, Failure> {
        // A server that says when to come again is not broken: that is no attempt that failed, unless it goes on so.
        let failed = after.is_none() || work.record.waited();
        let (mut work, ()) = on_disk(work, move |work| work.mark(failed)).await?;
        if let Some(how) = terms::hopeless(&work.record, task.wish) {
            return give_up(work, &format!("{how}: {why}")).await;
        }
        let wait = match after {
            Some(after) => pace::as_asked(after),
            None => pace::after_failures(work.record.attempts),
        };
        let words = if failed {
            let count = terms::count(&work.record, task.wish);
            format!("the image cannot be fetched for now: {why} ({count})")
        } else {
            format!("the image cannot be fetched for now: {why}")
        };
        tracing::info!(why = words, wait = ?wait, bytes = work.bytes, "a download waits");
        let now = self.clock.now();
        work.held.wait(now + wait, words.clone());
        Ok(Next::Break(Got::Later(words)))
    }

    /// Compares the digest of what lies on the disk.
    async fn check(&self, work: Work, task: &Task<'_>) -> Result<Next, Failure> {
        let (mut work, found) = on_disk(work, Work::hash).await?;
        work.held.line = None;
        let wanted = task.wish.sha256;
        match found {
            None if task.is_over() => Ok(Next::Break(Got::Part { bytes: work.bytes })),
            None => Ok(Next::Continue(work)),
            Some(found) if found == wanted => {
                let (_, spooled) = on_disk(work, Work::spooled).await?;
                Ok(Next::Break(Got::All(spooled)))
            }
            Some(found) if work.record.is_guessed => {
                // The line may have broken, and nobody could tell. What came is kept, and the rest asked for.
                work.record.is_guessed = false;
                work.record.total = None;
                let why = format!(
                    "the server does not say how long the image's file is, and the {} bytes that it sent have the \
                     SHA-256 {found} and should have {wanted}",
                    work.bytes
                );
                self.later(work, task, why, None).await
            }
            Some(found) => {
                let failure = failure(format!(
                    "the image's file has the SHA-256 {found} and should have {wanted}: the address serves another \
                     file than the release names; publish the release again, or put its file there"
                ));
                wrong(work, failure).await
            }
        }
    }
}

/// What came is not the image, or none that could be used. Once that may be: then it is fetched anew.
async fn wrong(mut work: Work, failure: Failure) -> Result<Next, Failure> {
    if work.record.was_wrong {
        on_disk(work, Work::discard).await?;
        return Err(failure);
    }
    tracing::warn!(%failure, "what came is not the image: it is fetched once more");
    work.record.was_wrong = true;
    let (work, ()) = on_disk(work, Work::anew).await?;
    Ok(Next::Continue(work))
}

/// The server has less than is there already: that is not the same file. Once that may be.
async fn past(mut work: Work, task: &Task<'_>) -> Result<Next, Failure> {
    if work.record.was_past {
        on_disk(work, Work::discard).await?;
        return Err(failure(format!(
            "the server says twice that the image's file ends before what it sent of it: look at what serves {}",
            task.url.path()
        )));
    }
    work.record.was_past = true;
    let (work, ()) = on_disk(work, Work::anew).await?;
    Ok(Next::Continue(work))
}

/// It comes nowhere. What came stays, unless something was wrong with it before: whoever tries again goes on with it,
/// with all attempts.
async fn give_up(mut work: Work, how_and_why: &str) -> Result<Next, Failure> {
    let reason = format!("the image could not be fetched {how_and_why}");
    if work.record.was_wrong || work.record.was_past {
        on_disk(work, Work::discard).await?;
        return Err(failure(reason));
    }
    work.record.forgive();
    let (work, ()) = on_disk(work, |work| work.mark(false)).await?;
    Err(failure(format!(
        "{reason}; {} bytes are kept for the next time",
        work.bytes
    )))
}

/// Writes a block and gives it back empty.
async fn keep(work: Work, mut block: Vec<u8>) -> Result<(Work, Vec<u8>), Failure> {
    on_disk(work, move |work| {
        work.append(&block)?;
        block.clear();
        Ok(block)
    })
    .await
}

/// Does something that blocks. The work goes along, so that nobody else writes before it is done.
async fn on_disk<T: Send + 'static>(
    mut work: Work,
    act: impl FnOnce(&mut Work) -> Result<T, Failure> + Send + 'static,
) -> Result<(Work, T), Failure> {
    blocking(move || {
        let done = act(&mut work)?;
        Ok((work, done))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => Err(unreadable(&error)),
    }
}

fn unreadable(why: &dyn fmt::Display) -> Failure {
    let reason = format!("what was fetched of the image cannot be looked at: {why}");
    Failure::new(FailureKind::Storage, reason)
}

fn failure(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Download, reason)
}

#[cfg(test)]
mod tests;
