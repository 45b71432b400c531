//! Bad input, one line a case: each has its status and the ancestor's code, none is an error of ours, and none leaves
//! anything behind.

mod bodies;
mod cases;
mod filters;
mod parameters;
mod tokens;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, KEY, NAMED, id_of, nightly, os_body};
use crate::statuses::operations;

/// What the paths of a project begin with in the document.
const PROJECT: &str = "/v1/projects/{projectName}/";

/// A project with something of each kind, to be asked for what cannot be.
struct Ground {
    house: House,
    /// Ids, by what cases call them.
    ids: Vec<(&'static str, String)>,
    /// Bodies that are taken as they are, by what is asked with them.
    good: Vec<(&'static str, Value)>,
    /// All that could be read of it before.
    before: Vec<(String, Value)>,
}

impl Ground {
    async fn new() -> Self {
        let house = House::new().await;
        let things = house.furnish().await;
        let mut deep = things.region.clone();
        for n in 2..=5 {
            let inner = json!({"name": format!("level {n}"), "parentId": deep});
            deep = made(&house, "regions", inner).await;
        }
        let alone = made(&house, "regions", json!({"name": "alone"})).await;
        let bare = json!({"serialNumber": "BARE12345"});
        let bare = made(&house, "compute/hosts/register", bare).await;
        let mut image = os_body("Edge 3");
        image["osType"] = json!("OS_TYPE_IMMUTABLE");
        let image = made(&house, "compute/os", image).await;
        let for_images = json!({
            "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image,
        });
        let for_images = made(&house, "os-update-policies", for_images).await;
        for (what, body) in first_day("first") {
            house.ok(what, Some(body)).await;
        }
        let good = good(&house, &bare, &things.os);
        let before = everything(&house).await;
        let ids = vec![
            ("region", things.region),
            ("deep", deep),
            ("alone", alone),
            ("site", things.site),
            ("host", things.host),
            ("bare", bare),
            ("os", things.os),
            ("image", image),
            ("policy", things.policy),
            ("for images", for_images),
            ("instance", things.instance),
            ("single", things.schedule),
            ("repeated", things.repeated),
            ("run", things.run),
        ];
        Self {
            house,
            ids,
            good,
            before,
        }
    }

    /// The text of a case with what it names.
    fn filled(&self, text: &str) -> String {
        let labels: Vec<Value> = (0..101)
            .map(|n| json!({"key": format!("k{n}"), "value": ""}))
            .collect();
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

    /// The good body of what is asked, if there is one, with these members in place of its own.
    fn spoiled(&self, what: &str, members: &Value) -> Value {
        let good = self.good.iter().find(|(known, _)| *known == what);
        let mut body = good.map_or_else(|| json!({}), |(_, body)| body.clone());
        for (name, value) in members.as_object().expect("an object") {
            body[name.as_str()] = value.clone();
        }
        body
    }

    /// What was refused has left nothing behind.
    async fn stays_as_it_was(&self) {
        for ((path, before), (_, now)) in self.before.iter().zip(everything(&self.house).await) {
            assert!(*before == now, "{path} was changed: {now}");
        }
    }
}

async fn made(house: &House, list: &str, body: Value) -> String {
    id_of(&house.ok(&format!("POST {list}"), Some(body)).await)
}

/// What the first start of a machine takes, under this name.
fn first_day(name: &str) -> [(&'static str, Value); 3] {
    let provider = json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "name": name, "apiEndpoint": "https://loca/api",
    });
    [
        ("POST providers", provider),
        (
            "POST customConfigs",
            json!({"name": name, "config": "#cloud-config"}),
        ),
        (
            "POST localAccounts",
            json!({"username": name, "sshKey": KEY}),
        ),
    ]
}

/// A body for everything that can be made.
fn good(house: &House, host: &str, os: &str) -> Vec<(&'static str, Value)> {
    let policy = json!({
        "name": "new", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl",
    });
    let single = json!({
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": house.seconds(60),
    });
    let mut good = vec![
        ("POST regions", json!({"name": "new"})),
        ("POST sites", json!({"name": "new"})),
        ("POST compute/hosts", json!({"name": "new"})),
        (
            "POST compute/hosts/register",
            json!({"serialNumber": "NEW12345"}),
        ),
        (
            "POST compute/instances",
            json!({"hostID": host, "osID": os}),
        ),
        ("POST compute/os", os_body("new")),
        ("POST os-update-policies", policy),
        ("POST schedules/single", single),
        ("POST schedules/repeated", nightly("")),
        ("POST join-tokens", json!({})),
    ];
    good.extend(first_day("second"));
    good
}

/// All that can be read of the project without naming anything.
async fn everything(house: &House) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (method, path, _) in operations() {
        let Some(path) = path.strip_prefix(PROJECT).filter(|_| method == "GET") else {
            continue;
        };
        // These ask for a name.
        if path.contains('{') || path == "locations" {
            continue;
        }
        let answer = house.ok(&format!("GET {path}"), None).await;
        all.push((path.to_owned(), answer));
    }
    assert!(all.len() > 20, "only {} lists are there", all.len());
    all
}

/// A path of the document in the project, with an id of whatever it names.
fn with_id(path: &str, id: &str) -> String {
    let path = path.replace("{projectName}", "ours");
    NAMED
        .iter()
        .fold(path, |path, named| path.replace(named, id))
}

/// What an answer says: its status, its code, and the field or parameter that it is about.
fn told((status, answer): &(StatusCode, Value)) -> String {
    let of = |member: &str| answer[member].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", status.as_u16(), of("code"), of("field"))
}

/// The cases that were answered otherwise than they should be.
#[derive(Default)]
struct Wrong {
    tried: usize,
    cases: Vec<String>,
}

impl Wrong {
    /// Looks whether a case was told what is wanted.
    fn look(&mut self, case: &str, told: &str, wanted: &str, answer: &Value) {
        self.tried += 1;
        if told != wanted {
            let message = &answer["message"];
            self.cases.push(format!(
                "{case:.200}\n  wanted {wanted}\n  told   {told} {message}"
            ));
        }
    }

    /// There were many cases, and none of them is wrong.
    fn end(self, at_least: usize) {
        assert!(self.cases.is_empty(), "{}", self.cases.join("\n"));
        assert!(self.tried >= at_least, "only {} were tried", self.tried);
    }
}

#[tokio::test]
async fn what_the_cases_spoil_is_good() {
    let ground = Ground::new().await;
    for (what, body) in &ground.good {
        ground.house.ok(what, Some(body.clone())).await;
    }
}
