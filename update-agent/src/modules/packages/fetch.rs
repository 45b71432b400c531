//! Fetches package lists and packages.
//!
//! Packages over HTTP are fetched with apt's own helper: it continues a partial file if the server's file is unchanged,
//! and checks hash and size as apt does. `apt-get download` would start the file again from the beginning.

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use super::apt::{
    MAX_NAMES_PER_COMMAND, PackageTools, storage_failure, tool_failure, unreadable_line,
};
use super::broken_sources::{is_error_line, is_temporary};
use super::files::{ARCHIVES_FOLDER, Deb, Digest};
use super::parse::{self, PlannedInstall};
use super::plan::join_names;
use super::sources::AptView;
use super::staging::STAGING_NAME;
use super::{PackagesModule, space};
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

/// Path of apt's helper in Debian 12 and 13.
const APT_HELPER: &str = "/usr/lib/apt/apt-helper";

/// What to do if a repository has another label, origin or suite than before.
const RELEASE_CHANGE_ADVICE: &str = "; if this change is expected, accept it with \
     `apt-get update --allow-releaseinfo-change` on the node";

/// Begins an error about a hook of a refresh.
pub(super) const HOOK_ERROR: &str = "E: Problem executing scripts APT::Update::";

/// Begins an error about a program of `APT::Update::Post-Invoke` or its `-Success`. These are for other programs, such as
/// a software centre, and run when the lists are complete.
const POST_HOOK_ERROR: &str = "E: Problem executing scripts APT::Update::Post-Invoke";

impl PackageTools {
    /// Refreshes the package lists, with at most `pace` bytes per second (0 for no limit of the policy), and with a file of
    /// additional settings of apt. A warning is an error here: apt itself would keep old lists and report success.
    pub async fn update_lists(
        &self,
        deadline: Duration,
        view: AptView,
        pace: u64,
        settings: Option<&str>,
    ) -> Result<(), Failure> {
        let mut command = self
            .apt_get(deadline, view)
            .with_arguments(settings.map(|file| format!("--config-file={file}")))
            .with_arguments(rate_limit_options(self.effective_rate(pace)))
            // apt prints each hook before it runs, so that the output shows which one does not end.
            .with_arguments(["-o", "Debug::RunScripts=1", "update", "--error-on=any"]);
        command.merged = true;
        let output = self.run(&command, FailureKind::Refresh).await?;
        if output.succeeded() {
            return Ok(());
        }
        let text = output.combined_output();
        if only_scripts_failed(&text) {
            tracing::warn!(output = text, "the lists are refreshed, but a hook of apt failed");
            return Ok(());
        }
        Err(refresh_failure(&output, &text))
    }

    /// The files of planned installs, in the same order.
    pub async fn resolve_files(
        &self,
        installs: &[PlannedInstall],
        view: AptView,
    ) -> Result<Vec<Deb>, Failure> {
        let mut fetches = BTreeMap::new();
        for some in installs.chunks(MAX_NAMES_PER_COMMAND) {
            let command = self
                .apt_get(self.timeouts().query, view)
                .with_arguments(["--print-uris", "download", "--"])
                .with_arguments(some.iter().map(PlannedInstall::apt_argument));
            let output = self.run(&command, FailureKind::Download).await?;
            if !output.succeeded() {
                return Err(tool_failure(FailureKind::Download, "apt-get download", &output));
            }
            let read = parse::parse_uris(&output.stdout)
                .map_err(|line| unreadable_line(FailureKind::Download, line))?;
            fetches.extend(read.into_iter().map(|fetch| (fetch.name.clone(), fetch)));
        }
        // apt lists the files in another order.
        let deb = |install: &PlannedInstall| -> Result<Deb, Failure> {
            let fetch = fetches.remove(&install.file_name()).ok_or_else(|| {
                let reason = format!("apt lists no file for {}", install.apt_argument());
                Failure::new(FailureKind::Download, reason)
            })?;
            Ok(Deb {
                name: fetch.name,
                size: fetch.size,
                digest: fetch.digest,
                apt_argument: install.apt_argument(),
                uri: fetch.uri,
            })
        };
        installs.iter().map(deb).collect()
    }

