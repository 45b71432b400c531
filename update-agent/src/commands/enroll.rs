//! `evenkeel-agent enroll`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::telemetry;
use tokio::time::{Instant, sleep};

use super::images::await_late;
use super::{runtime, settle};
use crate::cli::Enroll;
use crate::config::Config;
use crate::identity::{Identity, Marks};
use crate::link::{Applicant, Enrolled, GrpcLink, JoinToken, Link, LinkError, Trust};
use crate::lock::AgentLock;
use crate::modules::image::boot_control;
use crate::modules::packages::Tools;
use crate::node::{self, Node};
use crate::os::{self, BootedImage, OsRelease};
use crate::place::Place;
use crate::runner::HostRunner;
use crate::trial;

/// For how long a server may have too much to do.
const PATIENCE: Duration = Duration::from_mins(10);

/// Makes this machine a node.
pub fn enroll(arguments: &Enroll) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    telemetry::init(&config.log)?;
    let token = JoinToken::parse(&token_text(arguments)?)?;
    place.prepare()?;
    let _lock = AgentLock::take(&place.lock())?;
    forget_another(&place)?;
    let enrolled = runtime()?.block_on(apply(arguments, &token, &config, &place))?;
    writeln!(
        io::stdout(),
        "enrolled as {} ({}) in the project {}",
        enrolled.host_id,
        enrolled.instance_id,
        enrolled.project
    )?;
    Ok(ExitCode::SUCCESS)
}

/// What another machine left behind on a copy of its disk is no key of this one.
fn forget_another(place: &Place) -> anyhow::Result<()> {
    let stranger = Node::load(place)
        .ok()
        .and_then(|node| node.stranger(&Marks::of(place)));
    if let Some(stranger) = stranger {
        tracing::warn!("{stranger}");
        node::forget(place)?;
    }
    Ok(())
}

fn token_text(arguments: &Enroll) -> anyhow::Result<String> {
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

/// Debian's name of the architecture: dpkg's word, or in an image without it the kernel's.
async fn architecture(config: &Config, place: &Place) -> anyhow::Result<String> {
    if !os::has_dpkg(place) && OsRelease::of(place).booted_image().is_some() {
        return Ok(os::debian_architecture(&os::machine()).to_owned());
    }
    let tools = Tools::new(Arc::new(HostRunner::new(place.root())), config.limits());
    let architecture = tools.architecture().await;
    architecture.context("this root has no working dpkg")
}

/// The image that runs, if it is one of two that may. A machine with packages may have been made as an image, too: it
/// stays one with packages. Fails on trial: a node must not be known by an image that may be gone with the next boot.
/// Fails also where nothing but the boot partition is missing: what comes in as a machine with packages stays one.
async fn booted_image(config: &Config, place: &Place) -> anyhow::Result<Option<BootedImage>> {
    anyhow::ensure!(
        !trial::is_watched(place),
        "the image that runs is on trial, and the next boot may be one of another: enrol when that is decided, or from an \
         image whose boot entry has no counter"
    );
    let may_be_late = boot_control::may_be_late(place, &config.image);
    if may_be_late {
        await_late(place, &config.image).await;
    }
    let runner = Arc::new(HostRunner::new(place.root()));
    let has_slots = boot_control::find(place, runner, &config.image).is_some();
    anyhow::ensure!(
        has_slots || !may_be_late,
        "systemd-boot started this machine, which has two slots for images, and its boot partition is not found: see \
         that it is mounted, and enrol then"
    );
    Ok(OsRelease::of(place).booted_image().filter(|_| has_slots))
}

/// Tries until the server has less to do, each time when it says so: many machines may have been switched on together.
async fn in_time<F>(enroll: impl Fn() -> F) -> Result<Enrolled, LinkError>
where
    F: Future<Output = Result<Enrolled, LinkError>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        let again = match enroll().await {
            Err(LinkError::Busy { again, .. }) if Instant::now() + again < end => again,
            ended => return ended,
        };
        tracing::warn!(
            seconds = again.as_secs_f32(),
            "the server has too much to do for now; this is tried again"
        );
        sleep(again).await;
    }
}

