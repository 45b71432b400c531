//! Operating systems are published, looked at and moved, without a server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use evenkeel_cli::Ending;
use evenkeel_cli::args::Cli;
use serde_json::Value;

use crate::{Desk, split, told};

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

/// A desk in whose home lies a folder that can be published.
async fn desk() -> Desk {
    let desk = Desk::new().await;
    let folder = desk.home.path().join("release");
    fs::create_dir(&folder).expect("a folder");
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    for (name, content) in [
        ("microvisor-nonrt.yaml", PROFILE),
        ("edge.raw.gz", "the image"),
        ("packages.json", packages),
    ] {
        fs::write(folder.join(name), content).expect("written");
    }
    desk
}

fn at(desk: &Desk, name: &str) -> PathBuf {
    desk.home.path().join(name)
}

/// What is said to a line in which `@` stands for the home. It must work.
async fn typed(desk: &Desk, line: &str) -> (String, Ending) {
    let home = desk.home.path().display().to_string();
    match desk.bare(&line.replace('@', &home), "").await {
        Ok((text, ending)) => (text.replace(&home, "@"), ending),
        Err(failure) => panic!("{line}: {}", told(&failure)),
    }
}

/// What is said to a line that must not work.
async fn refused(desk: &Desk, line: &str) -> String {
    let home = desk.home.path().display().to_string();
    let failure = desk.bare(&line.replace('@', &home), "").await;
    let failure = failure.expect_err(line);
    let chain = evenkeel_kit::chain(&failure).to_string();
    let hint = failure.hint().unwrap_or_default();
    format!("{chain}\nhint: {hint}").replace(&home, "@")
}

/// Everything below a folder, with its content.
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
async fn a_release_goes_from_a_folder_to_a_site_without_a_network() {
    let desk = desk().await;
    let (made, _) = typed(&desk, "evenkeel os key @/key").await;
    assert!(made.contains("public half  @/key.pub\n"), "{made}");
    let (said, _) = typed(
        &desk,
        &format!("{PUBLISH} --branch main --key @/key --dry-run"),
    )
    .await;
    insta::assert_snapshot!(said);
    assert!(!at(&desk, "shelf").exists(), "nothing was published");
    let (said, _) = typed(&desk, &format!("{PUBLISH} --branch main --key @/key")).await;
    assert!(
        said.contains("0.3.1 is published to oci:@/shelf, signed\n"),
        "{said}"
    );

    let line = "evenkeel os bundle @/site.tar --from oci:@/shelf --prefix os/ --revision ~0.3";
    let (said, ending) = typed(&desk, line).await;
    assert_eq!(ending, Ending::Done, "{said}");
    assert!(
        !at(&desk, "site.tar.work").exists(),
        "what was gathered is gone"
    );
    let import = "evenkeel os import @/site.tar --to oci:@/site";
    let (said, _) = typed(&desk, &format!("{import} --dry-run")).await;
    assert!(
        said.contains("os/microvisor-nonrt        0.3.1  new\n"),
        "{said}"
    );
    assert!(!at(&desk, "site").exists(), "nothing was imported");
    let (said, ending) = typed(&desk, import).await;
    assert_eq!(ending, Ending::Done);
    insta::assert_snapshot!(said);
    assert!(
        !at(&desk, "site.tar.unpacked").exists(),
        "what was unpacked is gone"
    );

    for what in ["oci:@/site", "@/site", "@/site.tar"] {
        let line = format!("evenkeel os verify {what} --prefix os/ --key @/key.pub");
        let (said, ending) = typed(&desk, &line).await;
        assert_eq!(ending, Ending::Done, "{said}");
        assert!(said.contains("0.3.1  good"), "{said}");
    }
}

