//! The pages of `docs/reference` that are generated from the code are current.

#![expect(
    clippy::format_collect,
    clippy::format_push_string,
    reason = "a page is rendered once, so readable code matters more than allocations"
)]

mod command_line;
mod config_file;
mod manual;
mod metrics;
mod monitoring;
mod node_configuration;
mod page;
mod rust_types;
mod settings;
mod telemetry;

use clap::CommandFactory as _;
use evenkeel_tests::architecture::tree;
use evenkeel_update_agent::config::Config as AgentConfig;
use evenkeel_update_agent::owner::OwnerLimits;

use rust_types::RustTypes;
use settings::{SettingsFile, render_file};

fn server_file() -> SettingsFile {
    SettingsFile {
        crate_folder: "server",
        root_type: "Config",
        variable_prefix: Some("EVENKEELD_"),
        defaults: evenkeel_server::default_settings().expect("the defaults"),
    }
}

#[test]
fn the_pages_of_the_command_lines_are_current() {
    let operator = evenkeel_cli::args::Cli::command();
    page::check("cli.md", &command_line::render(operator));
    let server = evenkeel_server::Cli::command();
    page::check("server-cli.md", &command_line::render(server));
    let agent = evenkeel_update_agent::cli::Cli::command();
    page::check("agent-cli.md", &command_line::render(agent));
}

#[test]
fn the_manual_pages_of_the_packages_are_current() {
    let operator = manual::render(
        evenkeel_cli::args::Cli::command(),
        &[("~/.config/evenkeel/contexts.yaml", "Servers, projects and tokens of the user.")],
        &["evenkeeld", "evenkeel-agent"],
    );
    page::check_file("deploy/package/evenkeel/evenkeel.1", &operator);
    let server = manual::render(
        evenkeel_server::Cli::command(),
        &[
            ("/etc/evenkeel/evenkeeld.toml", "Configuration, with all settings as comments."),
            ("/var/lib/evenkeel", "Keys, certificates, and the private Postgres."),
        ],
        &["evenkeel", "evenkeel-agent"],
    );
    page::check_file("deploy/package/evenkeel-server/evenkeeld.1", &server);
    let agent = manual::render(
        evenkeel_update_agent::cli::Cli::command(),
        &[
            ("/etc/evenkeel/agent.toml", "Configuration, with all settings as comments."),
            ("/etc/evenkeel/limits.toml", "What the server may do to this machine."),
            ("/var/lib/evenkeel-agent", "Identity, keys and journal of the node."),
        ],
        &["evenkeel", "evenkeeld"],
    );
    page::check_file("deploy/package/evenkeel-agent/evenkeel-agent.1", &agent);
}

#[test]
fn the_page_of_the_configuration_documents_is_current() {
    page::check("node-configuration.md", &node_configuration::render());
}

#[test]
fn the_page_of_the_metrics_is_current() {
    page::check("metrics.md", &metrics::render());
}

#[test]
fn the_list_of_metrics_matches_their_use() {
    let findings = metrics::differences();
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn the_page_of_the_server_settings_is_current() {
    let types = RustTypes::read();
    let text = format!("{}{}", settings::SERVER_INTRODUCTION, render_file(&types, &server_file()));
    page::check("settings.md", &text);
}

#[test]
fn the_configuration_file_of_the_servers_package_is_current() {
    let text = config_file::render_server_file(&RustTypes::read(), &server_file());
    page::check_file("deploy/package/evenkeel-server/evenkeeld.toml", &text);
}

#[test]
fn the_page_of_the_agent_settings_is_current() {
    let types = RustTypes::read();
    let agent = SettingsFile {
        crate_folder: "update-agent",
        root_type: "Config",
        variable_prefix: Some("EVENKEEL_AGENT_"),
        defaults: serde_json::to_value(AgentConfig::default()).expect("the defaults"),
    };
    let limits = SettingsFile {
        crate_folder: "update-agent",
        root_type: "OwnerLimits",
        variable_prefix: None,
        defaults: serde_json::to_value(OwnerLimits::default()).expect("the defaults"),
    };
    let text = format!(
        "{}{}{}{}",
        settings::AGENT_INTRODUCTION,
        render_file(&types, &agent),
        settings::LIMITS_INTRODUCTION,
        render_file(&types, &limits)
    );
    page::check("agent-settings.md", &text);
}

#[test]
fn the_page_of_what_the_agent_sends_has_every_field() {
    let read = |path: &str| std::fs::read_to_string(tree::root().join(path)).expect(path);
    let page = read("docs/reference/telemetry.md");
    let protocol = read("proto/proto/evenkeel/agent/v1/agent.proto");
    let findings = telemetry::differences(&page, &protocol);
    assert!(findings.is_empty(), "docs/reference/telemetry.md:\n{}", findings.join("\n"));
}
