//! What the agent weighs: its size, its memory at rest and during a real update, and how often it wakes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::measure::{as_f64, peak_mib, reset_peak, rss_of_mib, wake_ups};
use crate::node::{Node, shipped_agent};
use crate::report::remark;
use crate::station::Station;

/// What the node is brought from 1.0 to 1.1.
const PACKAGES: [&str; 6] = [
    "demo-app",
    "demo-lib",
    "demo-hello",
    "demo-conf",
    "demo-held",
    "demo-big",
];
/// How often the server lets its nodes ask, in seconds.
const POLL_SECONDS: u32 = 20;

/// How the agent is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Another agent than the one that `make agent` builds.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// How long it is watched at rest.
    #[arg(long = "for", default_value = "2m", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// Size of the program, in MiB.
    binary_mib: f64,
    /// Memory at rest with a TLS connection to its server, in MiB.
    idle_rss_mib: f64,
    /// The most memory at rest, in MiB.
    idle_peak_mib: f64,
    /// The most memory during an update, apt and dpkg not counted, in MiB.
    update_peak_mib: f64,
    /// How often one of its threads was woken, at rest, for each time that it asks.
    wake_ups_per_poll: f64,
    /// What the agent spent on the update, in seconds.
    update_seconds: f64,
}

/// What each figure may be at most.
const LIMITS: [(&str, f64); 3] = [
    ("binary_mib", 8.0),
    ("idle_rss_mib", 8.0),
    ("update_peak_mib", 24.0),
];

