//! A session of an operator with a real server: the typed commands and their output, as one text.
//!
//! Machines are simulated: they use the agent's protocol over gRPC and TLS. IDs are numbered in the
//! order of their first appearance, and times are replaced, so that the text is the same each time.

mod catalogue;
mod stable_text;

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use clap::Parser as _;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Environment, Failure, System};
use evenkeel_kit::{SystemClock, chain};
use evenkeel_tests::history::Replicas;
use tempfile::TempDir;

use self::stable_text::stabilize;
use super::machine::{Machine, serial, uuid};

/// Maximum time until a contact of a node is stored.
const CONTACT_TIMEOUT: Duration = Duration::from_mins(1);

/// All commands and their output.
struct Story {
    home: TempDir,
    server: String,
    text: String,
}

impl Story {
    fn new(server: String, home: TempDir) -> Self {
        Self { home, server, text: String::new() }
    }

    /// Starts a section.
    fn part(&mut self, title: &str) {
        writeln!(self.text, "# {title}\n").expect("a string accepts everything");
    }

    /// Runs a command that must succeed, and records it.
    async fn run(&mut self, line: &str) {
        let output = self.run_unrecorded(line).await;
        self.record(line, &output);
    }

    /// Runs a command that must fail, and records it.
    async fn fail(&mut self, line: &str) {
        let failure = self.run_cli(line).await.expect_err(line);
        let hint = failure.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        let output = format!("error: {}\n{hint}", chain(&failure));
        self.record(line, &output);
    }

    /// Runs a command that must succeed, without recording it.
    async fn run_unrecorded(&self, line: &str) -> String {
        match self.run_cli(line).await {
            Ok(output) => output,
            Err(failure) => panic!("{line}: {} ({:?})", chain(&failure), failure.hint()),
        }
    }

    async fn run_cli(&self, line: &str) -> Result<String, Failure> {
        let arguments = shlex::split(line).expect("a valid command line");
        let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        cli.run(&mut System {
            out: &mut out,
            notes: &mut notes,
            input: &mut std::io::empty(),
            hide_input: |_| (),
            open_browser: &|_| false,
            clock: &SystemClock,
            environment: Environment {
                contexts: self.home.path().join("contexts.yaml"),
                token: None,
                width: None,
                colour: false,
                interactive: false,
                has_display: false,
            },
        })
        .await?;
        notes.append(&mut out);
        Ok(String::from_utf8(notes).expect("text"))
    }

    fn record(&mut self, line: &str, output: &str) {
        let home = self.home.path().display().to_string();
        let entry = format!("$ {line}\n{output}\n")
            .replace(&self.server, "http://127.0.0.1:8080")
            .replace(&home, "/home/alice");
        self.text.push_str(&entry);
    }
}

