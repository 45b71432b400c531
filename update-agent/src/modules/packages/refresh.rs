//! When package lists are fetched.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backon::Retryable;
use tokio::time::Instant;

use super::apt::storage_failure;
use super::broken_sources::{explain_failure, has_errors, without_broken};
use super::dpkg_lock::{self, DpkgLockError};
use super::fetch::HOOK_ERROR;
use super::plan::join_names;
use super::rules::AllowedSuites;
use super::sources::{self, AptView, SourceFile, SourceScope};
use super::{PackagesModule, is_transient, retry_backoff};
use crate::model::{Failure, FailureKind, PackageSpec};
use crate::owner::OwnerLimits;

/// A plan uses lists that were refreshed for the facts at most this long ago.
const MAX_LIST_AGE: Duration = Duration::from_mins(1);

/// When the lists of the machine's own sources were refreshed for the facts; `None` if a plan has used them since.
#[derive(Debug, Default)]
pub struct LastRefresh(Mutex<Option<Instant>>);

impl LastRefresh {
    /// Records a refresh that succeeded now.
    pub fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether the lists were refreshed just now, so that the first plan after it need not fetch them again. A second plan
    /// fetches them.
    pub fn take_recent(&self) -> bool {
        let refreshed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        refreshed.is_some_and(|at| at.elapsed() < MAX_LIST_AGE)
    }
}

impl PackagesModule {
    /// Refreshes the package lists, with a few retries, when no other program refreshes them. `is_fresh`: see
    /// [`LastRefresh::take_recent`].
    pub(super) async fn refresh_for(
        &self,
        spec: &PackageSpec,
        limits: &OwnerLimits,
        is_fresh: bool,
    ) -> Result<(), Failure> {
        let wait = self.tools.timeouts().lock;
        let waited = dpkg_lock::wait_for_lists(&self.paths, wait, &self.wait_state).await;
        waited.map_err(|error| match error {
            DpkgLockError::File(error) => storage_failure(error),
            timeout @ DpkgLockError::Timeout { .. } => {
                Failure::new(FailureKind::Refresh, timeout.to_string()).into_temporary()
            }
        })?;
        (|| self.refresh_lists(spec, limits, is_fresh))
            .retry(retry_backoff())
            .sleep(tokio::time::sleep)
            .when(may_pass_soon)
            .await
    }

    /// Refreshes the lists that a view needs.
    pub(super) async fn update_lists(&self, view: AptView, pace: u64) -> Result<(), Failure> {
        self.update_lists_within(self.tools.timeouts().refresh, view, pace).await
    }

    /// Refreshes lists in a time. If a hook of apt does not end in this time, the lists are refreshed without hooks: these
    /// are for other programs, such as a software centre. Also if a hook and a source fail: the errors of the hook would
    /// hide which source is broken.
    async fn update_lists_within(
        &self,
        limit: Duration,
        view: AptView,
        pace: u64,
    ) -> Result<(), Failure> {
        let failure = match self.tools.update_lists(limit, view, pace, None).await {
            Err(failure) if is_failure_of_hook(&failure.log) => failure,
            ended => return ended,
        };
        tracing::warn!(
            error = %failure,
            output = failure.log,
            "a hook of apt failed or did not end; refreshing the lists without hooks"
        );
        let settings =
            sources::write_settings_without_hooks(&self.paths).map_err(storage_failure)?;
        self.tools.update_lists(limit, view, pace, Some(settings)).await
    }