    /// Fetches files into the folder of apt's user, with at most `pace` bytes per second (0 for no limit).
    pub async fn download(&self, debs: &[&Deb], view: AptView, pace: u64) -> Result<(), Failure> {
        let (plain, others): (Vec<&Deb>, Vec<&Deb>) =
            debs.iter().copied().partition(|deb| is_http_without_credentials(&deb.uri));
        for some in plain.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new(APT_HELPER, self.timeouts().download)
                .with_arguments(["--quiet", "-o", "Acquire::Retries=3"])
                .with_arguments(rate_limit_options(self.effective_rate(pace)))
                .with_arguments(["download-file"])
                .with_arguments(some.iter().flat_map(|deb| helper_arguments(deb)));
            check_download(&self.run(&command, FailureKind::Download).await?)?;
        }
        for some in others.chunks(MAX_NAMES_PER_COMMAND) {
            let apt = self.apt_get(self.timeouts().download, view);
            let command = Command::new("env", apt.deadline)
                .with_arguments([format!("--chdir={ARCHIVES_FOLDER}/{STAGING_NAME}"), apt.program])
                .with_arguments(apt.arguments)
                .with_arguments(rate_limit_options(self.effective_rate(pace)))
                .with_arguments(["download", "--"])
                .with_arguments(some.iter().map(|deb| deb.apt_argument.clone()));
            check_download(&self.run(&command, FailureKind::Download).await?)?;
        }
        Ok(())
    }
}

impl PackagesModule {
    /// Downloads files, and moves those that are complete into the folder of the plan.
    async fn download(&self, debs: &[&Deb], view: AptView, pace: u64) -> Result<(), Failure> {
        let downloaded = self.tools.download(debs, view, pace).await;
        self.move_downloads(debs).await?;
        downloaded
    }

