//! A catalogue in one file: a layout in a tar, as other tools of the field read and write it (`oci-archive`).
//!
//! What comes in is read as bytes of a stranger. Only the names that a layout has are taken, each once and as a plain
//! file; everything is bounded and hashed; and the index, without which a folder is no layout, is put in last.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom};
use std::path::Path;

use bytes::Bytes;

use crate::copy::MoveError;
use crate::digest::{Digest, Hasher};
use crate::layout::blob_path;
use crate::layout::index::{INDEX, Index, LARGEST, MARK, begin};
use crate::layout::part::{PIECE, flush_folder, replace};
use crate::limits::Limits;
use crate::source::{Blob, Manifest};

/// The largest file that says that something is a layout.
const LARGEST_MARK: u64 = 4 * 1024;

/// The largest description that stands before an entry and is skipped.
const LARGEST_NOTE: u64 = 64 * 1024;

/// How a bundle ends.
const END: [u8; 1024] = [0; 1024];

/// Packs what the index of a layout reaches into a file. The same layout gives the same bytes.
///
/// # Errors
/// The layout is not whole, or the file cannot be written; then there is no new file.
pub fn pack(layout: &Path, file: &Path) -> Result<(), MoveError> {
    let index = layout.join(INDEX);
    let content = fs::read(&index).map_err(MoveError::file("read", &index))?;
    let reached = reached(layout, &content, &Limits::default(), None)?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = file.with_file_name(name);
    let packed = File::create(&beside)
        .map_err(MoveError::file("make", &beside))
        .and_then(|to| pack_into(to, layout, &content, &reached));
    let kept = packed.and_then(|()| {
        fs::rename(&beside, file)
            .and_then(|()| flush_folder(file))
            .map_err(MoveError::file("write", file))
    });
    if kept.is_err() {
        // What is left of it is of no use; the first error is the one that is told.
        let _ = fs::remove_file(&beside);
    }
    kept
}

fn pack_into(
    to: File,
    layout: &Path,
    index: &[u8],
    reached: &BTreeMap<Digest, u64>,
) -> Result<(), MoveError> {
    let failed = || MoveError::file("write the bundle of", layout);
    let mark = layout.join(MARK);
    let mark = fs::read(&mark).map_err(MoveError::file("read", &mark))?;
    let mut bundle = tar::Builder::new(BufWriter::with_capacity(PIECE, to));
    let mut add = |name: &str, size: u64, content: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        bundle.append_data(&mut header, name, content)
    };
    add(MARK, mark.len() as u64, &mut mark.as_slice()).map_err(failed())?;
    add(INDEX, index.len() as u64, &mut &*index).map_err(failed())?;
    for (digest, size) in reached {
        let path = blob_path(layout, digest);
        let file = File::open(&path).map_err(MoveError::file("read", &path))?;
        let mut content = Hashing {
            from: BufReader::with_capacity(PIECE, file).take(*size),
            hasher: Hasher::default(),
        };
        let name = format!("blobs/sha256/{}", digest.hex());
        add(&name, *size, &mut content).map_err(failed())?;
        content.is(digest)?;
    }
    let written = bundle.into_inner().and_then(|buffer| {
        let file = buffer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    });
    written.map_err(failed())
}

/// Unpacks a bundle into a folder that is empty or not there. Until all of it was checked, the folder is no layout.
///
/// # Errors
/// The bundle is cut off, damaged, too large or holds what no bundle may hold.
pub fn unpack(file: &Path, staging: &Path, limits: &Limits) -> Result<(), MoveError> {
    let read = || MoveError::file("read", file);
    let mut bundle = File::open(file).map_err(read())?;
    check_end(&mut bundle).map_err(read())??;
    if staging.join(INDEX).exists() {
        let place = staging.display();
        return Err(bad(format!("{place} holds another one already")));
    }
    begin(staging).map_err(MoveError::file("make a layout of", staging))?;
    let mut archive = tar::Archive::new(BufReader::with_capacity(PIECE, bundle));
    let mut unpacking = Unpacking {
        staging,
        limits,
        index: None,
        is_marked: false,
        blobs: BTreeSet::new(),
        total: 0,
    };
    // Raw: no entry changes the name or the length of another.
    for (number, entry) in (0..).zip(archive.entries().map_err(read())?.raw(true)) {
        if number >= limits.files {
            return Err(bad(format!("it has more than {} entries", limits.files)));
        }
        unpacking.take(&mut entry.map_err(read())?)?;
    }
    unpacking.finish()
}