    /// After a failed refresh: writes the sources without those whose lists could not be fetched. Returns their failure; `None`
    /// if each source could be fetched by itself. Fails with the failure of the refresh if it is not known which sources are
    /// broken, or if none is left.
    pub(super) async fn exclude_broken_sources(
        &self,
        spec: &PackageSpec,
        limits: &OwnerLimits,
        failure: Failure,
    ) -> Result<Option<Failure>, Failure> {
        if !matches!(failure.kind, FailureKind::Refresh | FailureKind::Signature) {
            return Err(failure);
        }
        let stanzas = self.owner.resolve_sources(spec)?;
        let all = sources::collect_sources(&self.paths, &stanzas).map_err(storage_failure)?;
        let suites = AllowedSuites::new(&spec.rules, limits);
        let (left, broken) = if failure.is_temporary || has_errors(&failure.log) {
            let Some(left) = without_broken(&all, &failure.log) else { return Err(failure) };
            (left, Some(failure))
        } else {
            let pace = spec.rules.download_bytes_per_second;
            self.refresh_separately(&all, &suites, pace, failure).await?
        };
        if broken.is_some() {
            // A remark or the failure of the plan contains the error.
            tracing::warn!("some sources cannot be used; the others are used");
        }
        let written = self.write_used_sources(&left, &suites, false).await;
        written.map_err(|failed| match failed.kind {
            FailureKind::Storage => failed,
            _ => explain_failure(failed, broken.as_ref()),
        })?;
        Ok(broken)
    }

    /// Refreshes the lists for the facts. A source that never ends its answer keeps apt from using the lists of the others,
    /// so these are then refreshed one by one. Returns the failure of the sources that are left out.
    pub(super) async fn refresh_for_facts(&self, spec: &PackageSpec) -> Result<(), Failure> {
        let limits = OwnerLimits::default();
        let Err(failure) = self.refresh_for(spec, &limits, false).await else { return Ok(()) };
        if failure.kind != FailureKind::Refresh || failure.is_temporary || has_errors(&failure.log)
        {
            return Err(failure);
        }
        let all = sources::collect_sources(&self.paths, &[]).map_err(storage_failure)?;
        let suites = AllowedSuites::new(&spec.rules, &limits);
        let pace = spec.rules.download_bytes_per_second;
        let refreshed = self.refresh_separately(&all, &suites, pace, failure).await;
        // They are used only for a plan.
        sources::remove_folders(&self.paths).map_err(storage_failure)?;
        let (_, broken) = refreshed?;
        broken.map_or(Ok(()), Err)
    }

    /// Refreshes the lists of each source by itself, because apt did not name the source that failed: a server that never
    /// ends its answer also keeps apt from using the lists of the others. All together may take as long as one refresh.
    /// Returns the sources that did not fail, and the failure of the others.
    async fn refresh_separately(
        &self,
        all: &[SourceFile],
        suites: &AllowedSuites,
        pace: u64,
        failure: Failure,
    ) -> Result<(Vec<SourceFile>, Option<Failure>), Failure> {
        let parts = sources::split_sources(all);
        if parts.len() < 2 {
            return Err(failure);
        }
        tracing::warn!(error = %failure, "refreshing the lists of each source by itself");
        let time = RefreshTime::new(self.tools.timeouts().refresh, parts.len());
        let mut queue: Vec<(usize, SourceFile)> = parts.into_iter().enumerate().collect();
        let (mut left, mut broken) = (BTreeMap::new(), BTreeMap::<usize, String>::new());
        // First each source gets an equal share, so that slow ones leave time for the others. Then the slow ones get what is
        // left; apt continues their files.
        for is_continued in [false, true] {
            if is_continued && !time.is_enough_for(queue.len()) {
                break;
            }
            let round = std::mem::take(&mut queue);
            let count = round.len();
            for (done, (index, part)) in round.into_iter().enumerate() {
                let limit =
                    if is_continued { time.left_share(count - done) } else { time.equal_share };
                let Err(failed) = self.refresh_part(&part, suites, limit, pace).await else {
                    broken.remove(&index);
                    left.insert(index, part);
                    continue;
                };
                let name = part.describe();
                tracing::warn!(error = %failed, source = name, "cannot refresh a source");
                broken.insert(index, name);
                if !has_errors(&failed.log) {
                    queue.push((index, part));
                }
            }
        }
        if left.is_empty() {
            return Err(failure);
        }
        let names = join_names(broken.into_values());
        let broken = (!names.is_empty()).then(|| {
            let reason = format!("{}; the lists of {names} cannot be fetched", failure.reason);
            Failure::with_log(failure.kind, reason, &failure.log)
        });
        Ok((left.into_values().collect(), broken))
    }

