//! A file that is being filled, and carried on after a break.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use crate::digest::{Digest, Hasher};
use crate::error::{Got, RegistryError, malformed};
use crate::source::Origin;

/// How much is read from a file at once.
pub(crate) const PIECE: usize = 128 * 1024;

/// What a file must be in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    /// The digest of its content.
    pub digest: Digest,
    /// Its length, if that is known before.
    pub size: Option<u64>,
    /// It is never longer.
    pub limit: u64,
}

impl Whole {
    fn longest(&self) -> u64 {
        self.size.unwrap_or(self.limit).min(self.limit)
    }

    fn is(&self, length: u64, digest: &Digest) -> bool {
        self.digest == *digest && self.size.is_none_or(|size| size == length)
    }
}

/// A file that is being filled. Only one writer has it at a time; what a killed one left is carried on.
#[derive(Debug)]
pub(crate) struct Part {
    file: tokio::fs::File,
    path: PathBuf,
}

impl Part {
    /// Takes the part, made if it is not there. Waits for another writer to be done with it.
    pub async fn take(path: PathBuf) -> Got<Self> {
        let at = path.clone();
        let file = blocking(move || {
            loop {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&at)?;
                file.lock()?;
                // Whoever had it before us may have removed it or given it its name.
                if is_still(&file, &at)? {
                    return Ok(file);
                }
            }
        })
        .await?;
        Ok(Self {
            file: tokio::fs::File::from_std(file),
            path,
        })
    }

    /// Fills it from where it stopped, checks it and brings it to the disk. Answers its length. Whatever does not become the
    /// whole is emptied again, unless it only broke off.
    pub async fn fill(&mut self, whole: &Whole, from: &dyn Origin) -> Got<u64> {
        let (mut hasher, mut length) = self.so_far(whole).await?;
        if length > 0 && whole.is(length, &hasher.clone().finish()) {
            self.file.sync_all().await?;
            return Ok(length);
        }
        // What cannot grow any more is wrong already.
        if length == whole.longest() {
            (hasher, length) = (Hasher::default(), 0);
        }
        let carried_on = length > 0;
        match self.append(whole, from, hasher, length).await {
            // What was there may have been of something else. That the rest cannot be had now says nothing about it.
            Err(
                RegistryError::WrongDigest { .. }
                | RegistryError::TooLarge { .. }
                | RegistryError::Malformed { .. },
            ) if carried_on => self.append(whole, from, Hasher::default(), 0).await,
            filled => filled,
        }
    }

    /// Gives it its name. It is there for good when this is done.
    pub async fn keep_as(self, path: &Path) -> Got<()> {
        let to = path.to_owned();
        blocking(move || {
            std::fs::rename(&self.path, &to)?;
            flush_folder(&to)
        })
        .await
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it. Whoever waits for it makes a new one.
    pub async fn discard(self) -> Got<()> {
        let path = self.path.clone();
        let remove = move || match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        blocking(remove).await
    }

    /// Leaves it to whoever carries it on. With an empty one there is nothing to carry on, so it goes.
    pub async fn leave(self) {
        let file = self.file.metadata().await;
        if file.is_ok_and(|file| file.len() == 0) {
            // The error that led here says more than that an empty file stays.
            let _ = self.discard().await;
        }
    }

    /// The digest of what is there. Too much of it is worth nothing.
    async fn so_far(&mut self, whole: &Whole) -> Got<(Hasher, u64)> {
        let mut hasher = Hasher::default();
        let length = self.file.metadata().await?.len();
        if length > whole.longest() {
            return Ok((hasher, 0));
        }
        self.file.seek(io::SeekFrom::Start(0)).await?;
        let mut buffer = vec![0; PIECE];
        let mut read = 0;
        loop {
            match self.file.read(&mut buffer).await? {
                0 => return Ok((hasher, read)),
                count => {
                    hasher.update(buffer.get(..count).unwrap_or_default());
                    read += count as u64;
                }
            }
        }
    }

    async fn append(
        &mut self,
        whole: &Whole,
        from: &dyn Origin,
        mut hasher: Hasher,
        mut length: u64,
    ) -> Got<u64> {
        self.file.set_len(length).await?;
        self.file.seek(io::SeekFrom::Start(length)).await?;
        let mut pieces = from.open(length).await?;
        while let Some(piece) = pieces.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    self.file.flush().await?;
                    return Err(error);
                }
            };
            length += piece.len() as u64;
            if length > whole.longest() {
                self.file.set_len(0).await?;
                let limit = whole.longest();
                return Err(RegistryError::TooLarge { limit });
            }
            hasher.update(&piece);
            self.file.write_all(&piece).await?;
        }
        self.file.flush().await?;
        let (said, found) = (whole.digest, hasher.finish());
        if whole.is(length, &found) {
            self.file.sync_all().await?;
            return Ok(length);
        }
        if said != found && whole.size.is_some_and(|size| length < size) {
            return Err(RegistryError::Stalled);
        }
        self.file.set_len(0).await?;
        if said == found {
            return Err(malformed("blob", "its length is not the one that is said"));
        }
        Err(RegistryError::WrongDigest { said, found })
    }
}

/// Whether a path leads to a file that is open.
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a small file so that there is either the old one or the whole new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write as _;

    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = path.with_file_name(name);
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    flush_folder(path)
}

/// Flushes the folder that `path` lies in, so that its new name is on the disk.
pub(crate) fn flush_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Does what waits for a disk or another process aside.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Got<T> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(io::Error::other)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_to_another_file_than_the_one_that_was_opened() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("one.part");
        let file = File::create(&path).unwrap();
        assert!(is_still(&file, &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_still(&file, &path).unwrap());
        let _other = File::create(&path).unwrap();
        assert!(!is_still(&file, &path).unwrap());
    }

    #[tokio::test]
    async fn only_an_empty_part_goes_when_it_is_left() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("one.part");
        let part = Part::take(path.clone()).await.unwrap();
        part.leave().await;
        assert!(!path.exists());
        std::fs::write(&path, "begun").unwrap();
        let part = Part::take(path.clone()).await.unwrap();
        part.leave().await;
        assert_eq!(std::fs::read(&path).unwrap(), b"begun");
    }
}
