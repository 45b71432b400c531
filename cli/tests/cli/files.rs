//! New resources from files, and names that are taken.

use serde_json::{Value, json};

use crate::TestCli;

const CREATED: &str = "2026-01-02T03:04:05Z";

/// A resource in a file, and the request that creates it.
struct Sample {
    noun: &'static str,
    /// Request for the resource.
    get: &'static str,
    resource: Value,
    /// Request that creates the resource, and its body.
    post: &'static str,
    body: Value,
}

/// Samples of all resources. Texts that YAML would take for something else have to be quoted in it.
fn samples() -> Vec<Sample> {
    let times = &json!({"createdAt": CREATED, "updatedAt": CREATED});
    let mut samples = vec![
        image_policy(times),
        package_policy(times),
        single_schedule(times),
        repeated_schedule(times),
    ];
    samples.extend(locations(times));
    samples.extend(machines(times));
    samples.extend(operating_systems(times));
    samples.extend(day_zero(times));
    samples
}

fn locations(times: &Value) -> Vec<Sample> {
    let labels = json!([{"key": "tier", "value": "1"}]);
    vec![
        Sample {
            noun: "region",
            get: "regions/region-00000001",
            resource: json!({
                "resourceId": "region-00000001", "regionID": "region-00000001", "name": "true",
                "parentId": "region-00000002", "parentRegion": {"name": "emea"}, "metadata": labels,
                "totalSites": 3, "timestamps": times,
            }),
            post: "regions",
            body: json!({"name": "true", "parentId": "region-00000002", "metadata": labels}),
        },
        Sample {
            noun: "site",
            get: "sites/site-00000001",
            resource: json!({
                "resourceId": "site-00000001", "siteID": "site-00000001", "name": "12",
                "regionId": "region-00000002", "region": {"name": "emea"}, "siteLat": -5, "siteLng": 7,
                "metadata": labels, "timestamps": times,
            }),
            post: "sites",
            body: json!({
                "name": "12", "regionId": "region-00000002", "siteLat": -5, "siteLng": 7, "metadata": labels,
            }),
        },
    ]
}

fn machines(times: &Value) -> Vec<Sample> {
    let labels = json!([{"key": "tier", "value": "1"}]);
    vec![
        Sample {
            noun: "host",
            get: "compute/hosts/host-00000001",
            resource: json!({
                "resourceId": "host-00000001", "name": "edge: 1", "uuid": "0e0e0e0e-0000-4000-8000-000000000001",
                "siteId": "site-00000001", "metadata": labels, "hostStatus": "Running",
                "currentState": "HOST_STATE_ONBOARDED", "serialNumber": "ABC12345", "timestamps": times,
            }),
            post: "compute/hosts",
            body: json!({
                "name": "edge: 1", "uuid": "0e0e0e0e-0000-4000-8000-000000000001",
                "siteId": "site-00000001", "metadata": labels,
            }),
        },
        Sample {
            noun: "instance",
            get: "compute/instances/inst-00000001",
            resource: json!({
                "resourceId": "inst-00000001", "instanceID": "inst-00000001", "kind": "INSTANCE_KIND_METAL",
                "name": "no", "hostID": "host-00000001", "osID": "os-00000001",
                "localAccountID": "localaccount-00000001", "osUpdatePolicyID": "",
                "customConfigID": ["customconfig-00000001"], "securityFeature": "SECURITY_FEATURE_NONE",
                "updatePolicy": {"resourceId": "osupdatepolicy-00000001"}, "instanceStatus": "Running",
                "timestamps": times,
            }),
            post: "compute/instances",
            body: json!({
                "kind": "INSTANCE_KIND_METAL", "name": "no", "hostID": "host-00000001", "osID": "os-00000001",
                "localAccountID": "localaccount-00000001", "customConfigID": ["customconfig-00000001"],
                "osUpdatePolicyID": "osupdatepolicy-00000001", "securityFeature": "SECURITY_FEATURE_NONE",
            }),
        },
    ]
}

