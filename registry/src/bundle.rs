//! A catalogue in one file: an OCI image layout in a tar archive, as other tools read and write it
//! (`oci-archive`).
//!
//! A bundle is untrusted input. Only the names that a layout has are accepted, each once and as a
//! regular file. Everything is bounded and hashed. The index is written last, because a folder
//! without index is not a layout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use evenkeel_fetch::{CHUNK_BYTES, Digest, Hasher, sync_parent_folder, write_atomically};

use crate::copy::CopyError;
use crate::layout::blob_path;
use crate::layout::index::{INDEX_FILE, Index, LAYOUT_FILE, MAX_INDEX_BYTES, create_layout};
use crate::limits::Limits;
use crate::source::{Blob, Manifest};

/// Largest `oci-layout` file that is accepted.
const MAX_LAYOUT_FILE_BYTES: u64 = 4 * 1024;

/// Largest pax header that is skipped.
const MAX_PAX_HEADER_BYTES: u64 = 64 * 1024;

/// The two zero blocks that end a tar archive.
const END_OF_ARCHIVE: [u8; 1024] = [0; 1024];

/// Packs everything that the index of a layout reaches. The same layout always gives the same
/// bytes.
///
/// # Errors
/// The layout is incomplete, or the file cannot be written. No new file is created then.
pub fn pack(layout: &Path, file: &Path) -> Result<(), CopyError> {
    let index = layout.join(INDEX_FILE);
    let content = fs::read(&index).map_err(CopyError::file("read", &index))?;
    let reachable = collect_reachable(layout, &content, &Limits::default(), None)?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = file.with_file_name(name);
    let packed = File::create(&temporary)
        .map_err(CopyError::file("make", &temporary))
        .and_then(|to| pack_into(to, layout, &content, &reachable));
    let renamed = packed.and_then(|()| {
        fs::rename(&temporary, file)
            .and_then(|()| sync_parent_folder(file))
            .map_err(CopyError::file("write", file))
    });
    if renamed.is_err() {
        // The partial file is useless. The first error is the one to return.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

fn pack_into(
    to: File,
    layout: &Path,
    index: &[u8],
    reachable: &BTreeMap<Digest, u64>,
) -> Result<(), CopyError> {
    let failed = || CopyError::file("write the bundle of", layout);
    let layout_file = layout.join(LAYOUT_FILE);
    let layout_file = fs::read(&layout_file).map_err(CopyError::file("read", &layout_file))?;
    let mut bundle = tar::Builder::new(BufWriter::with_capacity(CHUNK_BYTES, to));
    let mut add = |name: &str, size: u64, content: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        bundle.append_data(&mut header, name, content)
    };
    add(LAYOUT_FILE, layout_file.len() as u64, &mut layout_file.as_slice()).map_err(failed())?;
    add(INDEX_FILE, index.len() as u64, &mut &*index).map_err(failed())?;
    for (digest, size) in reachable {
        let path = blob_path(layout, digest);
        let file = File::open(&path).map_err(CopyError::file("read", &path))?;
        let mut content = HashingReader {
            from: BufReader::with_capacity(CHUNK_BYTES, file).take(*size),
            hasher: Hasher::default(),
        };
        let name = format!("blobs/sha256/{}", digest.hex());
        add(&name, *size, &mut content).map_err(failed())?;
        content.verify(digest)?;
    }
    let written = bundle.into_inner().and_then(|buffer| {
        let file = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    });
    written.map_err(failed())
}

/// Unpacks a bundle into a folder that is empty or does not exist. The folder becomes a layout only
/// after the whole bundle has been checked.
///
/// # Errors
/// The bundle is truncated, damaged, too large, or contains something that is not part of a layout.
pub fn unpack(file: &Path, staging: &Path, limits: &Limits) -> Result<(), CopyError> {
    let read = || CopyError::file("read", file);
    let mut bundle = File::open(file).map_err(read())?;
    if !has_archive_end(&mut bundle).map_err(read())? {
        return Err(invalid_bundle("it is truncated, or it is not a bundle".to_owned()));
    }
    if staging.join(INDEX_FILE).exists() {
        let folder = staging.display();
        return Err(invalid_bundle(format!("{folder} already has a layout")));
    }
    create_layout(staging).map_err(CopyError::file("make a layout of", staging))?;
    let mut archive = tar::Archive::new(BufReader::with_capacity(CHUNK_BYTES, bundle));
    let mut unpacking = Unpacker {
        staging,
        limits,
        index: None,
        has_layout_file: false,
        blobs: BTreeSet::new(),
        total: 0,
    };
    // Raw mode: no entry can change the name or the length of the next one.
    for (number, entry) in (0..).zip(archive.entries().map_err(read())?.raw(true)) {
        if number >= limits.bundle_entries {
            return Err(invalid_bundle(format!(
                "it has more than {} entries",
                limits.bundle_entries
            )));
        }
        unpacking.take_entry(&mut entry.map_err(read())?)?;
    }
    unpacking.finish()
}

/// Whether the file ends like an archive. A bundle that was truncated between two entries would
/// otherwise look like a shorter one.
fn has_archive_end(bundle: &mut File) -> io::Result<bool> {
    let length = bundle.metadata()?.len();
    let mut end = [1; 1024];
    if length >= 1024 {
        bundle.seek(SeekFrom::End(-1024))?;
        bundle.read_exact(&mut end)?;
        bundle.seek(SeekFrom::Start(0))?;
    }
    Ok(end == END_OF_ARCHIVE && length.is_multiple_of(512))
}

/// State of an unpacking that is in progress.
#[derive(Debug)]
struct Unpacker<'a> {
    staging: &'a Path,
    limits: &'a Limits,
    index: Option<Vec<u8>>,
    has_layout_file: bool,
    blobs: BTreeSet<Digest>,
    total: u64,
}