    /// Refreshes the lists of one source. It is not fetched if the update may not use it.
    async fn refresh_part(
        &self,
        part: &SourceFile,
        suites: &AllowedSuites,
        limit: Duration,
        pace: u64,
    ) -> Result<(), Failure> {
        match self.write_used_sources(slice::from_ref(part), suites, true).await {
            Err(failure) if failure.kind == FailureKind::Storage => Err(failure),
            Err(_) => Ok(()),
            Ok(()) => {
                let view = AptView::from_sources(SourceScope::Allowed);
                self.update_lists_within(limit, view, pace).await
            }
        }
    }

    /// Writes the sources that apt sees, and those of them with the allowed suites. `is_lenient` also allows suites without
    /// a list.
    async fn write_used_sources(
        &self,
        used: &[SourceFile],
        suites: &AllowedSuites,
        is_lenient: bool,
    ) -> Result<(), Failure> {
        sources::write_sources(&self.paths, SourceScope::All, used).map_err(storage_failure)?;
        if suites.is_limited() {
            return self.write_allowed_sources(used, suites, is_lenient).await;
        }
        sources::write_sources(&self.paths, SourceScope::Allowed, used).map_err(storage_failure)
    }
}

/// The time of a refresh, which its sources share.
#[derive(Clone, Copy, Debug)]
struct RefreshTime {
    end: Instant,
    /// The time for a source if each one gets as much.
    equal_share: Duration,
}

impl RefreshTime {
    fn new(limit: Duration, sources: usize) -> Self {
        Self { end: Instant::now() + limit, equal_share: divide_time(limit, sources) }
    }

    /// The time for the next one of `waiting` sources.
    fn left_share(self, waiting: usize) -> Duration {
        divide_time(self.end.saturating_duration_since(Instant::now()), waiting)
    }

    /// Whether some sources are waiting, and each gets more time than before.
    fn is_enough_for(self, waiting: usize) -> bool {
        waiting > 0 && self.left_share(waiting) > self.equal_share
    }
}

fn divide_time(time: Duration, parts: usize) -> Duration {
    time / u32::try_from(parts.max(1)).unwrap_or(u32::MAX)
}

/// Whether a refresh may succeed if it is repeated at once. Not if apt named no error, as at the deadline: the next one would
/// not end either.
fn may_pass_soon(failure: &Failure) -> bool {
    is_transient(failure) && has_errors(&failure.log)
}

/// Whether a hook of apt failed or did not end.
fn is_failure_of_hook(log: &str) -> bool {
    ended_in_hook(log) || log.lines().any(|line| line.starts_with(HOOK_ERROR))
}