#[tokio::test]
async fn a_mirror_copies_what_is_new_and_says_so_before() {
    let desk = desk().await;
    typed(&desk, PUBLISH).await;
    let mirror = "evenkeel os mirror --from oci:@/shelf --to oci:@/mirror --work @/work --prefix os/ --revision 0.3.1";
    let (said, _) = typed(&desk, &format!("{mirror} --dry-run")).await;
    assert!(said.contains("os/microvisor-nonrt  0.3.1  new\n"), "{said}");
    let (said, ending) = typed(&desk, &format!("{mirror} -o json")).await;
    let copied: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((ending, &copied["revisions"]), (Ending::Done, &1.into()));
    assert_eq!(copied["findings"], Value::Array(Vec::new()));
    assert!(!at(&desk, "work").exists(), "nothing is left of it");
    let (said, _) = typed(&desk, &format!("{mirror} -o json")).await;
    let again: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(again["blobs"], 0);
    let (said, _) = typed(&desk, &format!("{mirror} --dry-run")).await;
    assert!(said.contains("there already\n"), "{said}");
    insta::assert_snapshot!(refused(&desk, &mirror.replace("0.3.1", "0.9.0")).await);
}

#[tokio::test]
async fn a_revision_is_published_once_unless_it_is_moved() {
    let desk = desk().await;
    typed(&desk, PUBLISH).await;
    typed(&desk, PUBLISH).await;
    fs::write(at(&desk, "release/edge.raw.gz"), "another image").expect("written");
    let said = refused(&desk, PUBLISH).await;
    assert!(
        said.contains("is there already with other contents"),
        "{said}"
    );
    assert!(said.contains("--move puts it in the place"), "{said}");
    typed(&desk, &format!("{PUBLISH} --move")).await;
    let said = refused(&desk, &format!("{PUBLISH} --branch 0.3.2")).await;
    assert!(
        said.contains("hint: --branch is for names such as main"),
        "{said}"
    );
}

#[tokio::test]
async fn all_that_is_wrong_with_a_folder_is_told_at_once() {
    let desk = desk().await;
    fs::write(at(&desk, "release/packages.json"), "<html>").expect("written");
    fs::write(at(&desk, "release/other.yaml"), "spec: [").expect("written");
    let said = refused(&desk, PUBLISH).await;
    assert!(
        said.starts_with("@/release cannot be published:\n  "),
        "{said}"
    );
    assert!(said.contains("packages.json"), "{said}");
    assert!(said.contains("other.yaml"), "{said}");
    let (said, ending) = typed(&desk, "evenkeel os verify @/release").await;
    assert_eq!(ending, Ending::SyncNotGood);
    assert!(said.contains("packages.json"), "{said}");
    assert!(!at(&desk, "shelf").exists(), "nothing was published");
}

#[tokio::test]
async fn what_is_wrong_in_a_registry_is_found() {
    let desk = desk().await;
    for name in ["ours", "theirs"] {
        typed(&desk, &format!("evenkeel os key @/{name}")).await;
    }
    typed(&desk, &format!("{PUBLISH} --key @/ours")).await;
    let verify = "evenkeel os verify oci:@/shelf --prefix os/";
    let (said, ending) = typed(&desk, &format!("{verify} --key @/theirs.pub")).await;
    assert_eq!(ending, Ending::SyncNotGood);
    assert!(
        said.contains("bad_signature: os/microvisor-nonrt: it was not signed by any of the keys"),
        "{said}"
    );
    // A byte of the image changes on the disk.
    let blobs = content(&at(&desk, "shelf"));
    let image = blobs.iter().find(|(_, content)| content == b"the image");
    let (image, _) = image.expect("the image");
    fs::write(image, "the imagf").expect("written");
    let (said, ending) = typed(&desk, verify).await;
    assert_eq!(ending, Ending::SyncNotGood);
    let wrong = "os/microvisor-nonrt:0.3.1: wrong_digest: files/non_rt/edge.raw.gz: it should have";
    assert!(said.contains(wrong), "{said}");
    let (said, ending) = typed(&desk, &format!("{verify} --no-images -o json")).await;
    let looked: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((ending, &looked[0]["tag"]), (Ending::Done, &"0.3.1".into()));
}

#[tokio::test]
async fn what_is_there_is_signed_by_another_key_too() {
    let desk = desk().await;
    for name in ["old", "new"] {
        typed(&desk, &format!("evenkeel os key @/{name}")).await;
    }
    typed(&desk, &format!("{PUBLISH} --key @/old")).await;
    let again =
        "evenkeel os mirror --from oci:@/shelf --to oci:@/shelf --prefix os/ --revision 0.3.1";
    typed(&desk, &format!("{again} --work @/work --key @/new")).await;
    for name in ["old", "new"] {
        let line = format!("evenkeel os verify @/shelf --prefix os/ --key @/{name}.pub");
        let (said, ending) = typed(&desk, &line).await;
        assert_eq!(ending, Ending::Done, "{said}");
    }
}

