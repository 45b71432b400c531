//! Publishing, verifying and copying operating systems, without a server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use evenkeel_cli::Ending;
use evenkeel_cli::args::Cli;
use serde_json::Value;

use crate::{TestCli, render_failure, split};

const PROFILE: &str = "metadata:
  release: 0.0.0-dev
spec:
  name: Edge Microvisor Toolkit 3.0.20260602
  type: OS_TYPE_IMMUTABLE
  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: microvisor-nonrt
  osImageUrl: files/non_rt/edge.raw.gz
  osImageVersion: 3.0.20260602.2200
  osPackageManifestURL: files/non_rt/packages.json
  securityFeature: SECURITY_FEATURE_NONE
";

/// A command line with a folder in its home directory that can be published.
async fn cli_with_release() -> TestCli {
    let cli = TestCli::new().await;
    let folder = cli.home.path().join("release");
    fs::create_dir(&folder).expect("a folder");
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    for (name, content) in [
        ("microvisor-nonrt.yaml", PROFILE),
        ("edge.raw.gz", "the image"),
        ("packages.json", packages),
    ] {
        fs::write(folder.join(name), content).expect("written");
    }
    cli
}

fn path_in_home(cli: &TestCli, name: &str) -> PathBuf {
    cli.home.path().join(name)
}

/// Runs a line that must succeed, with `@` for the home directory.
async fn run_line(cli: &TestCli, line: &str) -> (String, Ending) {
    let home = cli.home.path().display().to_string();
    match cli.bare(&line.replace('@', &home), "").await {
        Ok((text, ending)) => (text.replace(&home, "@"), ending),
        Err(failure) => panic!("{line}: {}", render_failure(&failure)),
    }
}

/// Runs a line that must fail, with `@` for the home directory.
async fn fail_line(cli: &TestCli, line: &str) -> String {
    let home = cli.home.path().display().to_string();
    let failure = cli.bare(&line.replace('@', &home), "").await;
    let failure = failure.expect_err(line);
    let chain = evenkeel_kit::chain(&failure).to_string();
    let hint = failure.hint().unwrap_or_default();
    format!("{chain}\nhint: {hint}").replace(&home, "@")
}

/// All files below a folder with their contents.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut all, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let content = fs::read(&path).expect("readable");
                all.push((path, content));
            }
        }
    }
    all.sort();
    all
}

const PUBLISH: &str =
    "evenkeel os publish @/release --to oci:@/shelf --prefix os/ --revision 0.3.1";

#[tokio::test]
async fn a_release_reaches_a_site_without_a_network() {
    let cli = cli_with_release().await;
    let (output, _) = run_line(&cli, "evenkeel os key @/key").await;
    assert!(output.contains("public key  @/key.pub\n"), "{output}");
    let (output, _) =
        run_line(&cli, &format!("{PUBLISH} --branch main --key @/key --dry-run")).await;
    insta::assert_snapshot!(output);
    assert!(!path_in_home(&cli, "shelf").exists(), "nothing was published");
    let (output, _) = run_line(&cli, &format!("{PUBLISH} --branch main --key @/key")).await;
    assert!(output.contains("published 0.3.1 to oci:@/shelf (signed)\n"), "{output}");

    let line = "evenkeel os bundle @/site.tar --from oci:@/shelf --prefix os/ --revision ~0.3";
    let (output, ending) = run_line(&cli, line).await;
    assert_eq!(ending, Ending::Done, "{output}");
    assert!(!path_in_home(&cli, "site.tar.work").exists(), "what was gathered is gone");
    let import = "evenkeel os import @/site.tar --to oci:@/site";
    let (output, _) = run_line(&cli, &format!("{import} --dry-run")).await;
    assert!(output.contains("os/microvisor-nonrt        0.3.1  new\n"), "{output}");
    assert!(!path_in_home(&cli, "site").exists(), "nothing was imported");
    let (output, ending) = run_line(&cli, import).await;
    assert_eq!(ending, Ending::Done);
    insta::assert_snapshot!(output);
    assert!(!path_in_home(&cli, "site.tar.unpacked").exists(), "what was unpacked is gone");

    for what in ["oci:@/site", "@/site", "@/site.tar"] {
        let line = format!("evenkeel os verify {what} --prefix os/ --key @/key.pub");
        let (output, ending) = run_line(&cli, &line).await;
        assert_eq!(ending, Ending::Done, "{output}");
        assert!(output.contains("0.3.1  good"), "{output}");
    }
}