    /// Moves the files that are complete into the folder of the plan. Between two files the rest of the agent runs: copies
    /// and checks of some GiB take minutes on a slow disk, and the service manager kills an agent that does not answer.
    async fn move_downloads(&self, debs: &[&Deb]) -> Result<(), Failure> {
        for deb in debs {
            self.archives.move_downloads(slice::from_ref(deb)).map_err(storage_failure)?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Copies files from the cache of apt, see [`Self::move_downloads`].
    async fn copy_cached(&self, debs: &[&Deb]) -> Result<(), Failure> {
        for deb in debs {
            self.archives.copy_cached(slice::from_ref(deb)).map_err(storage_failure)?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// The missing files of a plan, see [`Self::move_downloads`].
    async fn find_missing<'a>(&self, debs: &'a [Deb]) -> Result<Vec<&'a Deb>, Failure> {
        let mut missing = Vec::new();
        for deb in debs {
            let found = self.archives.missing_files(slice::from_ref(deb));
            missing.extend(found.map_err(storage_failure)?);
            tokio::task::yield_now().await;
        }
        Ok(missing)
    }

    /// Fetches the missing files of a plan.
    pub(super) async fn fetch_missing(
        &self,
        debs: &[Deb],
        view: AptView,
        pace: u64,
    ) -> Result<(), Failure> {
        let mut to_fetch = self.find_missing(debs).await?;
        let was_begun = self.archives.has_partial_files(&to_fetch);
        if was_begun {
            // The agent may have been killed after a download.
            self.move_downloads(&to_fetch).await?;
            to_fetch = self.find_missing(debs).await?;
        }
        if to_fetch.is_empty() {
            return Ok(());
        }
        // A downloaded file is copied, so the largest one needs its space twice.
        let largest = to_fetch.iter().map(|deb| deb.size).max().unwrap_or(0);
        let bytes = Deb::total_bytes(to_fetch.iter().copied()).saturating_add(largest);
        space::check_space(self.archives.folder(), bytes)?;
        // The check of the copies follows: it is that of downloads.
        self.copy_cached(&to_fetch).await?;
        to_fetch = self.find_missing(debs).await?;
        if to_fetch.is_empty() {
            return Ok(());
        }
        let mut fetched = self.download(&to_fetch, view, pace).await;
        let is_broken = |failure: &Failure| failure.kind == FailureKind::Signature;
        if was_begun && fetched.as_ref().is_err_and(is_broken) {
            // A partial file from before a power cut may be the broken one: fetch it again from the beginning.
            self.archives.remove_broken(&to_fetch).map_err(storage_failure)?;
            fetched = self.download(&self.find_missing(debs).await?, view, pace).await;
        }
        self.archives.remove_broken(&to_fetch).map_err(storage_failure)?;
        fetched?;
        let broken = self.find_missing(debs).await?;
        if broken.is_empty() {
            return Ok(());
        }
        let names = join_names(broken.iter().map(|deb| deb.name.clone()));
        let reason = format!("these files do not match the package index: {names}");
        Err(Failure::new(FailureKind::Signature, reason))
    }
}

/// The failure of a refresh, with the cause of a signature error and with advice.
fn refresh_failure(output: &Output, text: &str) -> Failure {
    let kind = if is_signature_error(text) { FailureKind::Signature } else { FailureKind::Refresh };
    let failure = tool_failure(kind, "apt-get update", output);
    let mut reason = failure.reason;
    // The cause of an error about a signature is in a warning, such as an expired key.
    let is_cause = |line: &&str| line.starts_with("W: ") && is_signature_error(line);
    if let Some(cause) = text.lines().find(is_cause) {
        reason = format!("{reason}; {cause}");
    }
    // That apt refused a redirection is only in its progress.
    let redirection = text.lines().map(str::trim).find(|line| line.starts_with("Redirection "));
    if let Some(cause) = redirection.filter(|cause| !reason.contains(cause)) {
        reason = format!("{reason}; {cause}");
    }
    // apt gives the advice in a notice.
    let is_release_change =
        |line: &str| line.starts_with("E: Repository ") && line.contains(" changed its ");
    if text.lines().any(is_release_change) {
        reason.push_str(RELEASE_CHANGE_ADVICE);
    }
    let failure = Failure::with_log(failure.kind, reason, &failure.log);
    if is_temporary(text) { failure.into_temporary() } else { failure }
}

/// Arguments of apt's helper for a file: source, target, hash and size.
fn helper_arguments(deb: &Deb) -> [String; 4] {
    let digest = match &deb.digest {
        Digest::Sha256(value) => format!("SHA256:{value}"),
        Digest::Sha512(value) => format!("SHA512:{value}"),
    };
    [deb.uri.clone(), deb.staging_path(), digest, format!("Checksum-FileSize:{}", deb.size)]
}

/// Whether apt's helper can fetch a URI. Not if it contains a password, which would be visible on the command line.
fn is_http_without_credentials(uri: &str) -> bool {
    let rest = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split('/').next());
    host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
}

/// apt's limit is in units of 1024 bytes; 0 means no limit.
pub(super) fn rate_limit_options(bytes_per_second: u64) -> Vec<String> {
    if bytes_per_second == 0 {
        return Vec::new();
    }
    let limit = bytes_per_second.div_ceil(1 << 10);
    let options = ["http", "https"].map(|way| format!("Acquire::{way}::Dl-Limit={limit}"));
    let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]);
    options.collect()
}

fn check_download(output: &Output) -> Result<(), Failure> {
    if output.succeeded() {
        return Ok(());
    }
    let text = output.combined_output();
    let lies = text.contains("Hash Sum mismatch") || text.contains("File has unexpected size");
    let kind = if lies { FailureKind::Signature } else { FailureKind::Download };
    Err(tool_failure(kind, "apt-get download", output))
}

/// Whether apt refreshed all lists and only a hook failed.
fn only_scripts_failed(text: &str) -> bool {
    let is_about_scripts = |line: &str| {
        line.starts_with(POST_HOOK_ERROR) || line == "E: Sub-process returned an error code"
    };
    let mut errors = text.lines().map(str::trim_end).filter(|line| is_error_line(line)).peekable();
    errors.peek().is_some() && errors.all(is_about_scripts)
}