/// A bundle that was cut off between two entries looks like a shorter one, but for its end.
fn check_end(bundle: &mut File) -> io::Result<Result<(), MoveError>> {
    let length = bundle.metadata()?.len();
    let mut end = [1; 1024];
    if length >= 1024 {
        bundle.seek(SeekFrom::End(-1024))?;
        bundle.read_exact(&mut end)?;
        bundle.seek(SeekFrom::Start(0))?;
    }
    if end == END && length.is_multiple_of(512) {
        return Ok(Ok(()));
    }
    Ok(Err(bad("it is cut off, or no bundle at all".to_owned())))
}

/// What was taken of a bundle so far.
#[derive(Debug)]
struct Unpacking<'a> {
    staging: &'a Path,
    limits: &'a Limits,
    index: Option<Vec<u8>>,
    is_marked: bool,
    blobs: BTreeSet<Digest>,
    total: u64,
}

impl Unpacking<'_> {
    fn take<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), MoveError> {
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let plain = name.strip_prefix("./").unwrap_or(&name);
        let kind = entry.header().entry_type();
        let size = entry.size();
        if kind.is_dir() {
            return match plain {
                "" | "." | "blobs/" | "blobs/sha256/" | "blobs" | "blobs/sha256" => Ok(()),
                _ => Err(bad(format!("it holds a folder {name:?}"))),
            };
        }
        if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
            return skip_note(entry, size);
        }
        if !kind.is_file() {
            return Err(bad(format!("{name:?} is no plain file")));
        }
        self.total = self.total.saturating_add(size);
        if self.total > self.limits.bundle {
            let most = self.limits.bundle;
            return Err(bad(format!("it is larger than {most} bytes")));
        }
        match plain {
            MARK if !self.is_marked => {
                check_mark(&whole(entry, size, LARGEST_MARK)?)?;
                self.is_marked = true;
                Ok(())
            }
            INDEX if self.index.is_none() => {
                self.index = Some(whole(entry, size, LARGEST)?);
                Ok(())
            }
            _ => match plain.strip_prefix("blobs/sha256/").map(Digest::from_hex) {
                Some(Ok(digest)) if self.blobs.insert(digest) => self.blob(entry, &digest, size),
                Some(Ok(_)) => Err(bad(format!("it holds {name:?} twice"))),
                _ => Err(bad(format!(
                    "it holds {name:?}, which no bundle has, or twice"
                ))),
            },
        }
    }

    fn blob(&self, from: &mut dyn Read, digest: &Digest, size: u64) -> Result<(), MoveError> {
        if size > self.limits.blob {
            let most = self.limits.blob;
            return Err(bad(format!("{digest} is larger than {most} bytes")));
        }
        let path = blob_path(self.staging, digest);
        let part = path.with_extension("part");
        let write = || MoveError::file("write", &part);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&part);
        let mut to = BufWriter::with_capacity(PIECE, file.map_err(write())?);
        let mut content = Hashing {
            from: from.take(size),
            hasher: Hasher::default(),
        };
        let copied = io::copy(&mut content, &mut to).map_err(write())?;
        if copied != size {
            return Err(bad(format!("it ends in the middle of {digest}")));
        }
        content.is(digest)?;
        let file = to.into_inner().map_err(io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).map_err(write())?;
        fs::rename(&part, &path).map_err(MoveError::file("write", &path))
    }

    /// Makes a layout of what was taken, if it is whole.
    fn finish(self) -> Result<(), MoveError> {
        if !self.is_marked {
            return Err(bad(format!("it has no {MARK}")));
        }
        let index = self
            .index
            .ok_or_else(|| bad(format!("it has no {INDEX}")))?;
        reached(self.staging, &index, self.limits, Some(&self.blobs))?;
        let place = self.staging.join(INDEX);
        flush_folder(&blob_path(self.staging, &Digest::of(&index)))
            .and_then(|()| replace(&place, &index))
            .map_err(MoveError::file("write", &place))
    }
}

