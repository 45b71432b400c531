//! Fetching: lists of packages, and packages.
//!
//! A package over HTTP is fetched with apt's own helper, because `apt-get download` begins a file anew that was cut off.
//! The helper goes on where the line broke, if the server's file is still the same, and checks hash and size as apt does.

use std::collections::BTreeMap;

use super::apt::{MOST_NAMES, Tools, failure, unreadable};
use super::files::{ARCHIVES, Deb, Digest};
use super::parse::{self, Install};
use super::sources::View;
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

/// Where apt's helper is in Debian 12 and 13.
const HELPER: &str = "/usr/lib/apt/apt-helper";

impl Tools {
    /// Makes the lists of packages current, at most so many bytes in a second (0 for no limit). A warning is an error
    /// here: apt itself keeps old lists and calls it success.
    pub async fn update(&self, view: View, pace: u64) -> Result<(), Failure> {
        let command = self
            .apt_get(self.limits().refresh, view)
            .with(paced(pace))
            .with(["update", "--error-on=any"]);
        let output = self.run(&command, FailureKind::Refresh).await?;
        if output.succeeded() {
            return Ok(());
        }
        let words = output.words();
        let kind = if speaks_of_signatures(&words) {
            FailureKind::Signature
        } else {
            FailureKind::Refresh
        };
        Err(failure(kind, "apt-get update", &output))
    }

    /// The files that are to be unpacked, in the same order.
    pub async fn files(&self, installs: &[Install], view: View) -> Result<Vec<Deb>, Failure> {
        let mut fetches = BTreeMap::new();
        for some in installs.chunks(MOST_NAMES) {
            let command = self
                .apt_get(self.limits().look, view)
                .with(["--print-uris", "download", "--"])
                .with(some.iter().map(Install::order));
            let output = self.run(&command, FailureKind::Download).await?;
            if !output.succeeded() {
                return Err(failure(FailureKind::Download, "apt-get download", &output));
            }
            let read = parse::uris(&output.stdout)
                .map_err(|line| unreadable(FailureKind::Download, line))?;
            fetches.extend(read.into_iter().map(|fetch| (fetch.name.clone(), fetch)));
        }
        // apt names them in an order of its own.
        let deb = |install: &Install| -> Result<Deb, Failure> {
            let fetch = fetches.remove(&install.file()).ok_or_else(|| {
                let reason = format!("apt names no file for {}", install.order());
                Failure::new(FailureKind::Download, reason)
            })?;
            Ok(Deb {
                name: fetch.name,
                size: fetch.size,
                digest: fetch.digest,
                order: install.order(),
                uri: fetch.uri,
            })
        };
        installs.iter().map(deb).collect()
    }

    /// Fetches files into the agent's folder, at most so many bytes in a second (0 for no limit).
    pub async fn download(&self, debs: &[&Deb], view: View, pace: u64) -> Result<(), Failure> {
        let (plain, others): (Vec<&Deb>, Vec<&Deb>) = debs
            .iter()
            .copied()
            .partition(|deb| is_plain_http(&deb.uri));
        for some in plain.chunks(MOST_NAMES) {
            let command = Command::new(HELPER, self.limits().download)
                .with(["--quiet", "-o", "Acquire::Retries=3"])
                .with(paced(pace))
                .with(["download-file"])
                .with(some.iter().flat_map(|deb| file(deb)));
            fetched(&self.run(&command, FailureKind::Download).await?)?;
        }
        for some in others.chunks(MOST_NAMES) {
            let apt = self.apt_get(self.limits().download, view);
            let command = Command::new("env", apt.deadline)
                .with([format!("--chdir={ARCHIVES}"), apt.program])
                .with(apt.arguments)
                .with(paced(pace))
                .with(["download", "--"])
                .with(some.iter().map(|deb| deb.order.clone()));
            fetched(&self.run(&command, FailureKind::Download).await?)?;
        }
        Ok(())
    }
}

/// What apt's helper is told of a file: from where, to where, and what it must be.
fn file(deb: &Deb) -> [String; 4] {
    let digest = match &deb.digest {
        Digest::Sha256(value) => format!("SHA256:{value}"),
        Digest::Sha512(value) => format!("SHA512:{value}"),
    };
    [
        deb.uri.clone(),
        deb.path(),
        digest,
        format!("Checksum-FileSize:{}", deb.size),
    ]
}

/// Whether a file can be fetched with apt's helper. Not where the URI has a password: it would be on a command line.
fn is_plain_http(uri: &str) -> bool {
    let rest = uri
        .strip_prefix("https://")
        .or_else(|| uri.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split('/').next());
    host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
}

