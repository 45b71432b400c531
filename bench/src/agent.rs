//! Resources of the agent: program size, memory while idle and during a real update, and wake-ups.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use evenkeel_test_support::RestClient;
use serde::Serialize;
use serde_json::{Value, json};

use crate::bench_harness::BenchHarness;
use crate::measure::{as_f64, peak_mib, reset_peak, vm_rss_mib, wake_ups};
use crate::real_node::{RealNode, build_shipped_agent};
use crate::report::print_status;

/// Packages that the update upgrades from 1.0 to 1.1.
const PACKAGES: [&str; 6] =
    ["demo-app", "demo-lib", "demo-hello", "demo-conf", "demo-held", "demo-big"];
/// The poll interval that the server sets, in seconds.
const POLL_INTERVAL_SECONDS: u32 = 20;

/// Options of the agent benchmark.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Agent to measure, instead of the one that `make agent` builds.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// How long the idle agent is measured.
    #[arg(long, default_value = "2m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Results of the benchmark.
#[derive(Clone, Debug, Serialize)]
struct AgentFigures {
    /// Size of the program, in MiB.
    binary_mib: f64,
    /// Memory of the idle agent with a TLS connection to its server, in MiB.
    idle_rss_mib: f64,
    /// Peak memory of the idle agent, in MiB.
    idle_peak_mib: f64,
    /// Peak memory during an update, in MiB. apt and dpkg are not included.
    update_peak_mib: f64,
    /// Wake-ups of all threads per poll, while idle.
    wake_ups_per_poll: f64,
    /// Duration of all phases of the update, in seconds.
    update_seconds: f64,
}

/// Upper limits of figures, by JSON name.
const MAX_FIGURES: [(&str, f64); 3] =
    [("binary_mib", 8.0), ("idle_rss_mib", 8.0), ("update_peak_mib", 24.0)];

