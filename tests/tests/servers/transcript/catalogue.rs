//! An operator publishes operating systems, and the project selects some of them.

use std::fs;
use std::path::Path;

use super::Story;

/// Settings of the server: a folder in the operator's home is a registry.
pub fn settings(home: &Path) -> String {
    let address = format!("oci:{}", home.join("registry").display());
    let registry = format!("address = {address:?}\ntrust = \"off\"\n");
    format!(
        "[maintenance_manager]\ncontact_write_interval = \"1s\"\n\
         [os_resource_manager]\nat_start = false\n[os_resource_manager.registries.release]\n{registry}"
    )
}

/// Publishes operating systems, and syncs the project with them.
pub async fn run_part(story: &mut Story) {
    story.part("Operating systems from a registry");
    let home = story.home.path().to_owned();
    let release = home.join("release");
    fs::create_dir(&release).expect("a folder");
    for profile in ["edge", "edge-rt"] {
        write_profile(&release, profile, "metadata:\n  release: unset\n");
    }
    let home = home.display();
    let publish = format!("evenkeel os publish {home}/release --to oci:{home}/registry --revision");
    for line in [
        format!("{publish} 1.0.1 --dry-run"),
        format!("{publish} 1.0.1 --branch main"),
        "evenkeel os settings".to_owned(),
    ] {
        story.run(&line).await;
    }
    story.fail("evenkeel os sync").await;
    for line in [
        "evenkeel os settings --registry release --revision '~1.0' --enable edge --enable edge-rt --default edge",
        "evenkeel os sync",
        "evenkeel os list --order-by name",
    ] {
        story.run(line).await;
    }
    fs::write(release.join("edge.raw"), "another image").expect("an image");
    story.fail(&format!("{publish} 1.0.1")).await;
    write_profile(&release, "edge-rt", "metadata:\n  Release: upper case\n");
    story.fail(&format!("{publish} 1.0.2")).await;
    let missing = "evenkeel os settings --enable edge --enable edge-xt";
    story.run_unrecorded(missing).await;
    story.run_unrecorded("evenkeel os sync").await;
    for line in [
        "evenkeel os sync-report".to_owned(),
        format!("evenkeel os verify oci:{home}/registry --profile edge"),
        format!("evenkeel os bundle {home}/site.tar --from oci:{home}/registry --revision '~1.0'"),
        format!("evenkeel os import {home}/site.tar --to oci:{home}/site"),
    ] {
        story.run(&line).await;
    }
}

/// Writes a profile and its files into a folder.
fn write_profile(release: &Path, profile: &str, metadata: &str) {
    let yaml = format!(
        "{metadata}spec:\n  name: {profile} 3.0.1\n  type: OS_TYPE_IMMUTABLE\n  \
         provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
         osImageUrl: images/{profile}.raw\n  osImageVersion: 3.0.1\n  \
         osPackageManifestURL: images/{profile}.json\n  securityFeature: SECURITY_FEATURE_NONE\n"
    );
    let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
    for (end, content) in [("yaml", yaml.as_str()), ("raw", profile), ("json", packages)] {
        fs::write(release.join(format!("{profile}.{end}")), content).expect("a file");
    }
}
