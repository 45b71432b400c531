//! Groups of nodes from the files of Bcfg2, without a server.

use std::fs;

use evenkeel_cli::Ending;

use crate::configuration::{cli_with, error, output, run};

const GROUPS: &str = r#"<Groups version="3.0">
  <Group name="web" profile="true" default="true">
    <Bundle name="nginx"/>
    <Group name="base"/>
    <Group name="virtual"><Group name="agent"/></Group>
  </Group>
  <Group name="base"><Bundle name="ntp"/></Group>
  <Group name="agent"><Bundle name="qemu-agent"/></Group>
</Groups>
"#;

const CLIENTS: &str = r#"<Clients version="3.0">
  <Client name="web1.example.com" profile="web" password="hunter2"><Alias name="web1"/></Client>
</Clients>
"#;

const LINE: &str = "evenkeel group resolve --groups @/groups.xml --clients @/clients.xml --node";

/// The line with other options.
fn resolve(options: &str) -> String {
    format!("{LINE} {options}")
}

#[tokio::test]
async fn the_groups_of_a_node_are_printed_as_json() {
    let cli = cli_with(&[("groups.xml", GROUPS), ("clients.xml", CLIENTS)]).await;
    let json = output(&cli, &resolve("web1 --fact-group virtual --fact-group kvm")).await;
    let found: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let expected = serde_json::json!({
        "node": "web1.example.com",
        "profile": "web",
        "groups": ["agent", "base", "kvm", "virtual", "web"],
        "bundles": ["nginx", "ntp", "qemu-agent"],
    });
    assert_eq!(found, expected);
    assert_eq!(output(&cli, &resolve("web1.example.com -o json")).await.lines().count(), 12);
    let yaml = output(&cli, &resolve("web1 -o yaml")).await;
    assert!(yaml.starts_with("node: web1.example.com\nprofile: web\n"), "{yaml}");
    assert_eq!(output(&cli, &resolve("web1 -q")).await, "base\nweb\n");
}

#[tokio::test]
async fn one_of_the_files_may_be_standard_input() {
    let cli = cli_with(&[("groups.xml", GROUPS), ("clients.xml", CLIENTS)]).await;
    for (line, input) in [
        ("evenkeel group resolve --groups - --clients @/clients.xml --node web1 -q", GROUPS),
        ("evenkeel group resolve --groups @/groups.xml --clients - --node web1 -q", CLIENTS),
    ] {
        let (text, ending) = run(&cli, line, input).await;
        assert_eq!((text.as_str(), ending), ("base\nweb\n", Some(Ending::Done)));
    }
    let text = error(&cli, "evenkeel group resolve --groups - --clients - --node n -q").await;
    assert!(text.starts_with("standard input can be only one of the files\nhint: "), "{text}");
}

#[tokio::test]
async fn warnings_name_the_file_and_the_line() {
    let twice =
        GROUPS.replace("</Groups>", "<Group name='web'><Bundle name='x'/></Group></Groups>");
    let cli = cli_with(&[("groups.xml", &twice), ("clients.xml", CLIENTS)]).await;
    let text = output(&cli, &resolve("web2 -q")).await;
    assert_eq!(
        text,
        "warning: @/groups.xml: line 9: group web is defined in line 2; Bcfg2 ignores the \
         attributes and bundles of this definition\n\
         warning: node web2 is not a client; it gets the default profile web\n\
         base\nweb\n"
    );
}

#[tokio::test]
async fn files_in_the_folder_are_included_and_others_are_not() {
    let cli = cli_with(&[("clients.xml", CLIENTS)]).await;
    let home = cli.home.path();
    let include = |file: &str| {
        let groups = format!(
            "<Groups xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='{file}'/></Groups>"
        );
        fs::write(home.join("metadata/groups.xml"), groups).expect("written");
    };
    fs::create_dir_all(home.join("metadata/d")).expect("created");
    fs::write(home.join("metadata/d/web.xml"), GROUPS).expect("written");
    fs::write(home.join("secret.xml"), "<Groups/>").expect("written");
    std::os::unix::fs::symlink("../secret.xml", home.join("metadata/link.xml")).expect("created");
    let line = "evenkeel group resolve --groups @/metadata/groups.xml --clients @/clients.xml \
                --node web1 -q";

    include("d/web.xml");
    assert_eq!(output(&cli, line).await, "base\nweb\n");
    include(&home.join("metadata/d/web.xml").display().to_string());
    assert_eq!(output(&cli, line).await, "base\nweb\n");
    include("no.xml");
    let text = output(&cli, line).await;
    assert!(text.contains("line 1: there is no file no.xml; Bcfg2 skips it\n"), "{text}");
    for file in ["../secret.xml", "link.xml", "/dev/null"] {
        include(file);
        let text = error(&cli, line).await;
        let reason = format!("cannot include {file}: it is not in the folder @/metadata");
        assert!(text.contains(&reason), "{text}");
    }
    include("d");
    let text = error(&cli, line).await;
    assert!(text.contains("cannot include d: it is not a file"), "{text}");
    include("groups.xml");
    let text = error(&cli, line).await;
    assert!(text.contains("check that no file includes itself"), "{text}");
    let groups = fs::read_to_string(home.join("metadata/groups.xml")).expect("read");
    let line = "evenkeel group resolve --groups - --clients @/clients.xml --node web1";
    let (text, ending) = run(&cli, line, &groups).await;
    assert!(text.contains("because the file is standard input"), "{text}");
    assert_eq!(ending, None);
}

#[tokio::test]
async fn errors_name_the_file_and_the_line() {
    let cli = cli_with(&[("groups.xml", GROUPS), ("clients.xml", CLIENTS)]).await;
    let write = |name: &str, content: &[u8]| {
        fs::write(cli.home.path().join(name), content).expect("written");
    };
    write("groups.xml", b"<Groups>\n<Client name='b'><Group name='x'/></Client></Groups>");
    let text = error(&cli, &resolve("web1")).await;
    let expected =
        "@/groups.xml is not a valid document:\n  line 2: group x is not defined, and Bcfg2 reads";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("hint: correct these fields and repeat the command"), "{text}");

    write("groups.xml", GROUPS.replace(" default=\"true\"", "").as_bytes());
    let text = error(&cli, &resolve("web2")).await;
    let expected = "@/clients.xml has no client web2, and @/groups.xml no default profile\nhint: ";
    assert!(text.starts_with(expected), "{text}");

    write("clients.xml", b"<Clients>\n<Client name='a' password='hunter2'/></Clients>");
    let text = error(&cli, &resolve("a")).await;
    let expected =
        "@/clients.xml is not a valid document:\n  line 2: <Client> has no attribute profile";
    assert!(text.starts_with(expected) && !text.contains("hunter2"), "{text}");

    write("clients.xml", b"<Clients>\n\xff</Clients>");
    let text = error(&cli, &resolve("a")).await;
    assert!(text.starts_with("cannot read @/clients.xml: line 2 is not UTF-8"), "{text}");
    let text = error(&cli, &resolve("a --fact-group=")).await;
    assert!(text.starts_with("a name is empty"), "{text}");
}
