//! `evenkeel-agent enroll`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::telemetry;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{build_runtime, load_config};
use crate::agent_lock::AgentLock;
use crate::cli::EnrollArgs;
use crate::config::{Config, check_password_file};
use crate::durable;
use crate::facts;
use crate::identity::{Identity, MachineMarks};
use crate::link::{
    Applicant, Enrollment, GrpcLink, JoinToken, LinkError, ServerLink, TimeFloor, Trust,
};
use crate::module_registry::ModuleRegistry;
use crate::needrestart::{NEEDRESTART_NOTE, has_needrestart};
use crate::node::{self, Node, NodeCertificates, NodeError};
use crate::os::OsRelease;
use crate::other_updaters::{OtherUpdaters, OtherUpdatersMode};
use crate::paths::AgentPaths;

/// How long an overloaded server is tried again.
const MAX_BUSY_TIME: Duration = Duration::from_mins(10);

/// Enrols this machine as a node.
pub fn enroll(arguments: &EnrollArgs) -> anyhow::Result<ExitCode> {
    let (config, paths) = load_config(&arguments.paths)?;
    telemetry::init(&config.log)?;
    let token = JoinToken::parse(&token_text(arguments)?)?;
    anyhow::ensure!(
        !(arguments.take_over && config.other_updaters.mode == Some(OtherUpdatersMode::Coexist)),
        "--take-over contradicts `mode = \"coexist\"` in [other_updaters] of the configuration; remove one of them"
    );
    check_password_file(arguments.paths.config.as_deref()).map_err(anyhow::Error::msg)?;
    paths.prepare()?;
    let _lock = AgentLock::acquire(&paths.lock())?;
    let runtime = build_runtime()?;
    let enrolled = runtime.block_on(enroll_machine(arguments, &token, &config, &paths))?;
    let mut out = io::stdout();
    writeln!(
        out,
        "enrolled as {} ({}) in the project {}",
        enrolled.host_id, enrolled.instance_id, enrolled.project
    )?;
    let updaters = ModuleRegistry::new(&config, &paths).other_updaters();
    runtime.block_on(handle_other_updaters(arguments, &updaters, &mut out))?;
    note_needrestart(&paths, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Disables other update programs if that was requested, and prints those that stay active.
async fn handle_other_updaters(
    arguments: &EnrollArgs,
    updaters: &OtherUpdaters,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if arguments.take_over {
        let taken = updaters.take_over().await;
        taken.context(
            "the machine is enrolled, but other update programs could not be disabled; run `evenkeel-agent doctor`",
        )?;
    }
    for updater in updaters.find().await {
        let effect = match (updater.advice, updaters.is_take_over()) {
            ("", true) => "the agent disables it when it starts",
            ("", false) => "--take-over would disable it",
            (advice, _) => advice,
        };
        writeln!(out, "note: {updater}; {effect}")?;
    }
    if updaters.is_take_over() {
        for work in updaters.find_unfinished_work().await {
            writeln!(out, "note: {work}")?;
        }
    }
    Ok(())
}

/// Says what the agent changes about the restarts of services, if needrestart is installed.
fn note_needrestart(paths: &AgentPaths, out: &mut impl Write) -> io::Result<()> {
    if has_needrestart(paths) { writeln!(out, "note: {NEEDRESTART_NOTE}") } else { Ok(()) }
}

/// Removes the identity that a copied disk has brought from another machine. Nothing distinguishes some copies, such as a
/// container with the machine ID of the original: with another UUID, the machine gets a key of its own.
fn forget_copied_identity(paths: &AgentPaths, uuid: Option<Uuid>) -> anyhow::Result<()> {
    let Ok(node) = Node::load(paths) else {
        return Ok(());
    };
    let other = uuid.filter(|uuid| *uuid != node.uuid);
    let reason = match other {
        Some(uuid) => Some(format!(
            "this machine was enrolled as {} with the UUID {}: it enrols with the UUID {uuid} as another machine",
            node.host_id, node.uuid
        )),
        None => node.identity_mismatch(&MachineMarks::detect(paths)),
    };
    if let Some(reason) = reason {
        tracing::warn!("{reason}");
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
    let booted_image = facts::detect_booted_image(config, paths).await?;
    let proxy = config.checked_proxy().context("read the configuration")?;
    let (server, ca) = (&arguments.server, arguments.ca.as_deref());
    let trust = Trust::resolve(server, token, ca, proxy.as_ref()).await?;
    // As late as possible: until then, a wrong address or a missing boot partition costs nothing.
    forget_copied_identity(paths, arguments.uuid)?;
    let certificates = NodeCertificates::none(paths);
    let applicant = Applicant {
        token: token.text.clone(),
        identity: Identity::detect(paths, arguments.uuid)?,
        os_release: OsRelease::read(paths),
        architecture: facts::detect_architecture(config, paths).await?,
        requests: certificates.requests().await?,
        booted_image,
    };
    // A clock that is lost before the first poll must not make the server's certificate invalid.
    let floor = Arc::new(TimeFloor::for_enrolment(paths));
    let link = GrpcLink::with_floor(floor, server, &trust, proxy.as_ref(), config.call_timeout)?;
    let enrolled = retry_while_busy(|| link.enroll(&applicant)).await?;
    let ca = match &trust {
        Trust::Ca(pem) => Some(pem.as_str()),
        Trust::System => None,
    };
    let node = Node {
        server: arguments.server.clone(),
        uuid: applicant.identity.uuid,
        host_id: enrolled.host_id.clone(),
        instance_id: enrolled.instance_id.clone(),
        project: enrolled.project.clone(),
        credential_expires: enrolled.credential_expires,
        machine: Some(MachineMarks::establish(paths)),
    };
    store_enrolment(paths, &node, ca, &certificates, &enrolled)?;
    Ok(enrolled)
}

/// Stores the result of an enrolment. A power cut leaves a node that is not enrolled, or one that can go on.
fn store_enrolment(
    paths: &AgentPaths,
    node: &Node,
    ca: Option<&str>,
    certificates: &NodeCertificates,
    enrolled: &Enrollment,
) -> Result<(), NodeError> {
    // Certificates of another host or server do not fit the stored identity.
    if Node::load(paths).is_ok_and(|stored| !stored.is_same_host(node)) {
        durable::remove_file(&paths.node())?;
    }
    node::save_ca(paths, ca)?;
    certificates.store(&enrolled.certificates)?;
    node::save_credential(paths, enrolled.credential.as_ref())?;
    // Written last: if this file exists, all others exist.
    node.save(paths)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use evenkeel_kit::Secret;

    use super::*;
    use crate::cli::PathArgs;
    use crate::needrestart::NEEDRESTART;
    use crate::node::IssuedCertificates;

    fn enrolled_node(host_id: &str) -> Node {
        Node {
            server: "https://keel.example:50002".to_owned(),
            uuid: Uuid::from_u128(1),
            host_id: host_id.to_owned(),
            instance_id: "inst-00000001".to_owned(),
            project: "default".to_owned(),
            credential_expires: None,
            machine: None,
        }
    }

    fn enrollment() -> Enrollment {
        Enrollment {
            host_id: "host-00000001".to_owned(),
            instance_id: "inst-00000001".to_owned(),
            project: "default".to_owned(),
            certificates: IssuedCertificates::default(),
            credential: Some(Secret::new("a credential".to_owned())),
            credential_expires: None,
            server_time: None,
        }
    }

    #[test]
    fn a_power_cut_during_enrolment_leaves_no_mixture_of_two_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        let store = |host_id: &str| {
            let node = enrolled_node(host_id);
            store_enrolment(&paths, &node, None, &NodeCertificates::none(&paths), &enrollment())
        };
        let stored_host = || Node::load(&paths).map(|node| node.host_id);
        store("host-00000001").unwrap();
        // The power is cut when the bearer token is written.
        let half_written = folder.path().join("credential.new");
        std::fs::create_dir(&half_written).unwrap();
        store("host-00000001").unwrap_err();
        assert_eq!(stored_host().unwrap(), "host-00000001");
        store("host-00000002").unwrap_err();
        assert!(matches!(stored_host(), Err(NodeError::NotEnrolled)));
        std::fs::remove_dir(&half_written).unwrap();
        store("host-00000002").unwrap();
        assert_eq!(stored_host().unwrap(), "host-00000002");
    }

    #[test]
    fn a_copy_that_enrols_with_another_uuid_gets_a_key_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        let node = enrolled_node("host-00000001");
        node.save(&paths).unwrap();
        std::fs::write(paths.key(), "of the original").unwrap();
        for same in [None, Some(Uuid::from_u128(1))] {
            forget_copied_identity(&paths, same).unwrap();
            assert!(paths.key().exists(), "an enrolment that is repeated keeps its key");
        }
        forget_copied_identity(&paths, Some(Uuid::from_u128(2))).unwrap();
        assert!(!paths.key().exists() && !paths.node().exists());
    }

    /// Without its identity, the machine could not reach its server any more.
    #[tokio::test]
    async fn a_server_that_cannot_be_reached_costs_no_identity() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        let node = enrolled_node("host-00000001");
        node.save(&paths).unwrap();
        std::fs::write(paths.key(), "of the machine").unwrap();
        let arguments = EnrollArgs {
            paths: PathArgs::default(),
            // Port 1 is reserved: no server listens there.
            server: "https://127.0.0.1:1".to_owned(),
            token: None,
            token_file: None,
            ca: None,
            uuid: Some(Uuid::from_u128(2)),
            take_over: false,
        };
        let token = JoinToken::parse(&format!("ekj1.{}.c2VjcmV0", "0f".repeat(32))).unwrap();
        let config = Config::default();
        enroll_machine(&arguments, &token, &config, &paths).await.unwrap_err();
        assert!(paths.key().exists() && paths.node().exists());
    }

    #[test]
    fn an_enrolment_names_what_needrestart_does_not_do_during_updates() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let note = || {
            let mut out = Vec::new();
            note_needrestart(&paths, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(note(), "", "it is not installed");
        let program = paths.inside(NEEDRESTART);
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(program, "").unwrap();
        let text = note();
        assert!(text.starts_with("note: needrestart restarts no services"), "{text}");
        assert!(text.contains("`--restart-services`"), "{text}");
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
}
