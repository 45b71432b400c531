//! A process with a wrong clock.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::Role;
use evenkeel_kit::TestClock;
use evenkeel_store::operator_tokens;
use evenkeel_store::testing::tenant_rows;
use evenkeel_test_support::RestClient;
use serde_json::{Value, json};

use crate::test_server::{ResourceIds, TestServer, nightly, os_body};

impl TestServer {
    /// A session with a token that is valid for an hour by the clock of the process.
    fn client_at(&self, now: DateTime<Utc>) -> RestClient {
        let roles = [Role::Write(self.ours.uuid()), Role::Administrator];
        let token = self.authority.issue_operator("writer", &roles, TimeDelta::hours(1), now);
        self.client(Some(token.expect("a token").token.reveal()), None)
    }
}

fn parse_time(value: &Value) -> DateTime<Utc> {
    value.as_str().expect("a text").parse().expect("a time")
}

/// Creates and changes resources of most kinds.
async fn change_resources(client: &RestClient, resources: &ResourceIds) {
    let ResourceIds { site, host, instance, policy, .. } = resources;
    client.post("regions", json!({"name": "north"})).await;
    client.patch(&format!("sites/{site}"), json!({"name": "aachen"})).await;
    client.post("compute/os", os_body("Debian 13")).await;
    let latest = json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST"});
    client.post("os-update-policies", latest).await;
    client.expect_ok("POST schedules/repeated", Some(nightly(site))).await;
    client.expect_ok("POST join-tokens", Some(json!({"name": "racks"}))).await;
    let registration = json!({"name": "edge-02", "serialNumber": "XYZ98765", "autoOnboard": true});
    client.post("compute/hosts/register", registration).await;
    client.put(&format!("pauses/{site}"), json!({"reason": "a storm"})).await;
    client.put(&format!("assignments/{site}"), json!({"osUpdatePolicyId": policy})).await;
    client.put(&format!("assignments/{site}/resume"), json!({"reason": "fixed"})).await;
    client.patch(&format!("compute/instances/{instance}"), json!({"name": "renamed"})).await;
    client.expect_ok(&format!("PUT compute/hosts/{host}/invalidate?note=stolen"), None).await;
}

/// The times that are stored decide when an order ends, which failures count, and what is deleted.
#[tokio::test]
async fn a_process_with_a_wrong_clock_stores_only_times_of_the_database() {
    for offset in [TimeDelta::hours(-23), TimeDelta::days(20)] {
        let (mut server, resources) = TestServer::with_resources().await;
        let (now, wrong) = (server.now(), server.now() + offset);
        server.use_clock(Arc::new(TestClock::new(wrong)));
        let client = server.client_at(wrong);

        let path = format!("compute/instances/{}/order", resources.instance);
        let order = client.put(&path, json!({"kind": "now", "seconds": 600})).await;
        assert_eq!(parse_time(&order["since"]), now, "{offset}");
        assert_eq!(parse_time(&order["until"]), now + TimeDelta::minutes(10), "{offset}");
        let assigned = json!({"osUpdatePolicyId": resources.policy});
        let assigned = client.put(&format!("assignments/{}", resources.host), assigned).await;
        assert_eq!(parse_time(&assigned["since"]), now, "{offset}");

        change_resources(&client, &resources).await;
        let revocation = Some(json!({"subject": "alice"}));
        client.expect_ok("PUT /v1/operator-tokens/revoke", revocation).await;
        let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
        assert_eq!(revoked.subjects[0].revoked_until, now, "{offset}");

        let date = wrong.format("%Y-%m-%d").to_string();
        let rows = tenant_rows(&server.store, server.ours).await;
        let wrong_rows: Vec<_> = rows.iter().filter(|row| row.contains(&date)).collect();
        assert!(wrong_rows.is_empty(), "{offset}: {wrong_rows:#?}");
    }
}