fn operating_systems(times: &Value) -> Vec<Sample> {
    let sha256 = "0123456789".repeat(6) + "0123";
    vec![Sample {
        noun: "os",
        get: "compute/os/os-00000001",
        resource: json!({
            "resourceId": "os-00000001", "osResourceID": "os-00000001", "name": "Edge 3",
            "architecture": "x86_64", "imageUrl": "https://images.example/edge.raw.gz", "imageId": "3.10",
            "sha256": sha256, "imageSignatures": ["key:signature"], "profileName": "edge",
            "description": "a\nb", "securityFeature": "SECURITY_FEATURE_NONE",
            "osType": "OS_TYPE_IMMUTABLE", "osProvider": "OS_PROVIDER_KIND_INFRA",
            "metadata": "{\"a\":\"1\"}", "timestamps": times, "registry": "release",
        }),
        post: "compute/os",
        body: json!({
            "name": "Edge 3", "architecture": "x86_64", "imageUrl": "https://images.example/edge.raw.gz",
            "imageId": "3.10", "sha256": sha256, "imageSignatures": ["key:signature"], "profileName": "edge",
            "description": "a\nb", "installedPackagesUrl": "", "securityFeature": "SECURITY_FEATURE_NONE",
            "osType": "OS_TYPE_IMMUTABLE", "osProvider": "OS_PROVIDER_KIND_INFRA",
            "metadata": "{\"a\":\"1\"}", "tlsCaCert": "", "existingCvesUrl": "", "fixedCvesUrl": "",
            "repoUrl": "",
        }),
    }]
}

fn day_zero(times: &Value) -> Vec<Sample> {
    vec![
        Sample {
            noun: "provider",
            get: "providers/provider-00000001",
            resource: json!({
                "resourceId": "provider-00000001", "providerID": "provider-00000001", "name": "racks",
                "providerKind": "PROVIDER_KIND_BAREMETAL", "providerVendor": "PROVIDER_VENDOR_LENOVO_LOCA",
                "apiEndpoint": "https://racks.example", "apiCredentials": ["hush"], "config": "{}",
                "timestamps": times,
            }),
            post: "providers",
            body: json!({
                "providerKind": "PROVIDER_KIND_BAREMETAL", "providerVendor": "PROVIDER_VENDOR_LENOVO_LOCA",
                "name": "racks", "apiEndpoint": "https://racks.example", "apiCredentials": ["hush"],
                "config": "{}",
            }),
        },
        Sample {
            noun: "custom-config",
            get: "customConfigs/customconfig-00000001",
            resource: json!({
                "resourceId": "customconfig-00000001", "name": "motd", "description": "on: first boot",
                "config": "#cloud-config\npackages: [jq]\n", "timestamps": times,
            }),
            post: "customConfigs",
            body: json!({
                "name": "motd", "description": "on: first boot", "config": "#cloud-config\npackages: [jq]\n",
            }),
        },
        Sample {
            noun: "notification-target",
            get: "notification-targets/notificationtarget-00000001",
            resource: json!({
                "resourceId": "notificationtarget-00000001", "name": "chat: 1",
                "url": "https://hooks.example/a", "events": ["run-failed"], "enabled": false,
                "secret": null, "timestamps": times,
            }),
            post: "notification-targets",
            body: json!({
                "name": "chat: 1", "url": "https://hooks.example/a", "events": ["run-failed"],
            }),
        },
        Sample {
            noun: "account",
            get: "localAccounts/localaccount-00000001",
            resource: json!({
                "resourceId": "localaccount-00000001", "localAccountID": "localaccount-00000001",
                "username": "alice", "sshKey": "ssh-ed25519 AAAA alice@desk", "timestamps": times,
            }),
            post: "localAccounts",
            body: json!({"username": "alice", "sshKey": "ssh-ed25519 AAAA alice@desk"}),
        },
    ]
}

