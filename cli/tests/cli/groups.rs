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
async fn errors_name_the_file_and_the_line() {
    let cli = cli_with(&[("groups.xml", GROUPS), ("clients.xml", CLIENTS)]).await;
    let write = |name: &str, content: &[u8]| {
        fs::write(cli.home.path().join(name), content).expect("written");
    };
    write(
        "groups.xml",
        b"<Groups>\n<Group name='a'><Client name='b'><Bundle name='x'/></Client></Group></Groups>",
    );
    let text = error(&cli, &resolve("web1")).await;
    let expected =
        "@/groups.xml is not a valid document:\n  line 2: bundle x is inside of a condition";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("hint: correct these fields and repeat the command"), "{text}");

    write("groups.xml", GROUPS.replace(" default=\"true\"", "").as_bytes());
    let text = error(&cli, &resolve("web2")).await;
    let expected = "@/clients.xml has no client web2, and @/groups.xml no default profile\nhint: ";
    assert!(text.starts_with(expected), "{text}");

    write("clients.xml", b"<Clients>\n<Client name='a' profile='web' password='hunter2'/>\n<Client name='A' profile='web'/></Clients>");
    let text = error(&cli, &resolve("a")).await;
    let expected =
        "@/clients.xml is not a valid document:\n  line 3: client a is in line 2 as well";
    assert!(text.starts_with(expected) && !text.contains("hunter2"), "{text}");

    write("clients.xml", b"<Clients>\n\xff</Clients>");
    let text = error(&cli, &resolve("a")).await;
    assert!(text.starts_with("cannot read @/clients.xml: line 2 is not UTF-8"), "{text}");
    let text = error(&cli, &resolve("a --fact-group=")).await;
    assert!(text.starts_with("a name is empty"), "{text}");
}
