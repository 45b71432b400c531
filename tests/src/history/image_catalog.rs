//! The catalogue of images, and the policies for them.

use evenkeel_simulator::eim::EimImage;
use reqwest::Method;
use serde_json::{Value, json};

use super::operator_client::{CallError, OperatorClient};
use super::operator_log::{Action, DesiredImage, ImageRecord, OperatorLog, Validity};
use super::replicas::machine_time;

pub const PROFILE: &str = "edge";

/// Number of images at the start.
const INITIAL_IMAGES: u64 = 4;

/// The catalogue of images, and the policies for them.
#[derive(Clone, Debug)]
pub struct ImageCatalog {
    /// ID of the image that all nodes run at the start.
    pub oldest: String,
    /// IDs of the policies, starting with those that were created first.
    pub policies: Vec<String>,
    /// Number of the last published image.
    last_number: u64,
    /// Images and policies that exist at the start.
    initial_log: OperatorLog,
}

impl ImageCatalog {
    /// Creates the first images and policies.
    ///
    /// # Panics
    /// They cannot be created.
    pub async fn create(client: &OperatorClient) -> Self {
        let mut catalog = Self {
            oldest: String::new(),
            policies: Vec::new(),
            last_number: 0,
            initial_log: OperatorLog::default(),
        };
        let mut ids = Vec::new();
        for number in 1..=INITIAL_IMAGES {
            let requested_at = machine_time();
            ids.push(client.create("compute/os", &os_body(number)).await);
            let done = Some(machine_time());
            catalog.record_image(number, Action { requested_at, done_at: done });
        }
        catalog.oldest.clone_from(&ids[0]);
        let latest = json!({ "name": "newest", "updatePolicy": "UPDATE_POLICY_LATEST" });
        catalog.create_policy(client, &latest, DesiredImage::Newest).await;
        for (number, os) in (1..).zip(&ids) {
            let back = policy_body(&version(number), os, true);
            catalog.create_policy(client, &back, DesiredImage::Image(version(number))).await;
            let onward = policy_body(&version(number), os, false);
            catalog.create_policy(client, &onward, DesiredImage::NewerImage(version(number))).await;
        }
        catalog
    }

    /// Log of the images and policies that exist at the start.
    pub fn initial_log(&self) -> OperatorLog {
        self.initial_log.clone()
    }

    /// The first image as EIM's agent knows it.
    pub fn first_image() -> EimImage {
        EimImage { profile: PROFILE.to_owned(), version: version(1), sha: sha(1) }
    }

    /// Publishes a newer image, and usually a policy for this image. The result may stay unknown if the server was
    /// killed.
    ///
    /// # Panics
    /// The server rejects a request.
    pub async fn publish(&mut self, client: &OperatorClient, server: usize, log: &mut OperatorLog) {
        self.last_number += 1;
        let number = self.last_number;
        let requested_at = machine_time();
        let created = create(client, server, "compute/os", &os_body(number)).await;
        let done = created.is_some().then(machine_time);
        log.images.push(image_record(number, Action { requested_at, done_at: done }));
        let Some(os) = created else { return };
        let policy = policy_body(&version(number), &os, false);
        if let Some(policy) = create(client, server, "os-update-policies", &policy).await {
            log.desired_images.insert(policy.clone(), DesiredImage::NewerImage(version(number)));
            self.policies.push(policy);
        }
    }

    fn record_image(&mut self, number: u64, action: Action) {
        self.last_number = number;
        self.initial_log.images.push(image_record(number, action));
    }

    async fn create_policy(
        &mut self,
        client: &OperatorClient,
        body: &Value,
        desired: DesiredImage,
    ) {
        let policy = client.create("os-update-policies", body).await;
        self.initial_log.desired_images.insert(policy.clone(), desired);
        self.policies.push(policy);
    }
}

/// Sends one request to create something. Returns its ID, or `None` if the result is unknown.
async fn create(
    client: &OperatorClient,
    server: usize,
    path: &str,
    body: &Value,
) -> Option<String> {
    match client.send(server, Method::POST, path, Some(body)).await {
        Ok(created) => Some(created["resourceId"].as_str().unwrap_or_default().to_owned()),
        Err(CallError::Unknown) => None,
        Err(CallError::Refused(status, text)) => panic!("POST {path} {body}: {status} {text}"),
    }
}

fn version(number: u64) -> String {
    format!("3.0.{number}")
}

fn sha(number: u64) -> String {
    format!("{number:064x}")
}

fn image_record(number: u64, created: Action) -> ImageRecord {
    ImageRecord { image: version(number), validity: Validity::since(created) }
}

fn os_body(number: u64) -> Value {
    let image = version(number);
    json!({
        "name": format!("Edge {image}"), "osType": "OS_TYPE_IMMUTABLE", "profileName": PROFILE,
        "imageId": image, "imageUrl": format!("edge/{image}.raw.gz"), "sha256": sha(number),
    })
}

fn policy_body(name: &str, os: &str, allow_downgrade: bool) -> Value {
    json!({
        "name": format!("image {name}"), "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os, "allowDowngrade": allow_downgrade,
    })
}
