use super::fake::{self, Fake};
use super::*;

const SOON: Duration = Duration::from_secs(20);
const FOLDER: &str = "/etc/evenkeel/hooks/before-update.d";

async fn answer(root: &Path, runner: &Fake) -> Result<(), String> {
    let place = Place::new(root, None);
    ask(Moment::BeforeUpdate, &place, runner, SOON).await
}

fn hook(root: &Path, name: &str) -> String {
    fake::hook(root, Moment::BeforeUpdate, name)
}

#[tokio::test]
async fn all_hooks_are_asked_in_the_order_of_their_names() {
    let root = tempfile::tempdir().unwrap();
    let second = hook(root.path(), "20-b");
    let first = hook(root.path(), "10_a");
    let runner = Fake::default()
        .says(&first, 0, "fine\n")
        .says(&second, 0, "");
    answer(root.path(), &runner).await.unwrap();
    assert_eq!(runner.asked(), [first, second]);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_does_not_say_yes_is_the_last_and_its_words_are_told() {
    let root = tempfile::tempdir().unwrap();
    let first = hook(root.path(), "10-a");
    let second = hook(root.path(), "20-b");
    let both = || Fake::default().says(&second, 0, "");

    let runner = both().says(&first, 75, "the oven\nis on\n");
    let why = answer(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a says not yet: the oven is on");
    assert_eq!(runner.asked(), [first.as_str()]);

    let runner = both().says(&first, 2, "");
    let why = answer(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a ended with status 2");

    let runner = both().hangs(&first);
    let why = answer(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a did not answer in time: thinking");

    let why = answer(root.path(), &both()).await.unwrap_err();
    assert!(
        why.starts_with("the hook 10-a cannot be asked: cannot start"),
        "{why}"
    );
}

#[tokio::test]
async fn each_moment_has_hooks_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let moments = [
        Moment::BeforeUpdate,
        Moment::BeforeDownload,
        Moment::BeforeArming,
        Moment::BeforeReboot,
        Moment::AfterCommit,
    ];
    let place = Place::new(root.path(), None);
    for moment in moments {
        fake::hook(root.path(), moment, "10-a");
    }
    for moment in moments {
        let own = format!("{}/10-a", moment.folder());
        let runner = Fake::default().says(&own, 0, "");
        ask(moment, &place, &runner, SOON).await.unwrap();
        assert_eq!(runner.asked(), [own]);
    }
    assert_eq!(Moment::BeforeUpdate.folder(), FOLDER);
}

#[tokio::test]
async fn what_is_no_hook_is_passed_over() {
    let root = tempfile::tempdir().unwrap();
    let runner = Fake::default();
    answer(root.path(), &runner).await.unwrap();
    for name in ["10-a.dpkg-old", "20-b~", "README.txt", ".hidden"] {
        hook(root.path(), name);
    }
    let folder = root.path().join(FOLDER.trim_start_matches('/'));
    fake::write(&folder.join("30-text"), "to be read", 0o644);
    fs::create_dir(folder.join("40-folder")).unwrap();
    answer(root.path(), &runner).await.unwrap();
    assert!(runner.asked().is_empty(), "{:?}", runner.asked());
}

#[tokio::test]
async fn a_hook_that_others_could_have_written_is_not_run_and_holds_back() {
    let root = tempfile::tempdir().unwrap();
    let hook = hook(root.path(), "10-a");
    let runner = Fake::default().says(&hook, 0, "");
    let path = root.path().join(hook.trim_start_matches('/'));
    fake::write(&path, "#!/bin/sh\n", 0o775);
    let why = answer(root.path(), &runner).await.unwrap_err();
    assert_eq!(
        why,
        "the hook 10-a is not run: others than root may write it"
    );

    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/bin/true", &path).unwrap();
    let why = answer(root.path(), &runner).await.unwrap_err();
    assert_eq!(why, "the hook 10-a is not run: it is a symbolic link");

    fs::remove_file(&path).unwrap();
    for folder in path.ancestors().skip(1).take(3) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert!(why.ends_with("others than root may write it"), "{why}");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert!(runner.asked().is_empty());
}

#[test]
fn words_from_outside_become_one_short_line() {
    assert_eq!(in_one_line("  a\n\tb\u{1b}[1m \0c\n"), "a b [1m c");
    assert_eq!(in_one_line("\n"), "");
    let long = in_one_line(&"é".repeat(200));
    assert!(long.len() <= 305 && long.ends_with(" …"), "{long}");
}