#[tokio::test]
async fn a_bundle_that_is_not_whole_changes_nothing() {
    let desk = desk().await;
    typed(&desk, PUBLISH).await;
    typed(&desk, "evenkeel os bundle @/all.tar --from oci:@/shelf").await;
    let whole = fs::read(at(&desk, "all.tar")).expect("a bundle");
    fs::write(at(&desk, "cut.tar"), &whole[..whole.len() / 2]).expect("written");
    let before = content(&at(&desk, "shelf"));
    let said = refused(&desk, "evenkeel os import @/cut.tar --to oci:@/shelf").await;
    assert_eq!(
        said,
        "cannot unpack @/cut.tar: the bundle cannot be used: it is cut off, or no bundle at all\n\
         hint: nothing was changed; copy the bundle once more from where it was made"
    );
    assert_eq!(content(&at(&desk, "shelf")), before);
    assert!(
        !at(&desk, "cut.tar.unpacked").exists(),
        "what was unpacked is gone"
    );
}

#[tokio::test]
async fn what_somebody_else_keeps_where_a_bundle_is_unpacked_stays() {
    let desk = desk().await;
    typed(&desk, PUBLISH).await;
    typed(&desk, "evenkeel os bundle @/all.tar --from oci:@/shelf").await;
    let folder = at(&desk, "all.tar.unpacked");
    fs::create_dir_all(folder.join("blobs/sha256")).expect("a folder");
    let import = "evenkeel os import @/all.tar --to oci:@/site";
    let (_, ending) = typed(&desk, import).await;
    assert_eq!(ending, Ending::Done, "an import that was killed left it");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("diary"), "dear").expect("written");
    let said = refused(&desk, import).await;
    assert!(said.contains("name another folder with --work"), "{said}");
    assert!(folder.join("diary").exists());
    fs::create_dir(at(&desk, "room")).expect("a folder");
    let (_, ending) = typed(&desk, &format!("{import} --work @/room")).await;
    assert_eq!(ending, Ending::Done);
    assert_eq!(content(&at(&desk, "room")), []);
}

#[tokio::test]
async fn a_key_is_never_replaced_and_only_its_owner_reads_it() {
    let desk = desk().await;
    typed(&desk, "evenkeel os key @/key").await;
    let mode = fs::metadata(at(&desk, "key"))
        .expect("a key")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let public = fs::read_to_string(at(&desk, "key.pub")).expect("its half");
    let (said, _) = typed(&desk, "evenkeel os key @/key --public").await;
    assert_eq!(said, public);
    let said = refused(&desk, "evenkeel os key @/key").await;
    assert!(said.starts_with("@/key is there already\n"), "{said}");
    // Its public half is in the way: then there is no key either.
    fs::write(at(&desk, "other.pub"), "").expect("written");
    refused(&desk, "evenkeel os key @/other").await;
    assert!(!at(&desk, "other").exists(), "half a pair");
}

#[tokio::test]
async fn what_cannot_be_meant_is_told_with_what_could() {
    let desk = desk().await;
    for (line, hint) in [
        (
            "evenkeel os mirror --from https://127.0.0.1:1 --to oci:@/m --revision 1.0.0",
            "name them: `--profile NAME`, as often as needed",
        ),
        (
            "evenkeel os mirror --from http://127.0.0.1:1 --to oci:@/m --revision 1.0.0 --profile a",
            "http://HOST with --plain-http",
        ),
        (
            "evenkeel os bundle @/b --from https://127.0.0.1:1",
            "say which revisions: `--revision ~0.3.1`",
        ),
        (
            "evenkeel os verify @/nothing",
            "a bundle, or a folder with profiles",
        ),
        (
            "evenkeel os publish @/release --to oci:@/x --revision 0.3",
            "mend these and run it again",
        ),
    ] {
        let said = refused(&desk, line).await;
        assert!(said.contains(hint), "{line}: {said}");
    }
    assert!(!at(&desk, "m").exists() && !at(&desk, "x").exists());
}

#[test]
fn lines_that_make_no_sense_are_refused_before_anything_is_asked() {
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