async fn apply(
    arguments: &Enroll,
    token: &JoinToken,
    config: &Config,
    place: &Place,
) -> anyhow::Result<Enrolled> {
    let booted_image = booted_image(config, place).await?;
    let applicant = Applicant {
        token: token.text.clone(),
        identity: Identity::of(place, arguments.uuid)?,
        os_release: OsRelease::of(place),
        architecture: architecture(config, place).await?,
        public_key: node::public_key(place)?,
        booted_image,
    };
    let proxy = config.proxy().context("read the configuration")?;
    let (server, ca) = (&arguments.server, arguments.ca.as_deref());
    let trust = Trust::settle(server, token, ca, proxy.as_ref()).await?;
    let link = GrpcLink::new(server, &trust, proxy.as_ref(), config.call_timeout)?;
    let enrolled = in_time(|| link.enroll(&applicant)).await?;
    let ca = match &trust {
        Trust::Ca(pem) => Some(pem.as_str()),
        Trust::System => None,
    };
    node::save_ca(place, ca)?;
    node::save_credential(place, &enrolled.credential)?;
    // Last: where this is, everything else is.
    Node {
        server: arguments.server.clone(),
        uuid: applicant.identity.uuid,
        host_id: enrolled.host_id.clone(),
        instance_id: enrolled.instance_id.clone(),
        project: enrolled.project.clone(),
        credential_expires: enrolled.credential_expires,
        machine: Some(Marks::of(place)),
    }
    .save(place)?;
    Ok(enrolled)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    use evenkeel_kit::Secret;

    use super::*;

    fn write(place: &Place, path: &str, content: &str) {
        let path = place.inside(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        fs::write(path, content).expect("the file");
    }

    /// How the firmware names a variable of the loader.
    fn variable(name: &str) -> String {
        format!("/sys/firmware/efi/efivars/{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
    }

    fn enrolled() -> Enrolled {
        Enrolled {
            host_id: "host-00000001".to_owned(),
            instance_id: "inst-00000001".to_owned(),
            project: "default".to_owned(),
            credential: Secret::new("a credential".to_owned()),
            credential_expires: None,
        }
    }

    fn busy(seconds: u64) -> LinkError {
        LinkError::Busy {
            again: Duration::from_secs(seconds),
            why: "many come at once".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_comes_again_when_the_server_says_so() {
        let tries = AtomicU32::new(0);
        let begun = Instant::now();
        let found = in_time(async || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(busy(30)),
            1 => Err(busy(7)),
            _ => Ok(enrolled()),
        });
        assert_eq!(found.await.unwrap().host_id, "host-00000001");
        assert_eq!(begun.elapsed().as_secs(), 37);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_does_not_wait_for_ever_nor_for_a_refusal() {
        let begun = Instant::now();
        let refused = in_time(async || Err(busy(50))).await;
        assert!(matches!(refused, Err(LinkError::Busy { .. })));
        assert_eq!(begun.elapsed().as_secs(), 550);
        let refused = in_time(async || Err(LinkError::Denied("a token".to_owned()))).await;
        assert!(matches!(refused, Err(LinkError::Denied(_))));
        assert_eq!(begun.elapsed().as_secs(), 550);
    }

    #[tokio::test]
    async fn a_machine_says_which_image_it_runs_only_if_it_has_slots_for_them() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let mut config = Config::default();
        let made_by_mkosi = "ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION=1.0\n";
        write(&place, "/etc/os-release", made_by_mkosi);
        assert_eq!(booted_image(&config, &place).await.unwrap(), None);

        config.image.tool = Some("/usr/bin/os-update-tool.sh".into());
        let image = booted_image(&config, &place).await.unwrap().unwrap();
        assert_eq!(image.profile_name, "edge");
        assert_eq!(image.image_id, "1.0");

        write(&place, "/etc/os-release", "ID=debian\n");
        assert_eq!(booted_image(&config, &place).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_with_slots_does_not_enrol_without_its_boot_partition() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let config = Config::default();
        let made_by_mkosi = "ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION=1.0\n";
        write(&place, "/etc/os-release", made_by_mkosi);
        for (number, label) in [(2, "root-a"), (3, "root-b")] {
            let uevent = format!("DEVNAME=vda{number}\nPARTNAME={label}\n");
            write(
                &place,
                &format!("/sys/class/block/vda{number}/uevent"),
                &uevent,
            );
        }
        // Started by no loader that the agent knows: nothing is waited for.
        assert_eq!(booted_image(&config, &place).await.unwrap(), None);

        let loader: String = "systemd-boot 252".chars().flat_map(|c| [c, '\0']).collect();
        let loader = format!("\u{7}\0\0\0{loader}\0\0");
        write(&place, &variable("LoaderInfo"), &loader);
        let error = booted_image(&config, &place).await.unwrap_err();
        assert!(error.to_string().contains("boot partition"), "{error}");

        write(&place, "/efi/EFI/systemd/systemd-bootx64.efi", "MZ");
        write(&place, "/efi/loader/loader.conf", "");
        let mount = "23 22 254:1 / /efi rw - vfat /dev/vda1 rw\n";
        write(&place, "/proc/self/mountinfo", mount);
        let image = booted_image(&config, &place).await.unwrap().unwrap();
        assert_eq!(image.image_id, "1.0");
    }

    #[tokio::test]
    async fn no_machine_enrols_from_an_image_on_trial() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let config = Config::default();
        write(&place, &variable("LoaderBootCountPath"), "");
        let error = booted_image(&config, &place).await.unwrap_err();
        assert!(error.to_string().contains("is on trial"), "{error}");
        // The trial is over, and this boot goes on.
        write(&place, "/run/evenkeel/trial-over", "");
        assert_eq!(booted_image(&config, &place).await.unwrap(), None);
    }
}
