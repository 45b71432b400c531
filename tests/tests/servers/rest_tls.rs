//! The command line and a server whose REST API uses TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::Parser as _;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Environment, Failure, System};
use evenkeel_kit::{Secret, SystemClock};
use evenkeel_test_support::ServerProcess;
use evenkeel_tests::history::server_program;

/// Runs a command line in this process, with a token; returns its output.
async fn run_cli(line: &str, token: &str) -> Result<String, Failure> {
    let arguments = line.split(' ');
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut output = Vec::new();
    cli.run(&mut System {
        out: &mut output,
        notes: &mut std::io::sink(),
        input: &mut std::io::empty(),
        hide_input: |_| (),
        open_browser: &|_| false,
        clock: &SystemClock,
        environment: Environment {
            contexts: PathBuf::from("/nowhere"),
            token: Some(Secret::new(token)),
            width: None,
            colour: false,
            interactive: false,
            has_display: false,
        },
    })
    .await?;
    Ok(String::from_utf8(output).expect("text"))
}

#[tokio::test]
async fn the_command_line_trusts_the_servers_authority_and_explains_other_certificates() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Postgres runs as another user when the tests run as root.
    let mode = fs::Permissions::from_mode(0o711);
    fs::set_permissions(folder.path(), mode).expect("a folder that others can traverse");
    let data = folder.path().join("data");
    let server = ServerProcess::new(&server_program().await, folder.path(), "server");
    let mut server = server
        .option("--data-dir", &data)
        .variable("EVENKEELD_REST__LISTEN", "0.0.0.0:0")
        .variable("EVENKEELD_REST__TLS", "true");
    server.start_and_wait().await;
    let token = fs::read_to_string(data.join("operator-token")).expect("a token");
    let ca = data.join("ca/ca.pem").display().to_string();
    let rest = server.address("rest");
    let list = async |address: &str, options: &str| {
        let line = format!("evenkeel project list --retry-for 0s --server {address}{options}");
        run_cli(&line, token.trim()).await
    };

    let with_ca = format!(" --ca {ca}");
    let listed = list(&format!("https://{rest}"), &with_ca).await.expect("a list");
    assert!(listed.contains("default"), "{listed}");

    let other_name = rest.replace("127.0.0.1", "127.0.0.2");
    let admin = server.address("admin");
    for (address, options, advice) in [
        (format!("https://{rest}"), "", "`evenkeeld ca` prints"),
        (format!("https://{other_name}"), with_ca.as_str(), "add the name to rest.server_names"),
        (format!("http://{rest}"), "", "use https://"),
        (format!("https://{admin}"), with_ca.as_str(), "does not use TLS"),
    ] {
        let failure = list(&address, options).await.expect_err("no connection");
        assert!(matches!(failure, Failure::Unreachable { .. }), "{address}: {failure:?}");
        let hint = failure.hint().unwrap_or_default();
        assert!(hint.contains(advice), "{address}: {hint}: {failure:?}");
    }
    server.stop();
}