impl Unpacker<'_> {
    fn take_entry<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), CopyError> {
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let plain = name.strip_prefix("./").unwrap_or(&name);
        let kind = entry.header().entry_type();
        let size = entry.size();
        if kind.is_dir() {
            return match plain {
                "" | "." | "blobs/" | "blobs/sha256/" | "blobs" | "blobs/sha256" => Ok(()),
                _ => Err(invalid_bundle(format!("it contains the unexpected folder {name:?}"))),
            };
        }
        if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
            return skip_pax_header(entry, size);
        }
        if !kind.is_file() {
            return Err(invalid_bundle(format!("{name:?} is not a regular file")));
        }
        self.total = self.total.saturating_add(size);
        if self.total > self.limits.bundle_bytes {
            let limit = self.limits.bundle_bytes;
            return Err(invalid_bundle(format!("it is larger than {limit} bytes")));
        }
        match plain {
            LAYOUT_FILE if !self.has_layout_file => {
                check_layout_version(&read_entry(entry, size, MAX_LAYOUT_FILE_BYTES)?)?;
                self.has_layout_file = true;
                Ok(())
            }
            INDEX_FILE if self.index.is_none() => {
                self.index = Some(read_entry(entry, size, MAX_INDEX_BYTES)?);
                Ok(())
            }
            _ => match plain.strip_prefix("blobs/sha256/").map(Digest::from_hex) {
                Some(Ok(digest)) if self.blobs.insert(digest) => {
                    self.write_blob(entry, &digest, size)
                }
                Some(Ok(_)) => Err(invalid_bundle(format!("it contains {name:?} twice"))),
                _ => Err(invalid_bundle(format!(
                    "it contains an unexpected or repeated entry {name:?}"
                ))),
            },
        }
    }

    fn write_blob(&self, from: &mut dyn Read, digest: &Digest, size: u64) -> Result<(), CopyError> {
        if size > self.limits.blob_bytes {
            let limit = self.limits.blob_bytes;
            return Err(invalid_bundle(format!("{digest} is larger than {limit} bytes")));
        }
        let path = blob_path(self.staging, digest);
        let part = path.with_extension("part");
        let write = || CopyError::file("write", &part);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&part);
        let mut to = BufWriter::with_capacity(CHUNK_BYTES, file.map_err(write())?);
        let mut content = HashingReader { from: from.take(size), hasher: Hasher::default() };
        let copied = io::copy(&mut content, &mut to).map_err(write())?;
        if copied != size {
            return Err(invalid_bundle(format!("it ends inside {digest}")));
        }
        content.verify(digest)?;
        let file = to.into_inner().map_err(io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).map_err(write())?;
        fs::rename(&part, &path).map_err(CopyError::file("write", &path))
    }

    /// Writes the index, which turns the folder into a layout, if the bundle is complete.
    fn finish(self) -> Result<(), CopyError> {
        if !self.has_layout_file {
            return Err(invalid_bundle(format!("it has no {LAYOUT_FILE}")));
        }
        let index = self.index.ok_or_else(|| invalid_bundle(format!("it has no {INDEX_FILE}")))?;
        collect_reachable(self.staging, &index, self.limits, Some(&self.blobs))?;
        let index_path = self.staging.join(INDEX_FILE);
        sync_parent_folder(&blob_path(self.staging, &Digest::compute(&index)))
            .and_then(|()| write_atomically(&index_path, &index))
            .map_err(CopyError::file("write", &index_path))
    }
}

