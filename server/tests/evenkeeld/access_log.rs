//! The line that the log has for each request to the REST API and to the token endpoint.

use serde_json::Value;

use crate::authentication;
use crate::test_server::TestServer;

/// The lines of the access log, as JSON.
fn access_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "answered").collect()
}

#[test]
fn the_log_has_the_user_and_the_project_of_each_request_and_no_secret() {
    let harness = TestServer::new().with_env("EVENKEELD_LOG__FORMAT", "json");
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    let hosts = "/v1/projects/default/compute/hosts?filter=name%20%3D%20%22hush%22";
    let (status, body) = server.get("rest", hosts, Some(&token));
    assert_eq!(status, 200, "{body}");
    let missing = "/v1/projects/bad%0Aname/compute/hosts/host-00000001?token=hush";
    assert_eq!(server.get("rest", missing, Some("hush.hush.hush")).0, 401);
    let log = server.stop();
    let lines = access_lines(&log);
    let [known, unknown] = lines.as_slice() else {
        panic!("{log}");
    };
    assert_eq!(known["project"], "default");
    assert_eq!(known["status"], 200);
    assert!(known["user"].as_str().is_some_and(|user| !user.is_empty()), "{known}");
    assert_eq!(known["issuer"], Value::Null, "our own token");
    assert_eq!(known["client"], "127.0.0.1");
    assert_eq!(known["route"], "/v1/projects/{projectName}/compute/hosts");
    assert!(known["request_id"].is_string() && known["ms"].is_u64(), "{known}");
    assert!(known["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{known}");
    assert_eq!(unknown["status"], 401);
    assert_eq!(unknown["user"], Value::Null);
    assert_eq!(unknown["project"], Value::Null, "a line break is not part of a name");
    assert!(!log.contains("hush") && !log.contains(&token), "{log}");
}

#[test]
fn the_log_has_the_user_of_each_login_that_succeeds() {
    let harness = TestServer::new();
    let users = authentication::users(&harness);
    let harness = harness
        .with_env("EVENKEELD_LOG__FORMAT", "json")
        .with_env("EVENKEELD_AUTH__LOGIN__USERS", &users);
    let server = harness.start_and_wait(&["all"]);
    let path = "/realms/master/protocol/openid-connect/token";
    let login = |name: &str, password: &str| {
        server.post_form(path, &format!("grant_type=password&username={name}&password={password}"))
    };
    let (status, answer) = login("alice", "open+sesame!");
    assert_eq!(status, 200, "{answer}");
    let refresh = answer["refresh_token"].as_str().unwrap();
    let form = format!("grant_type=refresh_token&refresh_token={refresh}");
    assert_eq!(server.post_form(path, &form).0, 200);
    assert_eq!(login("alice", "guess").0, 400);
    let log = server.stop();
    let lines = access_lines(&log);
    let shown = lines.iter().map(|line| (line["status"].as_u64(), line["user"].as_str()));
    let shown: Vec<(Option<u64>, Option<&str>)> = shown.collect();
    let (granted, refused) = ((Some(200), Some("alice")), (Some(400), None));
    assert_eq!(shown, [granted, granted, refused], "{log}");
    for line in &lines {
        assert_eq!(line["route"], path);
        assert_eq!(line["method"], "POST");
        assert_eq!(line["client"], "127.0.0.1");
    }
    assert!(!log.contains("sesame") && !log.contains("guess") && !log.contains(refresh), "{log}");
}