fn image_policy(times: &Value) -> Sample {
    Sample {
        noun: "policy",
        get: "os-update-policies/osupdatepolicy-00000001",
        resource: json!({
            "resourceId": "osupdatepolicy-00000001", "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET",
            "targetOsId": "", "targetOs": {"resourceId": "os-00000001", "name": "Edge 3"},
            "allowDowngrade": true, "offlineDays": 7, "imageRules": {"attempts": 3}, "timestamps": times,
        }),
        post: "os-update-policies",
        body: json!({
            "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": "os-00000001",
            "allowDowngrade": true, "offlineDays": 7, "packageRules": {}, "imageRules": {"attempts": 3},
        }),
    }
}

fn package_policy(times: &Value) -> Sample {
    Sample {
        noun: "policy",
        get: "os-update-policies/osupdatepolicy-00000002",
        resource: json!({
            "resourceId": "osupdatepolicy-00000002", "name": "tools", "description": "1.0",
            "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl=8.5\njq",
            "updateSources": ["Types: deb\nURIs: https://deb.example\n"], "targetOs": null,
            "offlineDays": 0, "packageRules": {"suites": ["bookworm-security"], "reboot": "NEVER"},
            "timestamps": times,
        }),
        post: "os-update-policies",
        body: json!({
            "name": "tools", "description": "1.0", "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": "curl=8.5\njq", "updateSources": ["Types: deb\nURIs: https://deb.example\n"],
            "allowDowngrade": false, "offlineDays": 0,
            "packageRules": {"suites": ["bookworm-security"], "reboot": "NEVER"}, "imageRules": {},
        }),
    }
}

fn single_schedule(times: &Value) -> Sample {
    Sample {
        noun: "schedule",
        get: "schedules/single/singlesche-00000001",
        resource: json!({
            "resourceId": "singlesche-00000001", "singleScheduleID": "singlesche-00000001", "name": "tonight",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": 1_896_127_200_u32, "endSeconds": 0,
            "targetSiteId": "site-00000001", "targetSite": {"name": "bonn"}, "timestamps": times,
        }),
        post: "schedules/single",
        body: json!({
            "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": 1_896_127_200_u32, "targetSiteId": "site-00000001",
        }),
    }
}

fn repeated_schedule(times: &Value) -> Sample {
    Sample {
        noun: "schedule",
        get: "schedules/repeated/repeatedsche-00000001",
        resource: json!({
            "resourceId": "repeatedsche-00000001", "repeatedScheduleID": "repeatedsche-00000001",
            "name": "nightly", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 7_200,
            "cronMinutes": "0", "cronHours": "2", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "1-5",
            "timeZone": "Europe/Berlin", "targetRegionId": "region-00000001", "timestamps": times,
        }),
        post: "schedules/repeated",
        body: json!({
            "name": "nightly", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 7_200,
            "cronMinutes": "0", "cronHours": "2", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "1-5",
            "timeZone": "Europe/Berlin", "targetRegionId": "region-00000001",
        }),
    }
}

#[tokio::test]
async fn what_get_prints_create_accepts() {
    for format in ["yaml", "json"] {
        for Sample { noun, get, resource, post, body } in samples() {
            let cli = TestCli::new().await;
            cli.fake_server
                .answer(&format!("GET {get}"), resource.clone())
                .answer(&format!("POST {post}"), resource);
            let id = get.rsplit('/').next().expect("an ID");
            let text = cli.run(&format!("evenkeel {noun} get {id} -o {format}")).await;
            let file = cli.home.path().join("resource");
            std::fs::write(&file, text).expect("written");
            cli.run(&format!("evenkeel {noun} create -f {}", file.display())).await;
            let requests = cli.fake_server.requests();
            let request = requests.lines().last().expect("a request");
            let sent = request.strip_prefix(&format!("POST {post} ")).expect("the body");
            let sent: Value = serde_json::from_str(sent).expect("JSON");
            assert_eq!(sent, body, "{noun} as {format}");
        }
    }
}