/// Collects every blob that an index reaches, with its size, and checks that all exist. If
/// `unpacked` is given, blobs that are not in it count as missing even if the folder has them.
fn collect_reachable(
    layout: &Path,
    index: &[u8],
    limits: &Limits,
    unpacked: Option<&BTreeSet<Digest>>,
) -> Result<BTreeMap<Digest, u64>, CopyError> {
    let index = Index::parse(index).map_err(|error| invalid_bundle(error.to_string()))?;
    let check_exists = |blob: &Blob| match unpacked {
        Some(unpacked) if !unpacked.contains(&blob.digest) => Err(missing_blob(&blob.digest)),
        _ => check_blob_exists(layout, blob),
    };
    let mut reachable = BTreeMap::new();
    let mut read = BTreeSet::new();
    for entry in index.manifests() {
        let blob = entry.blob();
        if blob.size > limits.manifest_bytes {
            return Err(invalid_bundle(format!("the manifest {} is too large", blob.digest)));
        }
        check_exists(&blob)?;
        // A blob can be both a layer and a manifest. As a manifest it reaches further blobs.
        if !read.insert(blob.digest) {
            continue;
        }
        let path = blob_path(layout, &blob.digest);
        let content = fs::read(&path).map_err(CopyError::file("read", &path))?;
        if Digest::compute(&content) != blob.digest {
            return Err(invalid_bundle(format!("{} is damaged", blob.digest)));
        }
        let manifest = Manifest::read(Bytes::from(content), &entry.media_type)
            .map_err(|error| invalid_bundle(format!("{}: {error}", blob.digest)))?;
        reachable.insert(blob.digest, blob.size);
        for blob in manifest.blobs() {
            check_exists(&blob)?;
            reachable.insert(blob.digest, blob.size);
        }
    }
    Ok(reachable)
}

fn check_blob_exists(layout: &Path, blob: &Blob) -> Result<(), CopyError> {
    match fs::metadata(blob_path(layout, &blob.digest)) {
        Ok(metadata) if metadata.is_file() && metadata.len() == blob.size => Ok(()),
        Ok(_) => Err(invalid_bundle(format!("{} has a wrong size", blob.digest))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing_blob(&blob.digest)),
        Err(error) => Err(CopyError::file("read", layout)(error)),
    }
}

fn missing_blob(digest: &Digest) -> CopyError {
    invalid_bundle(format!("{digest} is missing"))
}

/// Skips the times and owners that some tools write before an entry. A pax header that changes a
/// name or a size makes the next entry fail its own checks.
fn skip_pax_header(entry: &mut dyn Read, size: u64) -> Result<(), CopyError> {
    read_entry(entry, size, MAX_PAX_HEADER_BYTES).map(|_| ())
}

fn read_entry(from: &mut dyn Read, size: u64, limit: u64) -> Result<Vec<u8>, CopyError> {
    if size > limit {
        return Err(invalid_bundle(format!("an entry is larger than {limit} bytes")));
    }
    let mut content = Vec::new();
    let read = from.take(size).read_to_end(&mut content);
    read.map_err(|error| invalid_bundle(error.to_string()))?;
    if content.len() as u64 == size {
        Ok(content)
    } else {
        Err(invalid_bundle("it is truncated".to_owned()))
    }
}

fn check_layout_version(content: &[u8]) -> Result<(), CopyError> {
    let layout_file: Result<serde_json::Value, _> = serde_json::from_slice(content);
    let version = layout_file.ok().and_then(|layout_file| {
        let version = layout_file.get("imageLayoutVersion")?.as_str()?;
        Some(version.to_owned())
    });
    match version {
        Some(version) if version.starts_with("1.") => Ok(()),
        Some(version) => {
            Err(invalid_bundle(format!("its layout version {version:?} is not supported")))
        }
        None => Err(invalid_bundle(format!("its {LAYOUT_FILE} has no version"))),
    }
}

/// Computes the digest of everything that is read through it.
#[derive(Debug)]
struct HashingReader<R> {
    from: R,
    hasher: Hasher,
}

impl<R> HashingReader<R> {
    fn verify(self, expected: &Digest) -> Result<(), CopyError> {
        let actual = self.hasher.finish();
        if actual == *expected {
            Ok(())
        } else {
            Err(invalid_bundle(format!("{expected} is damaged: its digest is {actual}")))
        }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

fn invalid_bundle(why: String) -> CopyError {
    CopyError::Bundle(why)
}