/// Runs the benchmark. Fails if a figure exceeds its limit.
pub async fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the benchmark creates a node of its own: run it as root"
    );
    let agent = match &args.agent {
        Some(agent) => agent.canonicalize().context("there is no such agent")?,
        None => build_shipped_agent().await?,
    };
    let settings = format!("[maintenance_manager]\npoll_interval = \"{POLL_INTERVAL_SECONDS}s\"\n");
    let harness = BenchHarness::start(&settings).await?;
    let figures = measure(&harness, &agent, args.duration).await;
    if figures.is_err() {
        let log = std::fs::read_to_string(harness.folder().join("agent.log"));
        print_status(tail(&log.unwrap_or_default()));
    }
    let folder = harness.stop().await;
    drop(folder);
    let figures = figures?;
    print_figures(&figures, args.json)?;
    Ok(if is_within_limits(&figures)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last 4,000 bytes of a log.
fn tail(log: &str) -> &str {
    let from = log.len().saturating_sub(4_000);
    log.get(log.ceil_char_boundary(from)..).unwrap_or_default()
}

async fn measure(
    harness: &BenchHarness,
    agent: &Path,
    duration: Duration,
) -> anyhow::Result<AgentFigures> {
    let operator = OperatorSession::open(harness)?;
    let node = RealNode::create(harness.folder(), agent, &PACKAGES).await?;
    let token = operator.post("join-tokens", &json!({})).await?;
    let server = format!("https://{}", harness.address("southbound")?);
    let token = token["token"].as_str().context("no token")?;
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let arguments = ["enroll", "--server", &server, "--token", token, "--uuid", uuid.trim()];
    node.run_agent(&arguments).await?;

    let (_holder, pid) = node.start_agent(&harness.folder().join("agent.log")).await?;
    // Skip the first poll with its facts and package lists.
    tokio::time::sleep(Duration::from_secs(u64::from(POLL_INTERVAL_SECONDS))).await;
    reset_peak(pid)?;
    let (wake_up_count, started_at) = (wake_ups(pid), tokio::time::Instant::now());
    tokio::time::sleep(duration).await;
    let polls = started_at.elapsed().as_secs_f64() / f64::from(POLL_INTERVAL_SECONDS);
    let wake_up_count = as_f64(wake_ups(pid).saturating_sub(wake_up_count));
    let (idle, idle_peak) = (vm_rss_mib(pid), peak_mib(pid));

    reset_peak(pid)?;
    let seconds = operator.update_node().await?;
    Ok(AgentFigures {
        binary_mib: as_f64(std::fs::metadata(agent)?.len()) / 1_048_576.0,
        idle_rss_mib: idle,
        idle_peak_mib: idle_peak,
        update_peak_mib: peak_mib(pid),
        wake_ups_per_poll: wake_up_count / polls,
        update_seconds: seconds,
    })
}

/// REST session of an operator.
struct OperatorSession {
    client: RestClient,
}

impl OperatorSession {
    fn open(harness: &BenchHarness) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(harness.data_dir().join("operator-token"))?;
        let client = RestClient::connect(harness.address("rest")?, "default", token.trim());
        Ok(Self { client })
    }

    /// Updates the only node to the latest versions, and waits for the end of the run. Returns the
    /// total duration of its phases, in seconds.
    async fn update_node(&self) -> anyhow::Result<f64> {
        let body = json!({"name": "newest", "updatePolicy": "UPDATE_POLICY_LATEST"});
        let policy = self.post("os-update-policies", &body).await?;
        let instances = self.get("compute/instances").await?;
        let instance = &instances["instances"][0];
        let path = format!("compute/instances/{}", require_str(&instance["resourceId"])?);
        let body = json!({"osUpdatePolicyID": require_str(&policy["resourceId"])?});
        self.send(reqwest::Method::PATCH, &path, Some(&body)).await?;
        let hosts = self.get("compute/hosts").await?;
        let now = self.get(&format!("{path}/decision")).await?;
        let now: chrono::DateTime<chrono::Utc> = require_str(&now["time"])?.parse()?;
        let window = json!({
            "name": "now",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": now.timestamp() + 2,
            "endSeconds": now.timestamp() + 3_600,
            "targetHostId": require_str(&hosts["hosts"][0]["resourceId"])?,
        });
        self.post("schedules/single", &window).await?;
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let runs = self.get("os-update-runs").await?;
            let Some(run) = runs["osUpdateRuns"].get(0) else {
                continue;
            };
            let path = format!("os-update-runs/{}", require_str(&run["resourceId"])?);
            let run = self.get(&path).await?;
            if run["endTime"].as_u64() > Some(0) {
                ensure!(run["state"] == "succeeded", "the update did not succeed: {run:#}");
                let phases = run["report"]["phases"].as_array().into_iter().flatten();
                let millis = phases.filter_map(|phase| phase["millis"].as_u64());
                return Ok(as_f64(millis.sum()) / 1e3);
            }
        }
        bail!("the update did not end within 5 minutes")
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(reqwest::Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(reqwest::Method::POST, path, Some(body)).await
    }

    async fn send(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let answer = self.client.send(method, path, body).await?;
        ensure!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.text);
        Ok(answer.json().1)
    }
}

fn require_str(value: &Value) -> anyhow::Result<&str> {
    value.as_str().with_context(|| format!("{value} is not a string"))
}

fn is_within_limits(figures: &AgentFigures) -> anyhow::Result<bool> {
    let values = serde_json::to_value(figures)?;
    let mut all = true;
    for (name, maximum) in MAX_FIGURES {
        let figure = values[name].as_f64().context("a figure is not a number")?;
        if figure > maximum {
            print_status(&format!("{name} is {figure:.1}, the limit is {maximum}"));
            all = false;
        }
    }
    Ok(all)
}

fn print_figures(figures: &AgentFigures, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, figures)?;
        return Ok(writeln!(out)?);
    }
    let lines = [
        ("program size, MiB", figures.binary_mib, "8"),
        ("idle with TLS, MiB", figures.idle_rss_mib, "8"),
        ("idle, peak, MiB", figures.idle_peak_mib, "-"),
        ("during an update, peak, MiB", figures.update_peak_mib, "24"),
        ("wake-ups per poll, idle", figures.wake_ups_per_poll, "-"),
        ("update, seconds", figures.update_seconds, "-"),
    ];
    writeln!(out, "{:<34} {:>8} {:>8}", "", "measured", "limit")?;
    for (what, figure, maximum) in lines {
        writeln!(out, "{what:<34} {figure:>8.2} {maximum:>8}")?;
    }
    Ok(())
}