#[tokio::test]
async fn a_file_with_an_unknown_field_is_refused_with_its_name() {
    let cli = TestCli::new().await;
    let file = cli.home.path().join("region.yaml");
    std::fs::write(&file, "name: emea\nparent: world\n").expect("written");
    let failure = cli.bare(&format!("evenkeel region create -f {}", file.display()), "").await;
    let failure = failure.expect_err("an unknown field");
    let message = evenkeel_kit::chain(&failure).to_string();
    let expected = format!("{} is not a region: unknown field `parent`", file.display());
    assert!(message.starts_with(&expected), "{message}");
}

/// Each row: a command that gives a taken name, the resource, its list with its key, and its ID.
const TAKEN_NAMES: &[(&str, &str, &str, &str, &str)] = &[
    ("region create emea", "region", "regions", "regions", "region-00000001"),
    ("region set region-00000002 --name emea", "region", "regions", "regions", "region-00000001"),
    ("site create emea", "site", "sites", "sites", "site-00000001"),
    ("site set site-00000002 --name emea", "site", "sites", "sites", "site-00000001"),
    ("host create emea", "host", "compute/hosts", "hosts", "host-00000001"),
    ("host register emea --serial ABC12345", "host", "compute/hosts", "hosts", "host-00000001"),
    ("host set host-00000002 --name emea", "host", "compute/hosts", "hosts", "host-00000001"),
    (
        "instance create --host host-00000001 --os os-00000001 --name emea",
        "instance",
        "compute/instances",
        "instances",
        "inst-00000001",
    ),
    (
        "instance set inst-00000002 --name emea",
        "instance",
        "compute/instances",
        "instances",
        "inst-00000001",
    ),
    (
        "policy create emea --latest",
        "policy",
        "os-update-policies",
        "osUpdatePolicies",
        "osupdatepolicy-00000001",
    ),
    (
        "schedule create emea --start now --site site-00000001",
        "schedule",
        "compute/schedules",
        "repeatedSchedules",
        "repeatedsche-00000001",
    ),
    (
        "schedule set singlesche-00000002 --name emea",
        "schedule",
        "compute/schedules",
        "repeatedSchedules",
        "repeatedsche-00000001",
    ),
];

#[tokio::test]
async fn a_name_that_is_taken_is_refused_unless_duplicates_are_allowed() {
    let list = |key: &str, id: &str| {
        let mut list = json!({
            "singleSchedules": [], "repeatedSchedules": [], "totalElements": 1, "hasNext": false,
        });
        list[key] = json!([{"resourceId": id, "name": "emea"}]);
        list
    };
    for (create, kind, get, key, id) in TAKEN_NAMES {
        let cli = TestCli::new().await;
        cli.fake_server.answer(&format!("GET {get}"), list(key, id));
        let line = format!("evenkeel {create}");
        let expected = format!(
            "the {kind} {id} already has the name `emea`\n\
             hint: choose another name, or add --allow-duplicate"
        );
        assert_eq!(cli.fail(&line).await, expected, "{create}");
        // The request is sent; the fake server has no response to it.
        cli.fail(&format!("{line} --allow-duplicate")).await;
        let requests = cli.fake_server.requests();
        let sent: Vec<_> = requests.lines().filter(|line| !line.starts_with("GET")).collect();
        assert_eq!(sent.len(), 1, "{create}: {sent:?}");
    }
}

#[tokio::test]
async fn a_resource_may_keep_its_name() {
    let cli = TestCli::new().await;
    let region = json!({"resourceId": "region-00000001", "name": "emea"});
    let list = json!({"regions": [region], "totalElements": 1, "hasNext": false});
    cli.fake_server.answer("GET regions", list).answer("PATCH regions/region-00000001", region);
    cli.run("evenkeel region set emea --name emea --no-parent").await;
}
