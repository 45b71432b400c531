//! Providers, custom configurations and local accounts.

use serde_json::json;

use crate::TestCli;

#[tokio::test]
async fn a_provider_is_added_listed_and_deleted() {
    let cli = TestCli::new().await;
    let provider = json!({
        "resourceId": "provider-00000001", "name": "racks", "providerKind": "PROVIDER_KIND_BAREMETAL",
        "providerVendor": "PROVIDER_VENDOR_LENOVO_LOCA", "apiEndpoint": "https://racks.example.org",
        "apiCredentials": ["hush"],
    });
    let in_use = json!({"code": "FailedPrecondition", "message": "hosts refer to the provider"});
    cli.fake_server
        .answer("POST providers", provider.clone())
        .answer(
            "GET providers",
            json!({"providers": [provider], "totalElements": 1, "hasNext": false}),
        )
        .answer_with("DELETE providers/provider-00000001", 400, in_use);
    let line = "evenkeel provider create racks --endpoint https://racks.example.org --vendor lenovo-loca \
                --credential hush";
    insta::assert_snapshot!(cli.run(&line.split_whitespace().collect::<Vec<_>>().join(" ")).await, @r"
    id           provider-00000001
    name         racks
    vendor       lenovo-loca
    endpoint     https://racks.example.org
    credentials  1
    created      -
    ");
    insta::assert_snapshot!(cli.run("evenkeel provider list").await, @r"
    ID                 NAME   VENDOR       ENDPOINT                   AGE
    provider-00000001  racks  lenovo-loca  https://racks.example.org  -
    ");
    insta::assert_snapshot!(cli.fail("evenkeel provider delete racks").await, @r#"
    hosts refer to the provider
    hint: delete its hosts first: `evenkeel host list --filter 'provider.name = "NAME"'` lists them
    "#);
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST providers {"providerKind":"PROVIDER_KIND_BAREMETAL","providerVendor":"PROVIDER_VENDOR_LENOVO_LOCA","name":"racks","apiEndpoint":"https://racks.example.org","apiCredentials":["hush"]}
    GET providers
    GET providers?filter=name == "racks"
    DELETE providers/provider-00000001
    "#);
}

#[tokio::test]
async fn a_custom_configuration_comes_from_a_file() {
    let cli = TestCli::new().await;
    let file = cli.home.path().join("setup.yaml");
    std::fs::write(&file, "#cloud-config\npackages: [jq]\n").expect("written");
    cli.fake_server.answer(
        "POST customConfigs",
        json!({
            "resourceId": "customconfig-00000001", "name": "setup", "description": "ours",
            "config": "#cloud-config\npackages: [jq]\n",
        }),
    );
    let line =
        format!("evenkeel custom-config create setup --file {} --description ours", file.display());
    insta::assert_snapshot!(cli.run(&line).await, @r"
    id           customconfig-00000001
    name         setup
    description  ours
    created      -

    Configuration:
    LINE
    #cloud-config
    packages: [jq]
    ");
    assert_eq!(
        cli.fake_server.requests(),
        r##"POST customConfigs {"name":"setup","description":"ours","config":"#cloud-config\npackages: [jq]\n"}"##
    );
}

#[tokio::test]
async fn a_local_account_has_a_key() {
    let cli = TestCli::new().await;
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFkqJv0c0Zg2 alice@desk";
    let file = cli.home.path().join("key.pub");
    std::fs::write(&file, format!("{key}\n")).expect("written");
    let account =
        json!({"resourceId": "localaccount-00000001", "username": "alice", "sshKey": key});
    cli.fake_server
        .answer("POST localAccounts", account.clone())
        .answer(
            "GET localAccounts",
            json!({"localAccounts": [account], "totalElements": 1, "hasNext": false}),
        )
        .answer("DELETE localAccounts/localaccount-00000001", json!({}));
    let line = format!("evenkeel account create alice --ssh-key-file {}", file.display());
    cli.run(&line).await;
    insta::assert_snapshot!(cli.run("evenkeel account list").await, @r"
    ID                     USERNAME  KEY                                    AGE
    localaccount-00000001  alice     ssh-ed25519 …AIFkqJv0c0Zg2 alice@desk  -
    ");
    assert_eq!(
        cli.run("evenkeel account delete alice").await,
        "local account localaccount-00000001 deleted\n"
    );
    let requests = cli.fake_server.requests();
    let expected = format!("POST localAccounts {{\"username\":\"alice\",\"sshKey\":\"{key}\"}}");
    assert!(requests.starts_with(&expected), "{requests}");
    assert!(requests.contains("GET localAccounts?filter=username == \"alice\""), "{requests}");
}
