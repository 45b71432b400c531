//! Streams of changes while the server is killed: each sees every committed change exactly once.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_WATCHED_CHANGES` | number of changes of all writers |
//! | `EVENKEEL_WATCH_SEED` | seed that decides when the clients connect again |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_simulator::rng::Rng;
use evenkeel_test_support::install_tls;
use evenkeel_tests::history::{OperatorClient, Replicas, number, print_progress};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const WRITERS: u64 = 4;

const WATCHERS: u64 = 3;

const KILLS: u64 = 3;

/// Longest time without an event or an answer on a busy machine.
const PROGRESS_TIMEOUT: Duration = Duration::from_mins(2);

/// Pause before a client connects again, and between two looks at the progress of the writers.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The object of the last change, after all others.
const LAST_KIND: &str = "pause";

/// A client of the stream, which continues after the last event that it has received.
struct Watcher {
    url: String,
    token: String,
    http: Client,
    last_event: String,
    rng: Rng,
    /// IDs of the changes in the order of the events.
    seen: Vec<String>,
    connections: u64,
}

impl Watcher {
    /// Watches until the last change, and connects again after a random number of events.
    async fn run(mut self) -> Self {
        loop {
            let mut response = self.connect().await;
            self.connections += 1;
            let events = self.rng.between(1, 60);
            if self.read_events(&mut response, events).await {
                return self;
            }
        }
    }

    /// Connects until the server answers.
    async fn connect(&self) -> Response {
        let begun = Instant::now();
        loop {
            let request = self.http.get(&self.url).bearer_auth(&self.token);
            let request = request.header("Last-Event-ID", &self.last_event);
            match request.send().await {
                Ok(response) if response.status().is_success() => return response,
                Ok(response) => assert_eq!(response.status(), 503, "{}", self.last_event),
                // The server was killed.
                Err(_) => {}
            }
            assert!(begun.elapsed() < PROGRESS_TIMEOUT, "the server does not answer");
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Reads at most this number of events. Returns whether the last change was among them.
    async fn read_events(&mut self, response: &mut Response, max_events: u64) -> bool {
        let (mut received, mut events) = (Vec::new(), 0);
        while events < max_events {
            let chunk = timeout(PROGRESS_TIMEOUT, response.chunk()).await;
            let Ok(Some(chunk)) = chunk.expect("events or bookmarks") else {
                return false;
            };
            received.extend_from_slice(&chunk);
            while let Some(end) = received.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = received.drain(..end + 2).collect();
                let block = String::from_utf8(block).expect("a text");
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                let Some(id) = field("id: ") else { continue };
                id.clone_into(&mut self.last_event);
                events += 1;
                if field("event: ") != Some("change") {
                    continue;
                }
                let change: Value =
                    serde_json::from_str(field("data: ").expect("data")).expect("JSON");
                self.seen.push(change_id(&change));
                if change["kind"] == LAST_KIND {
                    return true;
                }
                if events >= max_events {
                    // What follows in this chunk is lost, and is sent again.
                    return false;
                }
            }
        }
        false
    }
}

fn change_id(change: &Value) -> String {
    change["changeId"].as_str().expect("an id").to_owned()
}

/// All changes of the project, oldest first.
async fn list_changes(client: &OperatorClient) -> Vec<String> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("changes?pageSize=100{token}")).await;
        all.extend(page["changes"].as_array().expect("changes").iter().map(change_id));
        if page["hasNext"] == false {
            all.reverse();
            return all;
        }
        token = format!("&pageToken={}", page["nextPageToken"].as_str().expect("a token"));
    }
}

/// Renames a host again and again. The server may be killed before it answers, so a change may be
/// repeated.
async fn write(client: OperatorClient, writer: u64, changes: u64, done: Arc<AtomicU64>) {
    let body = json!({ "name": format!("writer-{writer}") });
    let host = client.create("compute/hosts/register", &with_uuid(&body, writer)).await;
    for n in 0..changes {
        let body = json!({ "name": format!("writer-{writer}-{n}") });
        let path = format!("compute/hosts/{host}");
        let (renamed, _) = client.until_done(Method::PATCH, &path, Some(&body)).await;
        renamed.unwrap_or_else(|error| panic!("{path}: {error:?}"));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn with_uuid(body: &Value, writer: u64) -> Value {
    let mut body = body.clone();
    body["uuid"] = json!(format!("00000000-0000-4000-8000-{writer:012}"));
    body
}

/// Kills the server whenever the writers have made another part of their changes.
async fn kill_repeatedly(replicas: &mut Replicas, done: &AtomicU64, changes: u64) {
    for kill in 1..=KILLS {
        let begun = Instant::now();
        while done.load(Ordering::Relaxed) < changes * kill / (KILLS + 1) {
            assert!(begun.elapsed() < PROGRESS_TIMEOUT * 10, "the writers make no progress");
            sleep(RETRY_INTERVAL).await;
        }
        let server = &mut replicas.servers()[0];
        server.kill();
        server.start_and_wait().await;
        print_progress(&format!("killed the server {kill} times"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_stream_sees_every_change_exactly_once_while_the_server_is_killed() {
    let seed = number("EVENKEEL_WATCH_SEED", u64::from(std::process::id()) * 7_919);
    let changes = number("EVENKEEL_WATCHED_CHANGES", 300);
    print_progress(&format!("EVENKEEL_WATCH_SEED={seed}"));
    install_tls();
    let mut replicas = Replicas::start(1, "").await;
    let (addresses, token) = (replicas.rest_addresses(), replicas.operator_token());
    let client = OperatorClient::new(&addresses, &token);
    let before = list_changes(&client).await;
    let cursor = client.get("changes").await["cursor"].as_str().expect("a cursor").to_owned();
    let mut watchers = JoinSet::new();
    for n in 0..WATCHERS {
        let watcher = Watcher {
            url: format!("http://{}/v1/projects/default/changes?watch=true", addresses[0]),
            token: token.clone(),
            http: Client::builder().no_proxy().build().expect("a client"),
            last_event: cursor.clone(),
            rng: Rng::new(seed, n),
            seen: Vec::new(),
            connections: 0,
        };
        watchers.spawn(watcher.run());
    }
    let (done, mut writers) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for writer in 0..WRITERS {
        writers.spawn(write(client.clone(), writer, changes / WRITERS, Arc::clone(&done)));
    }
    kill_repeatedly(&mut replicas, &done, changes / WRITERS * WRITERS).await;
    writers.join_all().await;
    let pause = json!({ "reason": "the end" });
    let (paused, _) = client.until_done(Method::PUT, "pauses/project", Some(&pause)).await;
    paused.expect("the last change");
    let mut expected = list_changes(&client).await;
    expected.retain(|id| !before.contains(id));
    assert!(expected.len() as u64 > changes / 2, "only {} changes", expected.len());
    for mut watcher in watchers.join_all().await {
        watcher.seen.retain(|id| !before.contains(id));
        let (count, connections) = (watcher.seen.len(), watcher.connections);
        assert_eq!(watcher.seen, expected, "{count} of {}, seed {seed}", expected.len());
        assert!(connections > KILLS, "only {connections} connections");
        print_progress(&format!("{count} changes in {connections} connections"));
    }
    replicas.stop().await;
}