/// Option for the site of a host; the last two hosts have no site.
const fn site_option(nth: u32) -> &'static str {
    match nth {
        1..=8 => "--site bonn",
        9..=14 => "--site ulm",
        15..=18 => "--site paris",
        _ => "",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_story_of_a_fleet() {
    let home = tempfile::tempdir().expect("a folder");
    let replicas = Replicas::start(1, &catalogue::settings(home.path())).await;
    let server = format!("http://{}", replicas.rest_addresses()[0]);
    let mut story = Story::new(server, home);
    let token_file = story.home.path().join("token");
    fs::write(&token_file, replicas.operator_token()).expect("written");
    let login =
        format!("evenkeel login --server {} --token-file {}", story.server, token_file.display());
    story.run_unrecorded(&login).await;

    create_locations(&mut story).await;
    register_hosts(&mut story).await;
    let mut first = join_hosts(&mut story, &replicas).await;
    show_lists(&mut story).await;
    let target = create_plan(&mut story, &mut first).await;
    first.update(&target).await;
    show_runs(&mut story).await;
    create_day_zero_resources(&mut story).await;
    catalogue::run_part(&mut story).await;
    show_failures(&mut story).await;

    let text = stabilize(&story.text);
    replicas.stop().await;
    insta::assert_snapshot!(text);
}

async fn create_locations(story: &mut Story) {
    story.part("Regions and sites");
    for line in [
        "evenkeel region create emea --label continent=europe",
        "evenkeel region create germany --parent emea --label country=de",
        "evenkeel site create bonn --region germany --latitude 50.7374 --longitude 7.0982",
        "evenkeel site create ulm --region germany --label tier=gold",
        "evenkeel site create paris --region emea",
        "evenkeel region list --order-by name",
        "evenkeel site list --filter 'region.name = \"germany\"' --order-by name",
    ] {
        story.run(line).await;
    }
}

async fn register_hosts(story: &mut Story) {
    story.part("Twenty hosts are registered");
    for nth in 1..=20 {
        let line = format!(
            "evenkeel host register edge-{nth:02} --uuid {} --serial {} {}",
            uuid(nth),
            serial(nth),
            site_option(nth)
        );
        let line = line.trim_end();
        if nth == 1 {
            story.run(line).await;
        } else {
            story.run_unrecorded(line).await;
        }
    }
    for line in [
        "evenkeel region tree",
        "evenkeel location find germ",
        "evenkeel host set edge-01 --label rack=7",
        "evenkeel host summary",
    ] {
        story.run(line).await;
    }
}

/// All hosts join. Returns the first one.
async fn join_hosts(story: &mut Story, replicas: &Replicas) -> Machine {
    story.part("The hosts join and report their facts");
    let token = story.run_unrecorded("evenkeel join-token create racks -q").await;
    let token = token.trim();
    let southbound = &replicas.southbound_addresses()[0];
    let ca = replicas.ca_certificate();
    let mut first = Machine::join(southbound, &ca, 1, token).await;
    first.poll(false).await;
    for nth in 2..=20 {
        let mut machine = Machine::join(southbound, &ca, nth, token).await;
        machine.poll(false).await;
    }
    story.run("evenkeel join-token list").await;
    first
}

async fn show_lists(story: &mut Story) {
    story.part("Lists");
    for line in [
        "evenkeel host list --order-by name",
        "evenkeel host list --region germany --filter 'name = \"edge-0\"' --order-by 'name desc' --limit 3",
        "evenkeel host list --filter 'NOT has(site)' --order-by name -q",
        "evenkeel instance list --filter 'host.name == \"edge-07\" OR host.name == \"edge-08\"' --order-by name",
        "evenkeel os list",
        "evenkeel host packages edge-01",
        "evenkeel host updates edge-01",
    ] {
        story.run(line).await;
    }
    for line in [
        "evenkeel host list --filter 'name = edge AND sit.name = bonn'",
        "evenkeel host list --filter 'name = edge AND'",
        "evenkeel host list --filter 'currentState = HOST_STATE_LOST'",
        "evenkeel host list --order-by 'name, colour'",
    ] {
        story.fail(line).await;
    }
}

/// Creates a policy, its assignment and a window. Returns the digest of the first host's target.
async fn create_plan(story: &mut Story, first: &mut Machine) -> String {
    story.part("A policy, an assignment, a schedule on a region");
    for line in [
        "evenkeel policy create tools --package curl --description 'what every host has'",
        "evenkeel assignment set region:emea tools --max-concurrent 5 --stop-after-failures 2",
        "evenkeel explain edge-01",
        "evenkeel schedule create tonight --region emea --start now --duration 1h",
        "evenkeel schedule create sundays --site paris --cron '0 2 * * 0' --duration 2h --time-zone Europe/Paris",
        "evenkeel schedule set sundays --name weekly --duration 3h",
        "evenkeel schedule list --order-by name",
    ] {
        story.run(line).await;
    }
    let target = first.wait_for_window().await;
    story.run("evenkeel explain edge-01").await;
    target
}

async fn show_runs(story: &mut Story) {
    story.part("Runs");
    let run = story.run_unrecorded("evenkeel run list --host edge-01 -q").await;
    let run = run.trim();
    wait_for_contact(story, "edge-01").await;
    for line in [
        "evenkeel run list --filter 'instance.host.name = \"edge-01\"'".to_owned(),
        format!("evenkeel run get {run}"),
        format!("evenkeel run watch {run}"),
        "evenkeel host updates edge-01".to_owned(),
        "evenkeel host get edge-01".to_owned(),
        "evenkeel assignment list".to_owned(),
    ] {
        story.run(&line).await;
    }
}

/// Waits until the server has stored a contact of the node of a host.
async fn wait_for_contact(story: &Story, host: &str) {
    let list =
        format!("evenkeel host list -q --filter 'name == \"{host}\" AND lastContact != null'");
    let begun = Instant::now();
    while story.run_unrecorded(&list).await.trim().is_empty() {
        assert!(begun.elapsed() < CONTACT_TIMEOUT, "{host} shows no contact");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn create_day_zero_resources(story: &mut Story) {
    story.part("Providers, custom configurations, local accounts");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKWgaT7WKT07Pm5NEz0UAXEHyTLR9J6ABq8E6K/IaAwI alice@desk";
    let config = story.home.path().join("setup.yaml");
    fs::write(&config, "#cloud-config\npackages: [jq]\n").expect("written");
    let setup = format!("evenkeel custom-config create setup --file {}", config.display());
    story.run_unrecorded(&setup).await;
    story.run_unrecorded(&format!("evenkeel account create alice --ssh-key '{key}'")).await;
    for line in [
        "evenkeel provider create racks --endpoint https://racks.example.org",
        "evenkeel provider list",
        "evenkeel custom-config list",
        "evenkeel account list",
        "evenkeel account delete alice",
    ] {
        story.run(line).await;
    }
}

async fn show_failures(story: &mut Story) {
    story.part("Errors, pauses and lost hosts");
    for line in [
        "evenkeel site delete bonn",
        "evenkeel policy delete tools",
        "evenkeel host get edge-21",
        "evenkeel host onboard host-00000000",
    ] {
        story.fail(line).await;
    }
    for line in [
        "evenkeel pause --site paris --reason 'the roof leaks'",
        "evenkeel pause list",
        "evenkeel resume --site paris",
        "evenkeel host invalidate edge-20 --note 'it was stolen'",
        "evenkeel host summary",
        "evenkeel host delete edge-20 --with-instance",
        "evenkeel region tree germany",
    ] {
        story.run(line).await;
    }
}