/// Whether apt reports a signature problem: forged, expired, by an unknown key, or missing.
fn is_signature_error(text: &str) -> bool {
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
        // Debian 13 verifies signatures with `sqv`.
        "Sub-process /usr/bin/sqv returned an error code",
    ]
    .iter()
    .any(|sign| text.contains(sign))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::super::apt::PackageToolTimeouts;
    use super::*;
    use crate::hooks::fake::FakeRunner;
    use crate::owner::Owner;
    use crate::paths::AgentPaths;

    const TIMEOUT: Duration = Duration::from_secs(1);
    const TIMEOUTS: PackageToolTimeouts = PackageToolTimeouts {
        query: TIMEOUT,
        refresh: TIMEOUT,
        download: TIMEOUT,
        apply: TIMEOUT,
        lock: TIMEOUT,
    };

    #[test]
    fn a_signature_error_is_recognized() {
        assert!(is_signature_error(
            "W: GPG error: file:/srv/repo stable InRelease: The following signatures were invalid: BADSIG 1"
        ));
        assert!(!is_signature_error(
            "E: The repository 'file:/srv/repo stable Release' does not have a Release file."
        ));
    }

    #[test]
    fn the_reason_of_a_failed_refresh_names_the_cause_and_what_to_do() {
        let reason = |stderr: &str| {
            let output = Output { status: Some(100), stdout: String::new(), stderr: stderr.into() };
            refresh_failure(&output, &output.combined_output())
        };
        let failure = reason(
            "W: GPG error: file:/srv/repo stable InRelease: The following signatures were invalid: EXPKEYSIG 1 Tests\n\
             E: The repository 'file:/srv/repo stable InRelease' is not signed.\n",
        );
        assert_eq!(failure.kind, FailureKind::Signature);
        assert!(failure.reason.contains("EXPKEYSIG 1 Tests"), "{}", failure.reason);
        let failure = reason(
            "E: Repository 'file:/srv/repo stable InRelease' changed its 'Label' value from 'a' to 'b'\n\
             N: This must be accepted explicitly before updates for this repository can be applied.\n",
        );
        assert_eq!(failure.kind, FailureKind::Refresh);
        assert!(failure.reason.contains("'a' to 'b'"), "{}", failure.reason);
        assert!(failure.reason.contains("--allow-releaseinfo-change"), "{}", failure.reason);
        let failure = reason(
            "Err:2 http://x/debian stable Release\n  Redirection from http to 'file:/etc/passwd' is forbidden [IP: 127.0.0.1 80]\n\
             E: The repository 'http://x/debian stable Release' does not have a Release file.\n",
        );
        assert_eq!(failure.kind, FailureKind::Refresh);
        let cause = "Release file.; Redirection from http to 'file:/etc/passwd' is forbidden";
        assert!(failure.reason.contains(cause), "{}", failure.reason);
        let failure = reason("E: The repository 'x' does not have a Release file.\n");
        assert!(!failure.reason.contains("--allow-releaseinfo-change"), "{}", failure.reason);
    }

    #[test]
    fn a_failing_hook_of_apt_is_not_a_failed_refresh() {
        let hook = "E: Problem executing scripts APT::Update::Post-Invoke-Success 'exit 3'\nE: Sub-process returned an error code\n";
        assert!(only_scripts_failed(&format!("Reading package lists...\n{hook}")));
        let source =
            "E: The repository 'file:/srv/repo stable Release' does not have a Release file.\n";
        assert!(!only_scripts_failed(&format!("{source}{hook}")));
        assert!(!only_scripts_failed(&format!("W: Failed to fetch http://x\n{hook}")));
        let summary = "E: Some index files failed to download. They have been ignored.\n";
        assert!(!only_scripts_failed(&format!("{summary}{hook}")));
        let advice = "W: Target Packages (main/binary-all/Packages) is configured multiple times in a.list:1 and b.list:1\n";
        assert!(only_scripts_failed(&format!("{advice}{hook}")));
        assert!(!only_scripts_failed("Reading package lists...\n"));
        let before = hook.replace("Post-Invoke-Success", "Pre-Invoke");
        assert!(!only_scripts_failed(&before), "the lists may be incomplete");
    }

    #[test]
    fn a_file_that_differs_from_the_index_is_a_signature_failure() {
        let output = |stderr: &str| Output {
            status: Some(100),
            stdout: String::new(),
            stderr: stderr.into(),
        };
        let kind = |stderr: &str| check_download(&output(stderr)).unwrap_err().kind;
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
    fn only_http_without_credentials_uses_the_helper() {
        for (uri, expected) in [
            ("http://deb.debian.org/debian/pool/a.deb", true),
            ("https://[::1]:8443/a.deb", true),
            ("https://user:secret@deb.example/a.deb", false),
            ("file:/srv/repo/pool/a.deb", false),
            ("mirror+file:/etc/apt/mirrors/a.deb", false),
            ("http:///a.deb", false),
            ("", false),
        ] {
            assert_eq!(is_http_without_credentials(uri), expected, "{uri}");
        }
    }

    #[tokio::test]
    async fn the_lower_limit_of_policy_and_machine_applies_to_the_lists() {
        let cases = [
            (0, 0, None),
            (5 << 10, 0, Some("Dl-Limit=5 ")),
            (0, 7 << 10, Some("Dl-Limit=7 ")),
            (5 << 10, 7 << 10, Some("Dl-Limit=5 ")),
            (9 << 10, 7 << 10, Some("Dl-Limit=7 ")),
        ];
        for (policy, machine, expected) in cases {
            let runner = Arc::new(FakeRunner::default().returns("apt-get", 0, ""));
            let tools = PackageTools::new(runner.clone(), TIMEOUTS).with_max_rate(machine);
            tools.update_lists(TIMEOUT, AptView::default(), policy, None).await.unwrap();
            let command = runner.commands().concat();
            match expected {
                None => assert!(!command.contains("Dl-Limit"), "{command}"),
                Some(option) => {
                    assert_eq!(command.matches(option).count(), 2, "http and https: {command}");
                }
            }
            assert!(command.contains(" update "), "{command}");
        }
    }

    #[tokio::test]
    async fn the_rest_of_the_agent_runs_between_the_checks_of_two_files() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let owner = Owner::new(paths.clone(), Arc::new(TestClock::new(DateTime::UNIX_EPOCH)));
        let tools = PackageTools::new(Arc::new(FakeRunner::default()), TIMEOUTS);
        let packages = PackagesModule::new(tools, paths, Arc::new(owner), false);
        packages.archives.create().unwrap();
        let debs = ["a.deb", "b.deb", "c.deb"].map(|name| Deb {
            name: name.into(),
            size: 7,
            digest: Digest::Sha256("ab".into()),
            apt_argument: String::new(),
            uri: String::new(),
        });
        let turns = std::cell::Cell::new(0);
        let others = async {
            for _ in 0..100 {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        let missing = tokio::select! {
            biased;
            missing = packages.find_missing(&debs) => missing.unwrap(),
            () = others => panic!("the check does not end"),
        };
        assert_eq!(missing.len(), debs.len());
        assert!(turns.get() >= 2, "{}", turns.get());
    }

    #[test]
    fn the_rate_limit_is_rounded_up_to_apts_unit() {
        assert!(rate_limit_options(0).is_empty());
        assert_eq!(
            rate_limit_options(1).join(" "),
            "-o Acquire::http::Dl-Limit=1 -o Acquire::https::Dl-Limit=1"
        );
        assert!(rate_limit_options(5 << 20).contains(&"Acquire::http::Dl-Limit=5120".to_owned()));
    }

    #[test]
    fn the_helper_gets_the_expected_hash_and_size() {
        let deb = Deb {
            name: "a_1%3a2_all.deb".into(),
            size: 7,
            digest: Digest::Sha256("ab".into()),
            apt_argument: "a=1:2".into(),
            uri: "http://x/a_1%3a2_all.deb".into(),
        };
        assert_eq!(
            helper_arguments(&deb).join(" "),
            "http://x/a_1%3a2_all.deb /var/lib/evenkeel-agent/archives/staging/a_1%3a2_all.deb SHA256:ab Checksum-FileSize:7"
        );
    }
}
