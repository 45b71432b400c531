//! `evenkeel-agent enroll`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_kit::telemetry;

use super::{runtime, settle};
use crate::cli::Enroll;
use crate::config::Config;
use crate::identity::{Identity, Marks};
use crate::link::{Applicant, Enrolled, GrpcLink, JoinToken, Link, Trust};
use crate::lock::AgentLock;
use crate::modules::packages::Tools;
use crate::node::{self, Node};
use crate::os::{self, OsRelease};
use crate::place::Place;
use crate::runner::HostRunner;

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

async fn apply(
    arguments: &Enroll,
    token: &JoinToken,
    config: &Config,
    place: &Place,
) -> anyhow::Result<Enrolled> {
    let applicant = Applicant {
        token: token.text.clone(),
        identity: Identity::of(place, arguments.uuid)?,
        os_release: OsRelease::of(place),
        architecture: architecture(config, place).await?,
        public_key: node::public_key(place)?,
    };
    let proxy = config.proxy().context("read the configuration")?;
    let (server, ca) = (&arguments.server, arguments.ca.as_deref());
    let trust = Trust::settle(server, token, ca, proxy.as_ref()).await?;
    let link = GrpcLink::new(server, &trust, proxy.as_ref(), config.call_timeout)?;
    let enrolled = link.enroll(&applicant).await?;
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