/// Everything that an index reaches, with its length. All of it is there; of what lies there only `taken` counts, if
/// that is said.
fn reached(
    layout: &Path,
    index: &[u8],
    limits: &Limits,
    taken: Option<&BTreeSet<Digest>>,
) -> Result<BTreeMap<Digest, u64>, MoveError> {
    let index = Index::parse(index).map_err(|error| bad(error.to_string()))?;
    let is_there = |blob: &Blob| match taken {
        Some(taken) if !taken.contains(&blob.digest) => Err(missing(&blob.digest)),
        _ => is_there(layout, blob),
    };
    let mut reached = BTreeMap::new();
    let mut read = BTreeSet::new();
    for entry in index.manifests() {
        let blob = entry.blob();
        if blob.size > limits.manifest {
            return Err(bad(format!("the manifest {} is too large", blob.digest)));
        }
        is_there(&blob)?;
        // It may have been reached as a layer before; as a manifest it reaches more.
        if !read.insert(blob.digest) {
            continue;
        }
        let path = blob_path(layout, &blob.digest);
        let content = fs::read(&path).map_err(MoveError::file("read", &path))?;
        if Digest::of(&content) != blob.digest {
            return Err(bad(format!("{} is damaged", blob.digest)));
        }
        let manifest = Manifest::read(Bytes::from(content), &entry.media_type)
            .map_err(|error| bad(format!("{}: {error}", blob.digest)))?;
        reached.insert(blob.digest, blob.size);
        for blob in manifest.blobs() {
            is_there(&blob)?;
            reached.insert(blob.digest, blob.size);
        }
    }
    Ok(reached)
}

fn is_there(layout: &Path, blob: &Blob) -> Result<(), MoveError> {
    match fs::metadata(blob_path(layout, &blob.digest)) {
        Ok(found) if found.is_file() && found.len() == blob.size => Ok(()),
        Ok(_) => Err(bad(format!("{} has another length", blob.digest))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(&blob.digest)),
        Err(error) => Err(MoveError::file("read", layout)(error)),
    }
}

fn missing(digest: &Digest) -> MoveError {
    bad(format!("{digest} is missing"))
}

/// What some tools write before an entry: times and owners, which nobody needs. What would change a name or a length makes
/// the entry after it one that is refused or damaged.
fn skip_note(entry: &mut dyn Read, size: u64) -> Result<(), MoveError> {
    whole(entry, size, LARGEST_NOTE).map(|_| ())
}

fn whole(from: &mut dyn Read, size: u64, limit: u64) -> Result<Vec<u8>, MoveError> {
    if size > limit {
        return Err(bad(format!("an entry is larger than {limit} bytes")));
    }
    let mut content = Vec::new();
    let read = from.take(size).read_to_end(&mut content);
    read.map_err(|error| bad(error.to_string()))?;
    if content.len() as u64 == size {
        Ok(content)
    } else {
        Err(bad("it is cut off".to_owned()))
    }
}

fn check_mark(content: &[u8]) -> Result<(), MoveError> {
    let mark: Result<serde_json::Value, _> = serde_json::from_slice(content);
    let version = mark.ok().and_then(|mark| {
        let version = mark.get("imageLayoutVersion")?.as_str()?;
        Some(version.to_owned())
    });
    match version {
        Some(version) if version.starts_with("1.") => Ok(()),
        Some(version) => Err(bad(format!("it is of version {version:?}"))),
        None => Err(bad(format!("its {MARK} does not say a version"))),
    }
}

/// Reads and takes the digest of what is read.
#[derive(Debug)]
struct Hashing<R> {
    from: R,
    hasher: Hasher,
}

impl<R> Hashing<R> {
    fn is(self, said: &Digest) -> Result<(), MoveError> {
        let found = self.hasher.finish();
        if found == *said {
            Ok(())
        } else {
            Err(bad(format!("{said} is damaged: it is {found}")))
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

fn bad(why: String) -> MoveError {
    MoveError::Bundle(why)
}
