//! The document that the program serves, held against the program. Schemathesis (from `PyPI`) reads `/openapi.json` of a
//! real server and asks for everything in it, right and wrong: no answer may be a fault of the server's, and each must have
//! a status, a media type and a form that the document names.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_SCHEMA_SECONDS` | how long it asks |
//! | `EVENKEEL_SCHEMA_EXAMPLES` | how many requests for an operation it draws at a time, beside those at the edges of what may be asked |
//! | `EVENKEEL_SCHEMA_SEED` | what requests are drawn from; printed by each run |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to be tested |

mod fleet;
#[path = "../transcript/machine.rs"]
mod machine;
mod tool;

use std::time::Duration;

use evenkeel_tests::history::{Desk, Replicas, number, say};
use serde_json::Value;

use self::fleet::{REGISTRY, furnish};
use self::tool::{Tool, Verdict};

/// What must hold for every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// How long it may take beyond the time in which it asks: to read the document, and to tell what it found.
const BESIDE: Duration = Duration::from_mins(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_program_answers_as_its_document_says() {
    let Some(tool) = Tool::open().await else {
        return;
    };
    let replicas = Replicas::start(1, REGISTRY).await;
    let desk = Desk::new(&replicas.rest(), &replicas.token());
    furnish(&replicas, &desk).await;

    a_wrong_document_is_found(&tool, &replicas).await;
    let verdict = ask_for_everything(&tool, &replicas).await;
    assert!(
        verdict.is_clean,
        "{}\n{}",
        verdict.said,
        last_lines(&replicas.logs())
    );
    is_no_empty_promise(&verdict);
    replicas.stop().await;
}

/// Asks for everything that the document says.
async fn ask_for_everything(tool: &Tool, replicas: &Replicas) -> Verdict {
    let seed = number("EVENKEEL_SCHEMA_SEED", 1).to_string();
    let examples = number("EVENKEEL_SCHEMA_EXAMPLES", 5).to_string();
    let lasting = number("EVENKEEL_SCHEMA_SECONDS", 90);
    say(&format!("EVENKEEL_SCHEMA_SEED={seed}"));
    let document = format!("{}/openapi.json", server(replicas));
    let seconds = lasting.to_string();
    let options = [
        "--checks",
        CHECKS,
        "--seed",
        &seed,
        "--max-examples",
        &examples,
        "--max-time",
        &seconds,
    ];
    let limit = Duration::from_secs(lasting) + BESIDE;
    tool.run(&document, &replicas.token(), &options, limit)
        .await
}

/// A document that leaves out what the program answers is told from the right one.
async fn a_wrong_document_is_found(tool: &Tool, replicas: &Replicas) {
    let server = server(replicas);
    let document = reqwest::get(format!("{server}/openapi.json")).await;
    let mut document: Value = document
        .expect("an answer")
        .json()
        .await
        .expect("a document");
    let answers = document["paths"]["/v1/orchestrator"]["get"]["responses"].as_object_mut();
    let taken = answers.and_then(|answers| answers.remove("200"));
    assert!(taken.is_some(), "the document says what the program has");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).expect("written");
    let options = [
        "--checks",
        CHECKS,
        "--url",
        &server,
        "--include-operation-id",
        "get_orchestrator",
        "--phases",
        "fuzzing",
        "--max-examples",
        "1",
    ];
    let file = file.to_string_lossy();
    let verdict = tool.run(&file, &replicas.token(), &options, BESIDE).await;
    let found = verdict.report["failures"].as_array();
    assert!(
        !verdict.is_clean && found.is_some_and(|found| !found.is_empty()),
        "{}",
        verdict.said
    );
}

/// All but one of the operations were to be asked for, nearly all were, and many of them did what was asked.
fn is_no_empty_promise(verdict: &Verdict) {
    let report = &verdict.report;
    let count = |name: &str| report["operations"][name].as_u64().unwrap_or_default();
    let (total, selected, tested) = (count("total"), count("selected"), count("tested"));
    let rates = report["valid_rates"].as_object();
    let met = rates.map_or(0, |rates| {
        let met = rates.values().filter(|rate| is_met(rate));
        met.map(|_| 1_u64).sum()
    });
    let requests = &report["test_cases"]["generated"];
    say(&format!(
        "{requests} requests for {tested} of {selected} operations, {met} of which did what was asked"
    ));
    assert_eq!(selected + 1, total, "only the project stays");
    assert!(tested * 4 >= selected * 3, "{}", verdict.said);
    assert!(met * 3 >= selected, "{}", verdict.said);
}

/// Whether a request for an operation that could be met was, in any phase.
fn is_met(rates: &Value) -> bool {
    let phases = rates.as_object();
    let is_accepted = |rate: &Value| rate["accepted"].as_u64() > Some(0);
    phases.is_some_and(|phases| phases.values().any(is_accepted))
}

/// Where REST is.
fn server(replicas: &Replicas) -> String {
    format!("http://{}", replicas.rest()[0])
}

/// The end of a long text.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
