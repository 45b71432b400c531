//! Clients that open streams of changes and read nothing. Each costs a bounded amount of memory,
//! everything else goes on, and they are disconnected.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_SLOW_WATCHERS` | number of such clients |
//!
//! With the variable, the test also waits until the system has closed their connections.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use evenkeel_test_support::resource_id;
use serde_json::{Value, json};

use crate::nodes::metric;
use crate::overload::{self, Node};
use crate::test_server::{ServerProcess, TestServer, eventually};

const PROJECTS: [&str; 2] = ["default", "other"];

const USERS_PER_PROJECT: u32 = 2;

/// Number of clients that read nothing, without the variable.
const SAMPLE: u32 = 100;

/// The events of a project are four times as long as what the server may keep for a client.
const ROUNDS: usize = 75;

const CHANGES_PER_ROUND: usize = 2;

/// What `rest.max_watchers` promises for a stream whose client does not read.
const MAX_BYTES_PER_WATCHER: f64 = 500e3;

/// Memory for everything else that the process does meanwhile. All events of a project for each
/// client would be more.
const OTHER_BYTES: f64 = 64e6;

/// Longest time for a change to arrive at a client that reads.
const ARRIVAL_TIMEOUT: Duration = Duration::from_mins(2);

/// Longest duration of a poll and of a request while the others do not read.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);

/// Longest time until the kernel closes a connection whose client acknowledges nothing.
const CLOSE_TIMEOUT: Duration = Duration::from_mins(5);

const STREAMS: &str = "evenkeel_change_watchers";

const RESIDENT_BYTES: &str = "process_resident_memory_bytes";

