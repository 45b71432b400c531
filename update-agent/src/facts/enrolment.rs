//! Facts that a machine states when it enrols.

use std::sync::Arc;

use anyhow::Context;

use crate::config::Config;
use crate::modules::image::boot_control;
use crate::modules::packages::PackageTools;
use crate::os::{self, BootedImage, OsRelease};
use crate::paths::AgentPaths;
use crate::runner::HostRunner;
use crate::trial::{self, startup};

/// Debian's architecture name: from dpkg, or from the kernel in an image without dpkg.
pub async fn detect_architecture(config: &Config, paths: &AgentPaths) -> anyhow::Result<String> {
    if !os::has_dpkg(paths) && OsRelease::read(paths).booted_image().is_some() {
        return Ok(os::debian_architecture(&os::machine()).to_owned());
    }
    let tools =
        PackageTools::new(Arc::new(HostRunner::new(paths.root())), config.package_tool_timeouts());
    let architecture = tools.architecture().await;
    architecture.context("this root has no working dpkg")
}

/// The running image, if the machine has two image slots; otherwise the machine is managed by
/// packages, even if it was installed from an image. Fails during a trial, because the next boot
/// may run another image. Also fails if the machine has slots but its boot partition is missing or a
/// slot is ambiguous: it would be registered as managed by packages for good.
pub async fn detect_booted_image(
    config: &Config,
    paths: &AgentPaths,
) -> anyhow::Result<Option<BootedImage>> {
    anyhow::ensure!(
        !trial::is_watched(paths),
        "the running image is on trial, and the next boot may run another one: enrol after the trial, or from an image \
         whose boot entry has no counter"
    );
    let may_be_late = boot_control::esp_may_be_late(paths, &config.image);
    if may_be_late {
        startup::wait_for_boot_partition(paths, &config.image).await;
    }
    let runner = Arc::new(HostRunner::new(paths.root()));
    let has_slots = boot_control::find(paths, runner, &config.image)?.is_some();
    anyhow::ensure!(
        has_slots || !may_be_late,
        "this machine was started by systemd-boot and has two image slots, but its boot partition is not found: mount \
         it, then enrol again"
    );
    Ok(OsRelease::read(paths).booted_image().filter(|_| has_slots))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(paths: &AgentPaths, path: &str, content: &str) {
        let path = paths.inside(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(path, content).expect("the file");
    }

    /// Path of a variable of the boot loader.
    fn loader_variable(name: &str) -> String {
        format!("/sys/firmware/efi/efivars/{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
    }

    #[tokio::test]
    async fn a_booted_image_is_reported_only_by_machines_with_slots() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let mut config = Config::default();
        let made_by_mkosi = "ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION=1.0\n";
        write(&paths, "/etc/os-release", made_by_mkosi);
        assert_eq!(detect_booted_image(&config, &paths).await.unwrap(), None);

        config.image.tool = Some("/usr/bin/os-update-tool.sh".into());
        let image = detect_booted_image(&config, &paths).await.unwrap().unwrap();
        assert_eq!(image.profile_name, "edge");
        assert_eq!(image.image_id, "1.0");

        write(&paths, "/etc/os-release", "ID=debian\n");
        assert_eq!(detect_booted_image(&config, &paths).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_with_slots_does_not_enrol_without_its_boot_partition() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let config = Config::default();
        let made_by_mkosi = "ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION=1.0\n";
        write(&paths, "/etc/os-release", made_by_mkosi);
        for (number, label) in [(2, "root-a"), (3, "root-b")] {
            let uevent = format!("DEVNAME=vda{number}\nPARTNAME={label}\n");
            write(&paths, &format!("/sys/class/block/vda{number}/uevent"), &uevent);
        }
        write(&paths, "/proc/cmdline", "root=PARTLABEL=root-a\n");
        // The loader is unknown to the agent, so there is nothing to wait for.
        assert_eq!(detect_booted_image(&config, &paths).await.unwrap(), None);

        let loader: String = "systemd-boot 252".chars().flat_map(|c| [c, '\0']).collect();
        let loader = format!("\u{7}\0\0\0{loader}\0\0");
        write(&paths, &loader_variable("LoaderInfo"), &loader);
        let error = detect_booted_image(&config, &paths).await.unwrap_err();
        assert!(error.to_string().contains("boot partition"), "{error}");

        write(&paths, "/efi/EFI/systemd/systemd-bootx64.efi", "MZ");
        write(&paths, "/efi/loader/loader.conf", "");
        let mount = "23 22 254:1 / /efi rw - vfat /dev/vda1 rw\n";
        write(&paths, "/proc/self/mountinfo", mount);
        let image = detect_booted_image(&config, &paths).await.unwrap().unwrap();
        assert_eq!(image.image_id, "1.0");
    }

    #[tokio::test]
    async fn no_machine_enrols_from_an_image_on_trial() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let config = Config::default();
        write(&paths, &loader_variable("LoaderBootCountPath"), "");
        let error = detect_booted_image(&config, &paths).await.unwrap_err();
        assert!(error.to_string().contains("is on trial"), "{error}");
        // The trial has ended, and this boot continues.
        write(&paths, "/run/evenkeel/trial-over", "");
        assert_eq!(detect_booted_image(&config, &paths).await.unwrap(), None);
    }
}