#[tokio::test]
async fn a_mirror_copies_only_new_revisions() {
    let cli = cli_with_release().await;
    run_line(&cli, PUBLISH).await;
    let mirror = "evenkeel os mirror --from oci:@/shelf --to oci:@/mirror --work @/work --prefix os/ --revision 0.3.1";
    let (output, _) = run_line(&cli, &format!("{mirror} --dry-run")).await;
    assert!(output.contains("os/microvisor-nonrt  0.3.1  new\n"), "{output}");
    let (output, ending) = run_line(&cli, &format!("{mirror} -o json")).await;
    let copied: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((ending, &copied["revisions"]), (Ending::Done, &1.into()));
    assert_eq!(copied["findings"], Value::Array(Vec::new()));
    assert!(!path_in_home(&cli, "work").exists(), "nothing is left of it");
    let (output, _) = run_line(&cli, &format!("{mirror} -o json")).await;
    let again: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(again["blobs"], 0);
    let (output, _) = run_line(&cli, &format!("{mirror} --dry-run")).await;
    assert!(output.contains("present\n"), "{output}");
    insta::assert_snapshot!(fail_line(&cli, &mirror.replace("0.3.1", "0.9.0")).await);
}

#[tokio::test]
async fn a_revision_is_published_once_unless_it_is_moved() {
    let cli = cli_with_release().await;
    run_line(&cli, PUBLISH).await;
    run_line(&cli, PUBLISH).await;
    fs::write(path_in_home(&cli, "release/edge.raw.gz"), "another image").expect("written");
    let message = fail_line(&cli, PUBLISH).await;
    assert!(message.contains("already exists with other contents"), "{message}");
    assert!(message.contains("replace the existing one with --move"), "{message}");
    run_line(&cli, &format!("{PUBLISH} --move")).await;
    let message = fail_line(&cli, &format!("{PUBLISH} --branch 0.3.2")).await;
    assert!(message.contains("hint: use --branch only for names such as main"), "{message}");
}

#[tokio::test]
async fn all_errors_of_a_folder_are_reported_at_once() {
    let cli = cli_with_release().await;
    fs::write(path_in_home(&cli, "release/packages.json"), "<html>").expect("written");
    fs::write(path_in_home(&cli, "release/other.yaml"), "spec: [").expect("written");
    let message = fail_line(&cli, PUBLISH).await;
    assert!(message.starts_with("@/release cannot be published:\n  "), "{message}");
    assert!(message.contains("packages.json"), "{message}");
    assert!(message.contains("other.yaml"), "{message}");
    let (output, ending) = run_line(&cli, "evenkeel os verify @/release").await;
    assert_eq!(ending, Ending::ChecksFailed);
    assert!(output.contains("packages.json"), "{output}");
    assert!(!path_in_home(&cli, "shelf").exists(), "nothing was published");
}

#[tokio::test]
async fn errors_in_a_registry_are_found() {
    let cli = cli_with_release().await;
    for name in ["ours", "theirs"] {
        run_line(&cli, &format!("evenkeel os key @/{name}")).await;
    }
    run_line(&cli, &format!("{PUBLISH} --key @/ours")).await;
    let verify = "evenkeel os verify oci:@/shelf --prefix os/";
    let (output, ending) = run_line(&cli, &format!("{verify} --key @/theirs.pub")).await;
    assert_eq!(ending, Ending::ChecksFailed);
    assert!(
        output.contains("bad_signature: os/microvisor-nonrt: it was not signed by any of the keys"),
        "{output}"
    );
    // Change one byte of the image on disk.
    let blobs = content(&path_in_home(&cli, "shelf"));
    let image = blobs.iter().find(|(_, content)| content == b"the image");
    let (image, _) = image.expect("the image");
    fs::write(image, "the imagf").expect("written");
    let (output, ending) = run_line(&cli, verify).await;
    assert_eq!(ending, Ending::ChecksFailed);
    let wrong =
        "os/microvisor-nonrt:0.3.1: wrong_digest: files/non_rt/edge.raw.gz: the digest is sha256:";
    assert!(output.contains(wrong), "{output}");
    let (output, ending) = run_line(&cli, &format!("{verify} --no-images -o json")).await;
    let looked: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((ending, &looked[0]["tag"]), (Ending::Done, &"0.3.1".into()));
}

#[tokio::test]
async fn existing_revisions_can_be_signed_by_another_key() {
    let cli = cli_with_release().await;
    for name in ["old", "new"] {
        run_line(&cli, &format!("evenkeel os key @/{name}")).await;
    }
    run_line(&cli, &format!("{PUBLISH} --key @/old")).await;
    let again =
        "evenkeel os mirror --from oci:@/shelf --to oci:@/shelf --prefix os/ --revision 0.3.1";
    run_line(&cli, &format!("{again} --work @/work --key @/new")).await;
    for name in ["old", "new"] {
        let line = format!("evenkeel os verify @/shelf --prefix os/ --key @/{name}.pub");
        let (output, ending) = run_line(&cli, &line).await;
        assert_eq!(ending, Ending::Done, "{output}");
    }
}