/// Opens connections to a port, sends a request on each, and waits for the first bytes of the
/// response without taking them from the system. Ends with its standard input. With the segments of
/// a network and a small receive buffer, the system stores little for each client: over the loopback
/// interface, it would store megabytes.
const UNREAD_CLIENTS: &str = r#"
use strict; use warnings; use Socket;
my ($port, $count, $request) = @ARGV;
my @open;
for (1 .. $count) {
    socket(my $client, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
    setsockopt($client, 6, 2, pack('i', 1400)) or die "TCP_MAXSEG: $!";
    setsockopt($client, SOL_SOCKET, SO_RCVBUF, pack('i', 4096)) or die "SO_RCVBUF: $!";
    connect($client, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die "connect: $!";
    syswrite($client, $request) == length $request or die "write: $!";
    defined(recv($client, my $status, 12, MSG_PEEK)) or die "recv: $!";
    $status eq 'HTTP/1.1 200' or die "the server answers $status";
    push @open, $client;
}
$| = 1;
print "open\n";
<STDIN>;
"#;

/// Streams of one user that are never read. They end when this is dropped.
struct UnreadStreams(Child);

impl UnreadStreams {
    fn spawn(server: &ServerProcess, project: &str, token: &str, count: u32) -> Self {
        let request = format!("{}\r\n", request_head(project, token, "HTTP/1.1"));
        let port = server.address("rest").port().to_string();
        let mut perl = Command::new("perl");
        perl.args(["-e", UNREAD_CLIENTS, &port, &count.to_string(), &request]);
        Self(perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn wait_until_open(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n", "a stream was refused");
    }
}

impl Drop for UnreadStreams {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn request_head(project: &str, token: &str, version: &str) -> String {
    format!(
        "GET /v1/projects/{project}/changes?watch=true {version}\r\nhost: localhost\r\n\
         authorization: Bearer {token}\r\n"
    )
}

/// A client that reads, and what it has received.
struct HealthyWatcher {
    project: &'static str,
    changes: Receiver<Value>,
    /// Ids of the changes in the order of their arrival.
    seen: Vec<String>,
}

impl HealthyWatcher {
    fn open(server: &ServerProcess, project: &'static str, token: &str) -> Self {
        let mut stream = TcpStream::connect(server.address("rest")).unwrap();
        let request = format!("{}\r\n", request_head(project, token, "HTTP/1.0"));
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next().unwrap().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        let (sender, changes) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some(data) = line.strip_prefix("data: ") else { continue };
                let change: Value = serde_json::from_str(data).unwrap();
                if change["changeId"].is_string() && sender.send(change).is_err() {
                    return;
                }
            }
        });
        Self { project, changes, seen: Vec::new() }
    }

    /// Waits for the change of an object.
    fn wait_for(&mut self, object: &str) {
        loop {
            let change = self.changes.recv_timeout(ARRIVAL_TIMEOUT).expect("the next change");
            self.seen.push(change["changeId"].as_str().unwrap().to_owned());
            if change["objectId"] == *object {
                return;
            }
        }
    }
}

/// Sends a request with a JSON body, which must succeed.
fn send(server: &ServerProcess, what: &str, token: &str, body: &Value) -> Value {
    let body = body.to_string();
    let request = format!(
        "{what} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, answer) = server.send("rest", &request);
    assert_eq!(status, 200, "{what}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

/// Creates a policy whose change is an event of about 13 KB. Returns its id.
fn create_policy(server: &ServerProcess, project: &str, token: &str, number: usize) -> String {
    let long = "x".repeat(96);
    let packages: Vec<String> = (0..120).map(|n| format!("{long}{n:04}")).collect();
    let policy = json!({
        "name": format!("policy-{number}"),
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": packages.join("\n"),
    });
    let path = format!("POST /v1/projects/{project}/os-update-policies");
    resource_id(&send(server, &path, token, &policy))
}

/// Ids of all changes of a project, oldest first.
fn list_changes(server: &ServerProcess, project: &str, token: &str) -> Vec<String> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/projects/{project}/changes?pageSize=100{page_token}");
        let (status, body) = server.get("rest", &path, Some(token));
        assert_eq!(status, 200, "{body}");
        let page: Value = serde_json::from_str(&body).unwrap();
        let changes = page["changes"].as_array().unwrap().iter();
        all.extend(changes.map(|change| change["changeId"].as_str().unwrap().to_owned()));
        if page["hasNext"] == false {
            all.reverse();
            return all;
        }
        page_token = format!("&pageToken={}", page["nextPageToken"].as_str().unwrap());
    }
}

/// A server that has room for these clients and two that read, and not for another one.
fn harness(slow: u32) -> TestServer {
    overload::harness()
        .with_env("EVENKEELD_REST__MAX_WATCHERS", &(slow + 2).to_string())
        .with_env("EVENKEELD_REST__MAX_CONNECTIONS", &(2 * slow + 200).to_string())
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__CALLS_PER_SECOND", "10000")
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__BURST", "10000")
}

/// Opens the streams that are not read, of several users of each project.
fn open_unread_streams(
    harness: &TestServer,
    server: &ServerProcess,
    slow: u32,
) -> Vec<UnreadStreams> {
    let mut unread = Vec::new();
    for project in PROJECTS {
        for user in 0..USERS_PER_PROJECT {
            let subject = format!("{project}-{user}");
            let arguments = ["token", "operator", "--project", project, "--role", "viewer"];
            let arguments = [&arguments[..], &["--subject", &subject]].concat();
            let token = harness.start(&arguments).expect_success();
            unread.push(UnreadStreams::spawn(server, project, token.trim(), slow / 4));
        }
    }
    unread.iter_mut().for_each(UnreadStreams::wait_until_open);
    unread
}

/// Work of a node and of an operator, and the longest time that it took.
struct OtherWork {
    node: Node,
    longest: Duration,
    /// Most memory that the process needed.
    peak: f64,
}

impl OtherWork {
    async fn run(&mut self, server: &ServerProcess, token: &str) {
        let begun = Instant::now();
        self.node.poll().await.unwrap();
        self.longest = self.longest.max(begun.elapsed());
        let begun = Instant::now();
        let (status, body) = server.get("rest", "/v1/projects/default/compute/hosts", Some(token));
        assert_eq!(status, 200, "{body}");
        self.longest = self.longest.max(begun.elapsed());
        self.peak = self.peak.max(metric(server, RESIDENT_BYTES));
    }
}

/// Waits until the kernel has closed the connections of the clients that do not read.
fn wait_for_closed_connections(server: &ServerProcess, most: f64) {
    let begun = Instant::now();
    while metric(server, "evenkeel_connections{listener=\"rest\"}") > most {
        assert!(begun.elapsed() < CLOSE_TIMEOUT, "connections stay open");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Changes policies of both projects, and waits each time until the clients that read have it.
async fn change_and_watch(
    server: &ServerProcess,
    token: &str,
    healthy: &mut [HealthyWatcher],
    work: &mut OtherWork,
) {
    for round in 0..ROUNDS {
        let mut last = Vec::new();
        for watcher in healthy.iter() {
            let mut newest = String::new();
            for n in round * CHANGES_PER_ROUND..(round + 1) * CHANGES_PER_ROUND {
                newest = create_policy(server, watcher.project, token, n);
            }
            last.push(newest);
        }
        for (watcher, last) in healthy.iter_mut().zip(&last) {
            watcher.wait_for(last);
        }
        work.run(server, token).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_that_read_nothing_cost_bounded_memory_delay_no_others_and_are_disconnected() {
    let whole = std::env::var("EVENKEEL_SLOW_WATCHERS").ok();
    let slow = whole.as_ref().map_or(SAMPLE, |number| number.parse().unwrap());
    // The same number for each user.
    let slow = slow / 4 * 4;
    let harness = harness(slow);
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    send(&server, "PUT /v1/projects/other", &token, &json!({"description": ""}));
    let node = Node::enroll(&harness, &server, 1).await;
    let mut work = OtherWork { node, longest: Duration::ZERO, peak: 0.0 };
    work.run(&server, &token).await;
    let before = work.peak;

    let open = |project| HealthyWatcher::open(&server, project, &token);
    let mut healthy = PROJECTS.map(open);
    let earlier = PROJECTS.map(|project| list_changes(&server, project, &token));
    let unread = open_unread_streams(&harness, &server, slow);
    eventually("all streams are open", || metric(&server, STREAMS) > f64::from(slow) + 1.5);
    let another = "/v1/projects/default/changes?watch=true";
    assert_eq!(server.get("rest", another, Some(&token)).0, 503, "no room for another one");

    change_and_watch(&server, &token, &mut healthy, &mut work).await;
    let room = f64::from(slow) * MAX_BYTES_PER_WATCHER + OTHER_BYTES;
    let needed = work.peak - before;
    println!("{slow} watchers: {needed:.0} bytes, at most {room:.0}; longest {:?}", work.longest);
    assert!(needed <= room, "{needed} bytes");
    assert!(work.longest <= MAX_ANSWER_TIME, "{:?}", work.longest);

    eventually("only those that read are left", || metric(&server, STREAMS) < 2.5);
    let ended = "evenkeel_change_watchers_ended_total{reason=\"slow\"}";
    println!("{} of {slow} streams ended because nothing was read", metric(&server, ended));
    assert!(metric(&server, ended) > f64::from(slow) / 2.0);
    // Their place is free while their clients still do not read.
    drop(HealthyWatcher::open(&server, "default", &token));
    for (watcher, earlier) in healthy.iter_mut().zip(earlier) {
        let earlier: BTreeSet<String> = earlier.into_iter().collect();
        let mut expected = list_changes(&server, watcher.project, &token);
        expected.retain(|id| !earlier.contains(id));
        watcher.seen.retain(|id| !earlier.contains(id));
        assert_eq!(watcher.seen, expected, "{}", watcher.project);
        assert!(expected.len() >= ROUNDS * CHANGES_PER_ROUND, "only {}", expected.len());
    }
    if whole.is_some() {
        wait_for_closed_connections(&server, 8.0);
    }
    drop(unread);
    server.stop();
}
