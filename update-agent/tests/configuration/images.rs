//! A change of an image uses nothing of the machine that it runs on.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::apply::{apply, open_image};
use crate::image_root::{ImageRoot, document, text};

const MOTD: &str = "{component: File, name: /etc/motd}";

fn apply_with_config(image: &ImageRoot, config: &Path, document: &str) -> Option<i32> {
    let output = apply(image, &["--config", config.to_str().unwrap()], document);
    output.status.code()
}

#[test]
fn the_state_of_one_image_is_not_used_for_another_one() {
    let (Some(one), Some(other)) = (open_image(), open_image()) else { return };
    let host = tempfile::tempdir().unwrap();
    let state = host.path().join("state");
    let config = host.path().join("agent.toml");
    fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
    assert_eq!(apply_with_config(&one, &config, &document(MOTD)), Some(0));
    let own = other.write("etc/motd", "by its owner");
    assert_eq!(apply_with_config(&other, &config, "bundles: []"), Some(0));
    assert!(own.exists(), "nobody else has written it");
    assert!(!state.exists());
    assert_eq!(apply_with_config(&one, &config, "bundles: []"), Some(0));
    assert!(!one.path().join("etc/motd").exists());
}

#[test]
fn a_state_directory_belongs_to_one_image() {
    let (Some(one), Some(other)) = (open_image(), open_image()) else { return };
    let state = tempfile::tempdir().unwrap();
    let options = ["--state-dir", state.path().to_str().unwrap()];
    assert_eq!(apply(&one, &options, &document(MOTD)).status.code(), Some(0));
    other.write("etc/motd", "by its owner");
    let refused = apply(&other, &options, "bundles: []");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("belongs to another machine"), "{refused:?}");
    assert!(other.path().join("etc/motd").exists());
    assert_eq!(apply(&one, &options, "bundles: []").status.code(), Some(0));
    assert!(!one.path().join("etc/motd").exists());
}

#[test]
fn links_of_an_image_do_not_lead_to_the_machine() {
    for link in ["var/lib/evenkeel-agent", "etc/evenkeel", "var/lib/dpkg"] {
        let Some(image) = open_image() else { return };
        let host = tempfile::tempdir().unwrap();
        let limits = "[configuration]\nactions = [\"all\"]\n";
        fs::write(host.path().join("limits.toml"), limits).unwrap();
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_dir_all(image.path().join(link)).ok();
        symlink(host.path(), image.path().join(link)).unwrap();
        let output = apply(&image, &[], &document(MOTD));
        assert_eq!(output.status.code(), Some(1), "{link}: {output:?}");
        assert!(text(&output.stderr).contains("which is not in the image"), "{output:?}");
        let mode = fs::metadata(host.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{link}");
        assert_eq!(fs::read_dir(host.path()).unwrap().count(), 1, "{link}");
        assert!(!image.path().join("etc/motd").exists());
    }
}

#[test]
fn a_document_must_not_change_the_limits() {
    let Some(image) = open_image() else { return };
    let entry = "{component: File, name: /etc/evenkeel/limits.toml}";
    let output = apply(&image, &[], &document(&format!("{MOTD}, {entry}")));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("nothing was changed: File /etc/evenkeel/limits.toml"));
    assert!(!image.path().join("etc/motd").exists());
}