#[tokio::test]
async fn an_incomplete_bundle_changes_nothing() {
    let cli = cli_with_release().await;
    run_line(&cli, PUBLISH).await;
    run_line(&cli, "evenkeel os bundle @/all.tar --from oci:@/shelf").await;
    let bundle = fs::read(path_in_home(&cli, "all.tar")).expect("a bundle");
    fs::write(path_in_home(&cli, "cut.tar"), &bundle[..bundle.len() / 2]).expect("written");
    let before = content(&path_in_home(&cli, "shelf"));
    let message = fail_line(&cli, "evenkeel os import @/cut.tar --to oci:@/shelf").await;
    assert_eq!(
        message,
        "cannot unpack @/cut.tar: the bundle cannot be used: it is truncated, or it is not a bundle\n\
         hint: nothing was changed; copy the bundle again from its source"
    );
    assert_eq!(content(&path_in_home(&cli, "shelf")), before);
    assert!(!path_in_home(&cli, "cut.tar.unpacked").exists(), "what was unpacked is gone");
}

#[tokio::test]
async fn foreign_files_in_the_unpack_folder_are_not_removed() {
    let cli = cli_with_release().await;
    run_line(&cli, PUBLISH).await;
    run_line(&cli, "evenkeel os bundle @/all.tar --from oci:@/shelf").await;
    let folder = path_in_home(&cli, "all.tar.unpacked");
    fs::create_dir_all(folder.join("blobs/sha256")).expect("a folder");
    let import = "evenkeel os import @/all.tar --to oci:@/site";
    let (_, ending) = run_line(&cli, import).await;
    assert_eq!(ending, Ending::Done, "an import that was killed left it");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("diary"), "dear").expect("written");
    let message = fail_line(&cli, import).await;
    assert!(message.contains("choose another folder with --work"), "{message}");
    assert!(folder.join("diary").exists());
    fs::create_dir(path_in_home(&cli, "room")).expect("a folder");
    let (_, ending) = run_line(&cli, &format!("{import} --work @/room")).await;
    assert_eq!(ending, Ending::Done);
    assert_eq!(content(&path_in_home(&cli, "room")), []);
}

#[tokio::test]
async fn a_key_is_never_replaced_and_only_its_owner_can_read_it() {
    let cli = cli_with_release().await;
    run_line(&cli, "evenkeel os key @/key").await;
    let mode = fs::metadata(path_in_home(&cli, "key")).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let public = fs::read_to_string(path_in_home(&cli, "key.pub")).expect("the public key");
    let (output, _) = run_line(&cli, "evenkeel os key @/key --public").await;
    assert_eq!(output, public);
    let message = fail_line(&cli, "evenkeel os key @/key").await;
    assert!(message.starts_with("@/key already exists\n"), "{message}");
    // If the file of the public key exists, no private key is written.
    fs::write(path_in_home(&cli, "other.pub"), "").expect("written");
    fail_line(&cli, "evenkeel os key @/other").await;
    assert!(!path_in_home(&cli, "other").exists(), "half a pair");
}

#[tokio::test]
async fn unusable_arguments_are_explained_with_a_hint() {
    let cli = cli_with_release().await;
    for (line, hint) in [
        (
            "evenkeel os mirror --from https://127.0.0.1:1 --to oci:@/m --revision 1.0.0",
            "name them with `--profile NAME`",
        ),
        (
            "evenkeel os mirror --from http://127.0.0.1:1 --to oci:@/m --revision 1.0.0 --profile a",
            "http://HOST with --plain-http",
        ),
        (
            "evenkeel os bundle @/b --from https://127.0.0.1:1",
            "select revisions with `--revision ~0.3.1`",
        ),
        ("evenkeel os verify @/nothing", "a bundle, or a folder with profiles"),
        (
            "evenkeel os publish @/release --to oci:@/x --revision 0.3",
            "fix the findings and repeat the command",
        ),
    ] {
        let message = fail_line(&cli, line).await;
        assert!(message.contains(hint), "{line}: {message}");
    }
    assert!(!path_in_home(&cli, "m").exists() && !path_in_home(&cli, "x").exists());
}

#[test]
fn invalid_lines_are_rejected_before_any_request() {
    for line in [
        "evenkeel os publish release --revision 1.0.0",
        "evenkeel os publish release --to oci:x",
        "evenkeel os publish release --to ftp://x --revision 1.0.0",
        "evenkeel os publish release --to https://user:word@x --revision 1.0.0",
        "evenkeel os publish release --to oci:x --revision 1.0.0 --branch a/b",
        "evenkeel os publish release --to oci:x --revision 1.0.0 --username me",
        "evenkeel os publish release --to oci:x --revision 1.0.0 --token-file t --username me --password-file p",
        "evenkeel os mirror --from oci:x --to oci:y",
        "evenkeel os mirror --from oci:x --to oci:y --revision ~1.2.3.4",
        "evenkeel os mirror --from oci:x --to oci:y --revision 1.0.0 --to-username me",
        "evenkeel os mirror --from oci:x --to oci:y --revision 1.0.0 --proxy socks5://x",
        "evenkeel os bundle file",
        "evenkeel os bundle file --from oci:x --key k",
        "evenkeel os import file",
        "evenkeel os verify",
        "evenkeel os key",
        "evenkeel os sync --no-wait --timeout 1s",
        "evenkeel os settings --reset --revision 1.0.0",
        "evenkeel os settings --default a --no-default",
    ] {
        assert!(Cli::try_parse_from(split(line)).is_err(), "{line}");
    }
}
