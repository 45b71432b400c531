//! Checks the server against its own `OpenAPI` document. Schemathesis (from `PyPI`) reads
//! `/openapi.json` of a real server and sends valid and invalid requests for every operation. No
//! response may be a server error, and each must match the status codes, media types and schemas of
//! the document.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_SCHEMA_SECONDS` | duration of the requests |
//! | `EVENKEEL_SCHEMA_EXAMPLES` | number of random requests for an operation at a time, in addition to boundary values |
//! | `EVENKEEL_SCHEMA_SEED` | seed of the random requests; printed by each run |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |

mod fleet;
mod tool;

use std::time::Duration;

use evenkeel_tests::history::{OperatorClient, Replicas, number, print_progress};
use serde_json::Value;

use self::fleet::{REGISTRY_SETTINGS, seed};
use self::tool::{Tool, Verdict};

/// Checks for every response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Time to read the document and to print the results, in addition to the time for requests.
const OVERHEAD_TIMEOUT: Duration = Duration::from_mins(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_program_answers_as_its_openapi_document_describes() {
    let Some(tool) = Tool::open().await else {
        return;
    };
    let replicas = Replicas::start(1, REGISTRY_SETTINGS).await;
    let client = OperatorClient::new(&replicas.rest_addresses(), &replicas.operator_token());
    seed(&replicas, &client).await;

    check_that_a_wrong_document_is_detected(&tool, &replicas).await;
    let verdict = test_all_operations(&tool, &replicas).await;
    assert!(verdict.is_clean, "{}\n{}", verdict.output, last_lines(&replicas.logs()));
    assert_coverage(&verdict);
    replicas.stop().await;
}

/// Tests all operations of the document.
async fn test_all_operations(tool: &Tool, replicas: &Replicas) -> Verdict {
    let seed = number("EVENKEEL_SCHEMA_SEED", 1).to_string();
    let examples = number("EVENKEEL_SCHEMA_EXAMPLES", 5).to_string();
    let lasting = number("EVENKEEL_SCHEMA_SECONDS", 180);
    print_progress(&format!("EVENKEEL_SCHEMA_SEED={seed}"));
    let document = format!("{}/openapi.json", server_url(replicas));
    let seconds = lasting.to_string();
    let options =
        ["--checks", CHECKS, "--seed", &seed, "--max-examples", &examples, "--max-time", &seconds];
    let limit = Duration::from_secs(lasting) + OVERHEAD_TIMEOUT;
    tool.run(&document, &replicas.operator_token(), &options, limit).await
}

/// A document that lacks a response of the server must be detected.
async fn check_that_a_wrong_document_is_detected(tool: &Tool, replicas: &Replicas) {
    let server = server_url(replicas);
    let document = reqwest::get(format!("{server}/openapi.json")).await;
    let mut document: Value = document.expect("an answer").json().await.expect("a document");
    let answers = document["paths"]["/v1/orchestrator"]["get"]["responses"].as_object_mut();
    let removed = answers.and_then(|answers| answers.remove("200"));
    assert!(removed.is_some(), "the document describes the response");
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
    let verdict = tool.run(&file, &replicas.operator_token(), &options, OVERHEAD_TIMEOUT).await;
    let failures = verdict.report["failures"].as_array();
    assert!(
        !verdict.is_clean && failures.is_some_and(|failures| !failures.is_empty()),
        "{}",
        verdict.output
    );
}

/// All operations but six must be selected, most must be tested, and many must accept requests.
fn assert_coverage(verdict: &Verdict) {
    let report = &verdict.report;
    let count = |name: &str| report["operations"][name].as_u64().unwrap_or_default();
    let (total, selected, tested) = (count("total"), count("selected"), count("tested"));
    let rates = report["valid_rates"].as_object();
    let met = rates.map_or(0, |rates| {
        let met = rates.values().filter(|rate| has_accepted_request(rate));
        met.map(|_| 1_u64).sum()
    });
    let requests = &report["test_cases"]["generated"];
    print_progress(&format!(
        "{requests} requests for {tested} of {selected} operations, {met} of which accepted requests"
    ));
    assert_eq!(
        selected + 6,
        total,
        "only the deletion of the project, what revokes tokens, and the two streams of changes are excluded"
    );
    assert!(tested * 4 >= selected * 3, "{}", verdict.output);
    assert!(met * 3 >= selected, "{}", verdict.output);
}

/// Whether a request for an operation was accepted in any phase.
fn has_accepted_request(rates: &Value) -> bool {
    let phases = rates.as_object();
    let is_accepted = |rate: &Value| rate["accepted"].as_u64() > Some(0);
    phases.is_some_and(|phases| phases.values().any(is_accepted))
}

/// URL of the REST API.
fn server_url(replicas: &Replicas) -> String {
    format!("http://{}", replicas.rest_addresses()[0])
}

/// The end of a long text.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