/// Whether the output of apt ends in a hook.
fn ended_in_hook(log: &str) -> bool {
    let is_progress = |line: &str| {
        ["Hit:", "Get:", "Ign:", "Err:", "Fetched ", "Reading package lists", "E: ", "W: "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let hook = log.rsplit_once("Running external script: ");
    hook.is_some_and(|(_, after)| !after.lines().any(is_progress))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::*;
    use crate::modules::Module as _;
    use crate::modules::packages::{PackageToolTimeouts, PackageTools, latest_spec};
    use crate::owner::Owner;
    use crate::paths::AgentPaths;
    use crate::runner::{Command, DeadlineAction, Output, RunError, Runner};

    /// A node on which apt does not end if it sees a source of the host `slow`, and needs 15 seconds for one of `big`.
    struct SlowSource {
        paths: AgentPaths,
        deadlines: Mutex<Vec<Duration>>,
    }

    #[async_trait::async_trait]
    impl Runner for SlowSource {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            self.deadlines.lock().unwrap().push(command.deadline);
            let own = command.to_string().contains("Dir::Etc::SourceParts=");
            let folder =
                if own { "/var/lib/evenkeel-agent/sources" } else { "/etc/apt/sources.list.d" };
            let sources = read_folder(self.paths.inside(folder));
            let duration = if sources.contains("slow") {
                Duration::MAX
            } else {
                Duration::from_secs(if sources.contains("big") { 15 } else { 0 })
            };
            tokio::time::sleep(duration.min(command.deadline)).await;
            if duration <= command.deadline {
                return Ok(Output { status: Some(0), ..Output::default() });
            }
            Err(RunError::Deadline {
                program: command.program.clone(),
                after: command.deadline,
                action: DeadlineAction::Kill,
                output: "Get:1 http://good stable InRelease [1 B]\n".into(),
            })
        }
    }

    fn read_folder(folder: PathBuf) -> String {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    fn module_with(paths: &AgentPaths, system: Arc<dyn Runner>) -> PackagesModule {
        let minute = Duration::from_mins(1);
        let timeouts = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let owner = Owner::new(paths.clone(), Arc::new(TestClock::new(DateTime::UNIX_EPOCH)));
        let tools = PackageTools::new(system, timeouts);
        PackagesModule::new(tools, paths.clone(), Arc::new(owner), false)
    }

    /// A node with a broken source and a hook that fails. The output is that of apt 2.6.2.
    struct BrokenSourceAndHook;

    #[async_trait::async_trait]
    impl Runner for BrokenSourceAndHook {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            let source =
                "E: The repository 'http://bad stable Release' does not have a Release file.\n";
            let hook = "E: Problem executing scripts APT::Update::Post-Invoke 'exit 3'\n\
                        E: Sub-process returned an error code\n";
            let has_hooks = !command.to_string().contains("--config-file=");
            let stdout = if has_hooks { format!("{source}{hook}") } else { source.to_owned() };
            Ok(Output { status: Some(100), stdout, stderr: String::new() })
        }
    }

    #[tokio::test]
    async fn a_failing_hook_does_not_hide_which_source_is_broken() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let module = module_with(&paths, Arc::new(BrokenSourceAndHook));
        let failure = module.update_lists(AptView::default(), 0).await.unwrap_err();
        let good = "deb http://good stable main\n";
        let sources = SourceFile::new("a.list", &format!("deb http://bad stable main\n{good}"));
        let left = without_broken(&[sources], &failure.log).expect("the other source");
        assert_eq!(left.iter().map(SourceFile::text).collect::<String>(), good);
    }

    /// Excludes the broken sources of a node after a refresh that did not end. Returns the result, the sources that are left,
    /// and the time limits of the refreshes.
    async fn exclude_after_deadline(
        text: &str,
    ) -> (Result<Option<Failure>, Failure>, String, Vec<Duration>) {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let folder = paths.inside("/etc/apt/sources.list.d");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.list"), text).unwrap();
        let system = Arc::new(SlowSource { paths: paths.clone(), deadlines: Mutex::default() });
        let module = module_with(&paths, system.clone());
        let failure = module.update_lists(AptView::default(), 0).await.unwrap_err();
        let limits = OwnerLimits::default();
        let result = module.exclude_broken_sources(&latest_spec(), &limits, failure).await;
        let allowed = paths.inside("/var/lib/evenkeel-agent/sources");
        let left = if allowed.exists() { read_folder(allowed) } else { String::new() };
        let deadlines = system.deadlines.lock().unwrap().clone();
        (result, left, deadlines)
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_never_ends_its_answer_does_not_block_the_others() {
        let (good, slow) =
            ("deb http://good stable main\n", "deb http://me:secret@slow/x stable y\n");
        let (result, left, deadlines) =
            exclude_after_deadline(&format!("# A comment.\n{slow}{good}")).await;
        let broken = result.unwrap().unwrap();
        assert_eq!(broken.kind, FailureKind::Refresh);
        let end = "did not end within 60 s and was killed; \
                   the lists of http://slow/x stable cannot be fetched";
        assert!(broken.reason.ends_with(end), "{}", broken.reason);
        assert_eq!(left, good);
        let half = Duration::from_secs(30);
        assert_eq!(deadlines, [Duration::from_mins(1), half, half]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_source_gets_the_time_that_fast_ones_do_not_need() {
        let big = "deb http://big stable main\n";
        let good = "deb http://good stable main\n".repeat(4);
        let text = format!("{big}{good}deb http://slow stable main\n");
        let (result, left, deadlines) = exclude_after_deadline(&text).await;
        assert!(result.unwrap().unwrap().reason.ends_with("http://slow stable cannot be fetched"));
        assert_eq!((left.matches("big").count(), left.matches("good").count()), (1, 4), "{left}");
        assert!(!left.contains("slow"), "{left}");
        let rounded = |time: &Duration| (*time + Duration::from_millis(500)).as_secs();
        let seconds: Vec<_> = deadlines.iter().map(rounded).collect();
        assert_eq!(seconds, [60, 10, 10, 10, 10, 10, 10, 20, 25]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_for_the_facts_leaves_out_only_the_source_that_never_ends_its_answer() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let folder = paths.inside("/etc/apt/sources.list.d");
        fs::create_dir_all(&folder).unwrap();
        let text = "deb http://slow stable main\ndeb http://good stable main\n";
        fs::write(folder.join("a.list"), text).unwrap();
        let system = Arc::new(SlowSource { paths: paths.clone(), deadlines: Mutex::default() });
        let module = module_with(&paths, system.clone());
        let failure = module.refresh().await.unwrap_err();
        let end = "the lists of http://slow stable cannot be fetched";
        assert!(failure.reason.ends_with(end), "{}", failure.reason);
        assert_eq!(system.deadlines.lock().unwrap().len(), 3, "all, and each by itself");
        assert!(!paths.inside("/var/lib/evenkeel-agent/sources").exists());
        fs::write(folder.join("a.list"), "deb http://good stable main\n").unwrap();
        module.refresh().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_a_working_source_gets_the_failure_of_the_whole_refresh() {
        let slow = "deb http://slow stable main\n";
        for (text, refreshes) in [(slow.to_owned(), 1), (format!("{slow}{slow}"), 3)] {
            let (result, _, deadlines) = exclude_after_deadline(&text).await;
            let failure = result.unwrap_err();
            assert!(failure.reason.ends_with("and was killed"), "{}", failure.reason);
            assert_eq!(deadlines.len(), refreshes, "{text}");
        }
    }

    #[test]
    fn only_a_refresh_that_named_an_error_is_repeated_at_once() {
        for (log, expected) in [
            ("Ign:1 http://x stable InRelease\n", false),
            ("", false),
            ("E: Failed to fetch http://x/dists/stable/main/Packages  503\n", true),
        ] {
            let failure = Failure::with_log(FailureKind::Refresh, "why", log);
            assert_eq!(may_pass_soon(&failure), expected, "{log}");
        }
        let other = Failure::with_log(FailureKind::Signature, "why", "E: x is not signed.\n");
        assert!(!may_pass_soon(&other));
    }

    #[test]
    fn a_refresh_that_hangs_in_a_hook_differs_from_one_that_hangs_at_a_server() {
        let before = "Running external script: 'mount /srv'\n";
        let lists = "Hit:1 http://x stable InRelease\n";
        let after = "Running external script: 'sleep 1000'\n";
        for (log, expected) in [
            (before.to_owned(), true),
            (format!("{before}waiting for the disk\n"), true),
            (format!("{before}{lists}"), false),
            (format!("{before}{lists}{after}"), true),
            (format!("{before}{lists}{after}Reading package lists...\n"), false),
            (lists.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(ended_in_hook(&log), expected, "{log}");
        }
    }

    #[test]
    fn a_failing_hook_before_or_after_a_refresh_is_a_failure_of_a_hook() {
        let lists = "Hit:1 http://x stable InRelease\n";
        for list in ["Pre-Invoke", "Post-Invoke", "Post-Invoke-Success"] {
            let error = format!("E: Problem executing scripts APT::Update::{list} 'exit 3'\n");
            assert!(is_failure_of_hook(&format!("{error}{lists}{error}")), "{list}");
        }
        assert!(!is_failure_of_hook(&format!("{lists}E: Failed to fetch http://x  503\n")));
    }

    #[test]
    fn one_plan_uses_the_lists_of_a_recent_refresh() {
        let last = LastRefresh::default();
        assert!(!last.take_recent());
        last.set();
        assert!(last.take_recent());
        assert!(!last.take_recent(), "a second plan fetches the lists");
        *last.0.lock().unwrap() = Instant::now().checked_sub(MAX_LIST_AGE);
        assert!(!last.take_recent(), "they are too old");
    }
}