/// Runs the benchmark. Fails if a figure is beyond its limit.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a node of its own needs root: run this as root"
    );
    let agent = match &args.agent {
        Some(agent) => agent.canonicalize().context("no such agent")?,
        None => shipped_agent().await?,
    };
    let settings = format!("[maintenance_manager]\npoll_interval = \"{POLL_SECONDS}s\"\n");
    let station = Station::start(&settings).await?;
    let figures = measure(&station, &agent, args.length).await;
    if figures.is_err() {
        let log = std::fs::read_to_string(station.folder().join("agent.log"));
        remark(end(&log.unwrap_or_default()));
    }
    let folder = station.stop().await;
    drop(folder);
    let figures = figures?;
    print(&figures, args.json)?;
    Ok(if within_limits(&figures)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The end of a long text.
fn end(log: &str) -> &str {
    let from = log.len().saturating_sub(4_000);
    log.get(log.ceil_char_boundary(from)..).unwrap_or_default()
}

async fn measure(station: &Station, agent: &Path, length: Duration) -> anyhow::Result<Figures> {
    let operator = Operator::of(station)?;
    let node = Node::make(station.folder(), agent, &PACKAGES).await?;
    let token = operator.post("/join-tokens", &json!({})).await?;
    let server = format!("https://{}", station.address("southbound")?);
    let token = token["token"].as_str().context("no token")?;
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let words = [
        "enroll",
        "--server",
        &server,
        "--token",
        token,
        "--uuid",
        uuid.trim(),
    ];
    node.agent(&words).await?;

    let (_holder, pid) = node.start(&station.folder().join("agent.log")).await?;
    // The first poll, the facts, the lists of packages.
    tokio::time::sleep(Duration::from_secs(u64::from(POLL_SECONDS))).await;
    reset_peak(pid)?;
    let (woken, begun) = (wake_ups(pid), tokio::time::Instant::now());
    tokio::time::sleep(length).await;
    let polls = begun.elapsed().as_secs_f64() / f64::from(POLL_SECONDS);
    let woken = as_f64(wake_ups(pid).saturating_sub(woken));
    let (idle, idle_peak) = (rss_of_mib(pid), peak_mib(pid));

    reset_peak(pid)?;
    let seconds = operator.update().await?;
    Ok(Figures {
        binary_mib: as_f64(std::fs::metadata(agent)?.len()) / 1_048_576.0,
        idle_rss_mib: idle,
        idle_peak_mib: idle_peak,
        update_peak_mib: peak_mib(pid),
        wake_ups_per_poll: woken / polls,
        update_seconds: seconds,
    })
}

/// An operator's session.
struct Operator {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl Operator {
    fn of(station: &Station) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(station.data().join("operator-token"))?;
        Ok(Self {
            client: reqwest::Client::new(),
            base: format!("http://{}/v1/projects/default", station.address("rest")?),
            token: token.trim().to_owned(),
        })
    }

    /// Wants the newest of everything on the only node, now, and waits until that is so. Returns the seconds that the
    /// agent spent on it.
    async fn update(&self) -> anyhow::Result<f64> {
        let body = json!({"name": "newest", "updatePolicy": "UPDATE_POLICY_LATEST"});
        let policy = self.post("/os-update-policies", &body).await?;
        let instances = self.get("/compute/instances").await?;
        let instance = &instances["instances"][0];
        let path = format!("/compute/instances/{}", text(&instance["resourceId"])?);
        let body = json!({"osUpdatePolicyID": text(&policy["resourceId"])?});
        self.ask(reqwest::Method::PATCH, &path, Some(&body)).await?;
        let hosts = self.get("/compute/hosts").await?;
        let now = self.get(&format!("{path}/decision")).await?;
        let now: chrono::DateTime<chrono::Utc> = text(&now["time"])?.parse()?;
        let window = json!({
            "name": "now",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": now.timestamp() + 2,
            "endSeconds": now.timestamp() + 3_600,
            "targetHostId": text(&hosts["hosts"][0]["resourceId"])?,
        });
        self.post("/schedules/single", &window).await?;
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let runs = self.get("/os-update-runs").await?;
            let Some(run) = runs["osUpdateRuns"].get(0) else {
                continue;
            };
            let path = format!("/os-update-runs/{}", text(&run["resourceId"])?);
            let run = self.get(&path).await?;
            if run["endTime"].as_u64() > Some(0) {
                ensure!(run["state"] == "succeeded", "the update: {run:#}");
                let phases = run["account"]["phases"].as_array().into_iter().flatten();
                let millis = phases.filter_map(|phase| phase["millis"].as_u64());
                return Ok(as_f64(millis.sum()) / 1e3);
            }
        }
        bail!("the update did not end within five minutes")
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(reqwest::Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(reqwest::Method::POST, path, Some(body)).await
    }

    async fn ask(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.base);
        let mut request = self.client.request(method, &url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let said = answer.text().await?;
        ensure!(status.is_success(), "{path}: {status} {said}");
        Ok(serde_json::from_str(&said)?)
    }
}

fn text(value: &Value) -> anyhow::Result<&str> {
    value
        .as_str()
        .with_context(|| format!("{value} is no text"))
}

fn within_limits(figures: &Figures) -> anyhow::Result<bool> {
    let found = serde_json::to_value(figures)?;
    let mut all = true;
    for (name, most) in LIMITS {
        let figure = found[name].as_f64().context("a figure")?;
        if figure > most {
            remark(&format!("{name} is {figure:.1}, more than {most}"));
            all = false;
        }
    }
    Ok(all)
}

fn print(figures: &Figures, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, figures)?;
        return Ok(writeln!(out)?);
    }
    let lines = [
        ("program, MiB", figures.binary_mib, "8"),
        ("at rest with TLS, MiB", figures.idle_rss_mib, "8"),
        ("at rest, the most, MiB", figures.idle_peak_mib, "-"),
        (
            "during an update, the most, MiB",
            figures.update_peak_mib,
            "24",
        ),
        (
            "wake-ups for each poll, at rest",
            figures.wake_ups_per_poll,
            "-",
        ),
        ("the update, seconds", figures.update_seconds, "-"),
    ];
    writeln!(out, "{:<34} {:>8} {:>8}", "", "found", "at most")?;
    for (what, figure, most) in lines {
        writeln!(out, "{what:<34} {figure:>8.2} {most:>8}")?;
    }
    Ok(())
}
