//! `evenkeel-agent enroll`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::telemetry;
use tokio::time::{Instant, sleep};

use super::images::wait_for_boot_partition;
use super::{build_runtime, load_config};
use crate::agent_lock::AgentLock;
use crate::cli::EnrollArgs;
use crate::config::Config;
use crate::identity::{Identity, MachineMarks};
use crate::link::{Applicant, Enrollment, GrpcLink, JoinToken, LinkError, ServerLink, Trust};
use crate::modules::image::boot_control;
use crate::modules::packages::PackageTools;
use crate::node::{self, Node};
use crate::os::{self, BootedImage, OsRelease};
use crate::paths::AgentPaths;
use crate::runner::HostRunner;
use crate::trial;

/// How long an overloaded server is tried again.
const MAX_BUSY_TIME: Duration = Duration::from_mins(10);

/// Enrols this machine as a node.
pub fn enroll(arguments: &EnrollArgs) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    telemetry::init(&config.log)?;
    let token = JoinToken::parse(&token_text(arguments)?)?;
    paths.prepare()?;
    let _lock = AgentLock::acquire(&paths.lock())?;
    forget_copied_identity(&paths)?;
    let enrolled = build_runtime()?.block_on(enroll_machine(arguments, &token, &config, &paths))?;
    writeln!(
        io::stdout(),
        "enrolled as {} ({}) in the project {}",
        enrolled.host_id,
        enrolled.instance_id,
        enrolled.project
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the identity that a copied disk has brought from another machine.
fn forget_copied_identity(paths: &AgentPaths) -> anyhow::Result<()> {
    let mismatch = Node::load(paths)
        .ok()
        .and_then(|node| node.identity_mismatch(&MachineMarks::detect(paths)));
    if let Some(mismatch) = mismatch {
        tracing::warn!("{mismatch}");
        node::forget_identity(paths)?;
    }
    Ok(())
}

fn token_text(arguments: &EnrollArgs) -> anyhow::Result<String> {
    if let Some(token) = &arguments.token {
        return Ok(token.clone());
    }
    let path = arguments.token_file.as_deref().unwrap_or(Path::new("-"));
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text =
        text.with_context(|| format!("cannot read the join token from {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Debian's architecture name: from dpkg, or from the kernel in an image without dpkg.
async fn detect_architecture(config: &Config, paths: &AgentPaths) -> anyhow::Result<String> {
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
/// may run another image. Also fails if the machine has slots but its boot partition is missing: it
/// would be registered as managed by packages for good.
async fn detect_booted_image(
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
        wait_for_boot_partition(paths, &config.image).await;
    }
    let runner = Arc::new(HostRunner::new(paths.root()));
    let has_slots = boot_control::find(paths, runner, &config.image).is_some();
    anyhow::ensure!(
        has_slots || !may_be_late,
        "this machine was started by systemd-boot and has two image slots, but its boot partition is not found: mount \
         it, then enrol again"
    );
    Ok(OsRelease::read(paths).booted_image().filter(|_| has_slots))
}

/// Retries while the server is overloaded, each time after the delay that the server requests.
async fn retry_while_busy<F>(enroll: impl Fn() -> F) -> Result<Enrollment, LinkError>
where
    F: Future<Output = Result<Enrollment, LinkError>>,
{
    let end = Instant::now() + MAX_BUSY_TIME;
    loop {
        let again = match enroll().await {
            Err(LinkError::Busy { retry_after: again, .. }) if Instant::now() + again < end => {
                again
            }
            ended => return ended,
        };
        tracing::warn!(seconds = again.as_secs_f32(), "the server is overloaded, trying again");
        sleep(again).await;
    }
}

async fn enroll_machine(
    arguments: &EnrollArgs,
    token: &JoinToken,
    config: &Config,
    paths: &AgentPaths,
) -> anyhow::Result<Enrollment> {
    let booted_image = detect_booted_image(config, paths).await?;
    let applicant = Applicant {
        token: token.text.clone(),
        identity: Identity::detect(paths, arguments.uuid)?,
        os_release: OsRelease::read(paths),
        architecture: detect_architecture(config, paths).await?,
        public_key: node::public_key(paths)?,
        booted_image,
    };
    let proxy = config.proxy().context("read the configuration")?;
    let (server, ca) = (&arguments.server, arguments.ca.as_deref());
    let trust = Trust::resolve(server, token, ca, proxy.as_ref()).await?;
    let link = GrpcLink::new(server, &trust, proxy.as_ref(), config.call_timeout)?;
    let enrolled = retry_while_busy(|| link.enroll(&applicant)).await?;
    let ca = match &trust {
        Trust::Ca(pem) => Some(pem.as_str()),
        Trust::System => None,
    };
    node::save_ca(paths, ca)?;
    node::save_credential(paths, &enrolled.credential)?;
    // Written last: if this file exists, all others exist.
    Node {
        server: arguments.server.clone(),
        uuid: applicant.identity.uuid,
        host_id: enrolled.host_id.clone(),
        instance_id: enrolled.instance_id.clone(),
        project: enrolled.project.clone(),
        credential_expires: enrolled.credential_expires,
        machine: Some(MachineMarks::detect(paths)),
    }
    .save(paths)?;
    Ok(enrolled)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    use evenkeel_kit::Secret;

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

    fn enrollment() -> Enrollment {
        Enrollment {
            host_id: "host-00000001".to_owned(),
            instance_id: "inst-00000001".to_owned(),
            project: "default".to_owned(),
            credential: Secret::new("a credential".to_owned()),
            credential_expires: None,
        }
    }

    fn busy(seconds: u64) -> LinkError {
        LinkError::Busy {
            retry_after: Duration::from_secs(seconds),
            message: "too many requests".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn enrolment_is_retried_after_the_servers_delay() {
        let tries = AtomicU32::new(0);
        let begun = Instant::now();
        let result = retry_while_busy(async || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(busy(30)),
            1 => Err(busy(7)),
            _ => Ok(enrollment()),
        });
        assert_eq!(result.await.unwrap().host_id, "host-00000001");
        assert_eq!(begun.elapsed().as_secs(), 37);
    }

    #[tokio::test(start_paused = true)]
    async fn enrolment_gives_up_in_time_and_at_once_when_refused() {
        let begun = Instant::now();
        let refused = retry_while_busy(async || Err(busy(50))).await;
        assert!(matches!(refused, Err(LinkError::Busy { .. })));
        assert_eq!(begun.elapsed().as_secs(), 550);
        let refused = retry_while_busy(async || Err(LinkError::Denied("a token".to_owned()))).await;
        assert!(matches!(refused, Err(LinkError::Denied(_))));
        assert_eq!(begun.elapsed().as_secs(), 550);
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
