//! Bad input, one case a line. Each case has its status and EIM's code; none is an internal error,
//! and none changes anything.

mod bodies;
mod cases;
mod filters;
mod parameters;
mod tokens;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::statuses::operations;
use crate::test_server::{
    Caller, ID_PLACEHOLDERS, SSH_KEY, TestServer, nightly, notification_target, os_body,
    resource_id,
};

/// Prefix of the document's paths in a project.
const PROJECT_PREFIX: &str = "/v1/projects/{projectName}/";

/// A project with one resource of each kind, as the target of invalid requests.
struct BadInputFixture {
    server: TestServer,
    /// Ids by the name that the cases use.
    ids: Vec<(&'static str, String)>,
    /// Valid bodies by request.
    valid_bodies: Vec<(&'static str, Value)>,
    /// Everything that can be read of the project, before the invalid requests.
    initial_state: Vec<(String, Value)>,
}

impl BadInputFixture {
    async fn new() -> Self {
        let (server, resources) = TestServer::with_resources().await;
        let mut deep = resources.region.clone();
        for n in 2..=5 {
            let inner = json!({"name": format!("level {n}"), "parentId": deep});
            deep = create(&server, "regions", inner).await;
        }
        let alone = create(&server, "regions", json!({"name": "alone"})).await;
        let bare = json!({"serialNumber": "BARE12345"});
        let bare = create(&server, "compute/hosts/register", bare).await;
        let mut image = os_body("Edge 3");
        image["osType"] = json!("OS_TYPE_IMMUTABLE");
        let image = create(&server, "compute/os", image).await;
        let for_images = json!({
            "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image,
        });
        let for_images = create(&server, "os-update-policies", for_images).await;
        for (what, body) in provisioning_bodies("first") {
            server.expect_ok(what, Some(body)).await;
        }
        let valid_bodies = valid_bodies(&server, &bare, &resources.os);
        let initial_state = read_all(&server).await;
        let ids = vec![
            ("region", resources.region),
            ("deep", deep),
            ("alone", alone),
            ("site", resources.site),
            ("host", resources.host),
            ("bare", bare),
            ("os", resources.os),
            ("image", image),
            ("policy", resources.policy),
            ("for images", for_images),
            ("instance", resources.instance),
            ("single", resources.schedule),
            ("repeated", resources.repeated),
            ("run", resources.run),
        ];
        Self { server, ids, valid_bodies, initial_state }
    }

    /// The text of a case with its placeholders replaced.
    fn fill_placeholders(&self, text: &str) -> String {
        let labels: Vec<Value> =
            (0..101).map(|n| json!({"key": format!("k{n}"), "value": ""})).collect();
        let signatures = vec![format!("{}:abc=", "a".repeat(64)); 9];
        let mut text = text
            .replace("<101 labels>", &Value::from(labels).to_string())
            .replace("<9 signatures>", &Value::from(signatures).to_string());
        for (name, id) in &self.ids {
            text = text.replace(&format!("<{name}>"), id);
        }
        for length in [33, 64, 129, 201, 254, 501, 1_001] {
            text = text.replace(&format!("<{length}>"), &"a".repeat(length));
        }
        text
    }

    /// The valid body of a request, if there is one, with these members replaced.
    fn body_with(&self, what: &str, members: &Value) -> Value {
        let valid = self.valid_bodies.iter().find(|(request, _)| *request == what);
        let mut body = valid.map_or_else(|| json!({}), |(_, body)| body.clone());
        for (name, value) in members.as_object().expect("an object") {
            body[name.as_str()] = value.clone();
        }
        body
    }

    /// Checks that the rejected requests changed nothing.
    async fn assert_unchanged(&self) {
        for ((path, initial), (_, now)) in
            self.initial_state.iter().zip(read_all(&self.server).await)
        {
            assert!(*initial == now, "{path} was changed: {now}");
        }
    }
}

async fn create(server: &TestServer, list: &str, body: Value) -> String {
    resource_id(&server.post(list, body).await)
}

/// Bodies of the resources for provisioning, all with this name.
fn provisioning_bodies(name: &str) -> [(&'static str, Value); 3] {
    let provider = json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "name": name, "apiEndpoint": "https://loca/api",
    });
    [
        ("POST providers", provider),
        ("POST customConfigs", json!({"name": name, "config": "#cloud-config"})),
        ("POST localAccounts", json!({"username": name, "sshKey": SSH_KEY})),
    ]
}

/// A valid body for each kind of resource.
fn valid_bodies(server: &TestServer, host: &str, os: &str) -> Vec<(&'static str, Value)> {
    let policy = json!({
        "name": "new", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl",
    });
    let single = json!({
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": server.seconds(60),
    });
    let mut bodies = vec![
        ("POST regions", json!({"name": "new"})),
        ("POST sites", json!({"name": "new"})),
        ("POST compute/hosts", json!({"name": "new"})),
        ("POST compute/hosts/register", json!({"serialNumber": "NEW12345"})),
        ("POST compute/instances", json!({"hostID": host, "osID": os})),
        ("POST compute/os", os_body("new")),
        ("POST os-update-policies", policy),
        ("POST schedules/single", single),
        ("POST schedules/repeated", nightly("")),
        ("POST join-tokens", json!({})),
        ("POST notification-targets", notification_target("second")),
        ("POST operator-tokens", json!({"name": "new", "role": "viewer"})),
    ];
    bodies.extend(provisioning_bodies("second"));
    bodies
}

/// Everything that can be read of the project without an id.
async fn read_all(server: &TestServer) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (method, path, _) in operations() {
        let Some(path) = path.strip_prefix(PROJECT_PREFIX).filter(|_| method == "GET") else {
            continue;
        };
        // These need an id or a name.
        if path.contains('{') || path == "locations" {
            continue;
        }
        let mut answer = server.get(path).await;
        // It depends on the open transactions of other databases.
        if let Some(list) = answer.as_object_mut() {
            list.remove("cursor");
        }
        all.push((path.to_owned(), answer));
    }
    assert!(all.len() > 20, "only {} lists were read", all.len());
    all
}

/// A path of the document, in the project `ours`, with its id replaced.
fn fill_id(path: &str, id: &str) -> String {
    let path = path.replace("{projectName}", "ours");
    ID_PLACEHOLDERS.iter().fold(path, |path, placeholder| path.replace(placeholder, id))
}

/// Status, code and field (or parameter) of a response.
fn describe_response((status, answer): &(StatusCode, Value)) -> String {
    let of = |member: &str| answer[member].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", status.as_u16(), of("code"), of("field"))
}

/// Counts the cases and collects those with the wrong response.
#[derive(Default)]
struct CaseResults {
    checked: usize,
    failures: Vec<String>,
}

impl CaseResults {
    /// Compares the response of a case with the expected one.
    fn check(&mut self, case: &str, actual: &str, expected: &str, answer: &Value) {
        self.checked += 1;
        if actual != expected {
            let message = &answer["message"];
            self.failures
                .push(format!("{case:.200}\n  expected {expected}\n  actual   {actual} {message}"));
        }
    }

    /// Checks that there were enough cases and that all passed.
    fn assert_all_passed(self, at_least: usize) {
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
        assert!(self.checked >= at_least, "only {} cases were checked", self.checked);
    }
}

#[tokio::test]
async fn the_unmodified_bodies_are_accepted() {
    let fixture = BadInputFixture::new().await;
    let administrator = fixture.server.client_of(Caller::Administrator);
    for (what, body) in &fixture.valid_bodies {
        administrator.expect_ok(what, Some(body.clone())).await;
    }
}
