//! The catalogue of images, and the policies that want some of them.

use evenkeel_simulator::eim::Picture;
use reqwest::Method;
use serde_json::{Value, json};

use super::book::{Aim, Book, Held, Published, Step};
use super::desk::{Desk, Trouble};
use super::replicas::machine_time;

/// The line of releases that all images are of.
pub const PROFILE: &str = "edge";

/// How many images there are at first.
const FIRST: u64 = 4;

/// The catalogue of images, and the policies that want some of them.
#[derive(Clone, Debug)]
pub struct Gallery {
    /// The image that all nodes run at first.
    pub oldest: String,
    /// The policies, those that are there at first.
    pub policies: Vec<String>,
    /// The number of the image that was published last.
    last: u64,
    /// What was there at first.
    known: Book,
}

impl Gallery {
    /// Makes the first images and policies.
    ///
    /// # Panics
    /// They cannot be made.
    pub async fn open(desk: &Desk) -> Self {
        let mut gallery = Self {
            oldest: String::new(),
            policies: Vec::new(),
            last: 0,
            known: Book::default(),
        };
        let mut ids = Vec::new();
        for number in 1..=FIRST {
            let asked = machine_time();
            ids.push(desk.make("/compute/os", &entry(number)).await);
            let done = Some(machine_time());
            gallery.note(number, Step { asked, done });
        }
        gallery.oldest.clone_from(&ids[0]);
        let latest = json!({ "name": "newest", "updatePolicy": "UPDATE_POLICY_LATEST" });
        gallery.policy(desk, &latest, Aim::Newest).await;
        for (number, os) in (1..).zip(&ids) {
            let back = target(&version(number), os, true);
            gallery
                .policy(desk, &back, Aim::Image(version(number)))
                .await;
            let onward = target(&version(number), os, false);
            gallery
                .policy(desk, &onward, Aim::NewerImage(version(number)))
                .await;
        }
        gallery
    }

    /// What is known of images, for a new book.
    pub fn book(&self) -> Book {
        self.known.clone()
    }

    /// The image of a number as the ancestor's agent knows it.
    pub fn first_picture() -> Picture {
        Picture {
            profile: PROFILE.to_owned(),
            image: version(1),
            sha: sha(1),
        }
    }

    /// Publishes a newer image, and mostly a policy that wants just that one. Whether the server heard of it is not
    /// always known.
    ///
    /// # Panics
    /// It refuses.
    pub async fn publish(&mut self, desk: &Desk, server: usize, book: &mut Book) {
        self.last += 1;
        let number = self.last;
        let asked = machine_time();
        let made = ask(desk, server, "/compute/os", &entry(number)).await;
        let done = made.is_some().then(machine_time);
        book.images.push(published(number, Step { asked, done }));
        let Some(os) = made else { return };
        let policy = target(&version(number), &os, false);
        if let Some(policy) = ask(desk, server, "/os-update-policies", &policy).await {
            book.aims
                .insert(policy.clone(), Aim::NewerImage(version(number)));
            self.policies.push(policy);
        }
    }

    fn note(&mut self, number: u64, step: Step) {
        self.last = number;
        self.known.images.push(published(number, step));
    }

    async fn policy(&mut self, desk: &Desk, body: &Value, aim: Aim) {
        let policy = desk.make("/os-update-policies", body).await;
        self.known.aims.insert(policy.clone(), aim);
        self.policies.push(policy);
    }
}

/// Asks once for something to be made. Returns its id; none if nobody knows whether it was.
async fn ask(desk: &Desk, server: usize, path: &str, body: &Value) -> Option<String> {
    match desk.ask(server, Method::POST, path, Some(body)).await {
        Ok(made) => Some(made["resourceId"].as_str().unwrap_or_default().to_owned()),
        Err(Trouble::Unsure) => None,
        Err(Trouble::Refused(status, text)) => panic!("POST {path} {body}: {status} {text}"),
    }
}

fn version(number: u64) -> String {
    format!("3.0.{number}")
}

fn sha(number: u64) -> String {
    format!("{number:064x}")
}

fn published(number: u64, made: Step) -> Published {
    Published {
        image: version(number),
        held: Held::since(made),
    }
}

fn entry(number: u64) -> Value {
    let image = version(number);
    json!({
        "name": format!("Edge {image}"), "osType": "OS_TYPE_IMMUTABLE", "profileName": PROFILE,
        "imageId": image, "imageUrl": format!("edge/{image}.raw.gz"), "sha256": sha(number),
    })
}

fn target(name: &str, os: &str, allow_downgrade: bool) -> Value {
    json!({
        "name": format!("image {name}"), "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os, "allowDowngrade": allow_downgrade,
    })
}
