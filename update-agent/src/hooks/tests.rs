use super::fake::{self, FakeRunner};
use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const FOLDER: &str = "/etc/evenkeel/hooks/before-update.d";

async fn run_test_hooks(root: &Path, runner: &FakeRunner) -> Result<(), String> {
    let paths = AgentPaths::new(root, None);
    run_hooks(HookPoint::BeforeUpdate, &paths, runner, TEST_TIMEOUT).await
}

fn add_hook(root: &Path, name: &str) -> String {
    fake::add_hook(root, HookPoint::BeforeUpdate, name)
}

#[tokio::test]
async fn all_hooks_run_in_the_order_of_their_names() {
    let root = tempfile::tempdir().unwrap();
    let second = add_hook(root.path(), "20-b");
    let first = add_hook(root.path(), "10_a");
    let runner = FakeRunner::default().returns(&first, 0, "fine\n").returns(&second, 0, "");
    run_test_hooks(root.path(), &runner).await.unwrap();
    assert_eq!(runner.commands(), [first, second]);
}

#[tokio::test(start_paused = true)]
async fn the_first_failing_hook_is_the_last_and_its_output_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let first = add_hook(root.path(), "10-a");
    let second = add_hook(root.path(), "20-b");
    let both = || FakeRunner::default().returns(&second, 0, "");

    let runner = both().returns(&first, 75, "the oven\nis on\n");
    let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a is not ready: the oven is on");
    assert_eq!(runner.commands(), [first.as_str()]);

    let runner = both().returns(&first, 2, "");
    let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a ended with status 2");

    let runner = both().hangs(&first);
    let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a did not answer in time: thinking");

    let why = run_test_hooks(root.path(), &both()).await.unwrap_err();
    assert!(why.starts_with("the hook 10-a cannot be run: cannot start"), "{why}");
}

#[tokio::test]
async fn each_hook_point_has_its_own_folder() {
    let root = tempfile::tempdir().unwrap();
    let points = [
        HookPoint::BeforeUpdate,
        HookPoint::BeforeDownload,
        HookPoint::BeforeArming,
        HookPoint::BeforeReboot,
        HookPoint::AfterCommit,
        HookPoint::AfterUpdate,
    ];
    let paths = AgentPaths::new(root.path(), None);
    for point in points {
        fake::add_hook(root.path(), point, "10-a");
    }
    for point in points {
        let own = format!("{}/10-a", point.folder());
        let runner = FakeRunner::default().returns(&own, 0, "");
        run_hooks(point, &paths, &runner, TEST_TIMEOUT).await.unwrap();
        assert_eq!(runner.commands(), [own]);
    }
    assert_eq!(HookPoint::BeforeUpdate.folder(), FOLDER);
}

#[tokio::test]
async fn files_that_are_no_hooks_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    let runner = FakeRunner::default();
    run_test_hooks(root.path(), &runner).await.unwrap();
    for name in ["10-a.dpkg-old", "20-b~", "README.txt", ".hidden"] {
        add_hook(root.path(), name);
    }
    let folder = root.path().join(FOLDER.trim_start_matches('/'));
    fake::write_file(&folder.join("30-text"), "to be read", 0o644);
    fs::create_dir(folder.join("40-folder")).unwrap();
    run_test_hooks(root.path(), &runner).await.unwrap();
    assert!(runner.commands().is_empty(), "{:?}", runner.commands());
}

#[tokio::test]
async fn a_hook_that_others_can_write_is_not_run_and_blocks_the_change() {
    let root = tempfile::tempdir().unwrap();
    let hook = add_hook(root.path(), "10-a");
    let runner = FakeRunner::default().returns(&hook, 0, "");
    let path = root.path().join(hook.trim_start_matches('/'));
    fake::write_file(&path, "#!/bin/sh\n", 0o775);
    let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a is not run: users other than root may write to it");

    fs::remove_file(&path).unwrap();
    for folder in path.ancestors().skip(1).take(3) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
        assert!(why.ends_with("users other than root may write to it"), "{why}");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert!(runner.commands().is_empty());
}

#[tokio::test]
async fn a_linked_hook_is_run_if_only_root_can_change_its_target() {
    let root = tempfile::tempdir().unwrap();
    let hook = add_hook(root.path(), "10-a");
    let path = root.path().join(hook.trim_start_matches('/'));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/opt/app/drain", &path).unwrap();
    let runner = FakeRunner::default().returns(&hook, 0, "");
    let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
    assert!(why.starts_with("the hook 10-a is not run: cannot read /opt"), "{why}");

    fake::add_program(root.path(), "/opt/app", "drain");
    run_test_hooks(root.path(), &runner).await.unwrap();
    assert_eq!(runner.commands(), [hook]);

    let target = root.path().join("opt/app/drain");
    for (file, mode) in [(target.clone(), 0o777), (root.path().join("opt"), 0o775)] {
        let before = fs::metadata(&file).unwrap().permissions();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let why = run_test_hooks(root.path(), &runner).await.unwrap_err();
        assert!(why.ends_with("users other than root may write to it"), "{why}");
        fs::set_permissions(&file, before).unwrap();
    }
    fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
    run_test_hooks(root.path(), &runner).await.unwrap();
    assert_eq!(runner.commands().len(), 1, "a file that is not executable is skipped");
}

#[test]
fn output_becomes_one_short_line() {
    assert_eq!(to_one_line("  a\n\tb\u{1b}[1m \0c\n"), "a b [1m c");
    assert_eq!(to_one_line("\n"), "");
    let long = to_one_line(&"é".repeat(200));
    assert!(long.len() <= 305 && long.ends_with(" …"), "{long}");
}
