//! Isolation with a deliberate error in the program: it swaps the tenant scopes of two projects, so
//! that every query in one project asks for the rows of the other one. Row-level security in the
//! database must still keep them apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_auth::Role;
use evenkeel_inventory::Settings;
use evenkeel_store::testing::{TenantMixup, mixed_up_store, tenant_rows};
use evenkeel_test_support::Answer;
use futures_util::{StreamExt, stream};

use super::attack_context::{AttackContext, MAX_CONCURRENT_REQUESTS};
use super::attempts::{Attempt, random_attempt};
use super::rng::Rng;
use super::secrets::Secrets;
use super::test_project::TestProject;
use super::{attempts_per_project, rng_seed};
use crate::test_server::{Caller, TestServer};

/// Attempts per project without row-level security: enough to show that it was the protection.
const ATTEMPTS_WITHOUT_RLS: usize = 300;

/// Two projects whose scopes are swapped, and a token that may write in both. With fewer rights,
/// the program would reject most attempts before any query.
struct SwappedProjects {
    server: TestServer,
    token: String,
    secrets: [Secrets; 2],
    attempts: Vec<Attempt>,
}

impl SwappedProjects {
    async fn new(seed: u64, tries: usize, bypasses_rls: bool) -> Self {
        let mut server = TestServer::new().await;
        let walruses = TestProject::set_up(&server, Caller::Writer).await;
        let penguins = TestProject::set_up(&server, Caller::Foreigner).await;
        let mut rng = Rng::new(seed);
        let mut attempts = Vec::new();
        for (attacker, victim) in [(&walruses, &penguins), (&penguins, &walruses)] {
            let context = AttackContext::new(&server, attacker, victim).await;
            let candidates = std::iter::repeat_with(|| random_attempt(&mut rng, &context));
            // Requests about projects run in the fleet scope, which row-level security does not
            // restrict.
            let candidates = candidates.filter(|attempt| !attempt.is_about_projects());
            attempts.extend(candidates.take(tries));
        }
        let secrets = [
            Secrets::collect(&walruses, &penguins, &server).await,
            Secrets::collect(&penguins, &walruses, &server).await,
        ];
        let roles = [Role::Write(server.ours.uuid()), Role::Write(server.theirs.uuid())];
        let mistake = TenantMixup { between: [server.ours, server.theirs], bypasses_rls };
        server.use_store(mixed_up_store(&server.store, mistake), Settings::default());
        let token = evenkeel_test_support::TestServer::token(&server, "both", &roles);
        Self { server, token, secrets, attempts }
    }

    /// All rows of both projects.
    async fn stored_rows(&self) -> [Vec<String>; 2] {
        let server = &self.server;
        let ours = tenant_rows(&server.store, server.ours).await;
        [ours, tenant_rows(&server.store, server.theirs).await]
    }

    /// Runs all attempts. Returns the responses that leak a secret, and the number of successes.
    async fn try_all(&self) -> (Vec<String>, usize) {
        let succeeded = AtomicUsize::new(0);
        let tries = stream::iter(&self.attempts)
            .map(|attempt| self.try_one(attempt, &succeeded))
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        let leaks: Vec<Option<String>> = tries.collect().await;
        let leaks = leaks.into_iter().flatten().collect();
        (leaks, succeeded.into_inner())
    }

    async fn try_one(&self, attempt: &Attempt, succeeded: &AtomicUsize) -> Option<String> {
        let client = self.server.client(Some(&self.token), attempt.project.as_deref());
        let Answer { status, text, .. } = client.call(&attempt.request, attempt.body.clone()).await;
        if status.is_success() {
            succeeded.fetch_add(1, Ordering::Relaxed);
        }
        let input = if status.is_success() { String::new() } else { attempt.input_text() };
        let find_leak = |secrets: &Secrets| secrets.find_leak(&text, &input).map(str::to_owned);
        let secret = self.secrets.iter().find_map(find_leak)?;
        Some(format!("{}: {status} leaks {secret}: {text}", attempt.input_text()))
    }
}

#[tokio::test]
async fn a_program_that_swaps_two_projects_leaks_and_changes_nothing() {
    let (seed, count) = (rng_seed(), attempts_per_project());
    println!("ISOLATION_SEED={seed}");
    let swapped = Box::pin(SwappedProjects::new(seed, count, false)).await;
    let before = swapped.stored_rows().await;
    let (leaks, succeeded) = swapped.try_all().await;
    let sample: Vec<_> = leaks.iter().take(5).collect();
    assert!(leaks.is_empty(), "seed {seed}: {} leaks: {sample:#?}", leaks.len());
    assert!(swapped.stored_rows().await == before, "seed {seed}: something was changed");
    // Most successes are empty lists. They prove that the program did query the database.
    assert!(succeeded > count / 5, "only {succeeded} succeeded");
    println!("{} attempts, {succeeded} succeeded without a leak", 2 * count);
}

#[tokio::test]
async fn without_row_security_the_same_mistake_leaks_and_changes_a_lot() {
    let seed = rng_seed();
    println!("ISOLATION_SEED={seed}");
    let swapped = Box::pin(SwappedProjects::new(seed, ATTEMPTS_WITHOUT_RLS, true)).await;
    let before = swapped.stored_rows().await;
    let (leaks, _) = swapped.try_all().await;
    println!("{} of {} leak something", leaks.len(), 2 * ATTEMPTS_WITHOUT_RLS);
    let minimum = ATTEMPTS_WITHOUT_RLS / 5;
    assert!(leaks.len() > minimum, "seed {seed}: only {}", leaks.len());
    assert!(swapped.stored_rows().await != before, "seed {seed}: nothing was changed");
}