/// apt's limit is in units of 1024 bytes, and 0 is none.
fn paced(bytes_per_second: u64) -> Vec<String> {
    if bytes_per_second == 0 {
        return Vec::new();
    }
    let limit = bytes_per_second.div_ceil(1 << 10);
    let options = ["http", "https"].map(|way| format!("Acquire::{way}::Dl-Limit={limit}"));
    let options = options
        .into_iter()
        .flat_map(|option| ["-o".to_owned(), option]);
    options.collect()
}

fn fetched(output: &Output) -> Result<(), Failure> {
    if output.succeeded() {
        return Ok(());
    }
    let words = output.words();
    let lies = words.contains("Hash Sum mismatch") || words.contains("File has unexpected size");
    let kind = if lies {
        FailureKind::Signature
    } else {
        FailureKind::Download
    };
    Err(failure(kind, "apt-get download", output))
}

/// Whether apt complains about a signature: forged, expired, by an unknown key, or missing.
fn speaks_of_signatures(words: &str) -> bool {
    [
        "NO_PUBKEY",
        "BADSIG",
        "EXPKEYSIG",
        "REVKEYSIG",
        "NODATA",
        "is not signed",
        "signatures were invalid",
        "signatures couldn't be verified",
        "Clearsigned file isn't valid",
        // Debian 13 checks signatures with another program.
        "Sub-process /usr/bin/sqv returned an error code",
    ]
    .iter()
    .any(|sign| words.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_list_is_told_from_one_that_is_gone() {
        assert!(speaks_of_signatures(
            "W: GPG error: file:/srv/repo stable InRelease: The following signatures were invalid: BADSIG 1"
        ));
        assert!(!speaks_of_signatures(
            "E: The repository 'file:/srv/repo stable Release' does not have a Release file."
        ));
    }

    #[test]
    fn a_file_that_is_not_what_the_index_says_is_no_trouble_of_the_line() {
        let said = |stderr: &str| Output {
            status: Some(100),
            stdout: String::new(),
            stderr: stderr.into(),
        };
        let kind = |stderr: &str| fetched(&said(stderr)).unwrap_err().kind;
        assert_eq!(
            kind("E: Failed to fetch http://x/a.deb  Hash Sum mismatch\n"),
            FailureKind::Signature
        );
        assert_eq!(
            kind(
                "E: Failed to fetch http://x/a.deb  File has unexpected size (20546548 != 1000). Mirror sync in progress?\n"
            ),
            FailureKind::Signature
        );
        assert_eq!(
            kind("E: Failed to fetch http://x/a.deb  404  Not Found [IP: ::1 80]\n"),
            FailureKind::Download
        );
        assert_eq!(
            kind(
                "E: Failed to fetch http://x/a.deb  Error writing to file - write (28: No space left on device)\n"
            ),
            FailureKind::Storage
        );
    }

    #[test]
    fn only_plain_http_is_fetched_so_that_it_can_be_gone_on_with() {
        for (uri, expected) in [
            ("http://deb.debian.org/debian/pool/a.deb", true),
            ("https://[::1]:8443/a.deb", true),
            ("https://user:secret@deb.example/a.deb", false),
            ("file:/srv/repo/pool/a.deb", false),
            ("mirror+file:/etc/apt/mirrors/a.deb", false),
            ("http:///a.deb", false),
            ("", false),
        ] {
            assert_eq!(is_plain_http(uri), expected, "{uri}");
        }
    }

    #[test]
    fn the_pace_is_told_in_apts_units_and_never_as_none() {
        assert!(paced(0).is_empty());
        assert_eq!(
            paced(1).join(" "),
            "-o Acquire::http::Dl-Limit=1 -o Acquire::https::Dl-Limit=1"
        );
        assert!(paced(5 << 20).contains(&"Acquire::http::Dl-Limit=5120".to_owned()));
    }

    #[test]
    fn the_helper_is_told_what_a_file_must_be() {
        let deb = Deb {
            name: "a_1%3a2_all.deb".into(),
            size: 7,
            digest: Digest::Sha256("ab".into()),
            order: "a=1:2".into(),
            uri: "http://x/a_1%3a2_all.deb".into(),
        };
        assert_eq!(
            file(&deb).join(" "),
            "http://x/a_1%3a2_all.deb /var/lib/evenkeel-agent/archives/a_1%3a2_all.deb SHA256:ab Checksum-FileSize:7"
        );
    }
}
