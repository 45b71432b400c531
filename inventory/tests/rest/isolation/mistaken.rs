//! The program's own scope wrong on purpose, behind every path in a project: it takes two projects for each other, so that whoever
//! enters one of them is served with what its queries ask of the other one. The database still tells them apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::TimeDelta;
use evenkeel_auth::Role;
use evenkeel_kit::Clock;
use evenkeel_store::testing::{Mistake, mistaken, rows_of};
use futures_util::{StreamExt, stream};

use super::attempts::{Attempt, attempt};
use super::dice::Dice;
use super::secrets::Secrets;
use super::side::Side;
use super::world::{AT_ONCE, World};
use super::{TRIES, seed};
use crate::house::{House, Who, text_of};

/// How often it is tried without the walls: enough to see that they are what held.
const WITHOUT_WALLS: usize = 300;

/// Two projects that are taken for each other, and somebody who may write in both: else the program would refuse most of
/// what is tried before it asks anything.
struct Muddle {
    house: House,
    token: String,
    secrets: [Secrets; 2],
    attempts: Vec<Attempt>,
}

impl Muddle {
    async fn new(seed: u64, tries: usize, without_walls: bool) -> Self {
        let mut house = House::new().await;
        let walruses = Side::settle(&house, Who::Writer).await;
        let penguins = Side::settle(&house, Who::Foreigner).await;
        let mut dice = Dice::new(seed);
        let mut attempts = Vec::new();
        for (attacker, victim) in [(&walruses, &penguins), (&penguins, &walruses)] {
            let world = World::new(&house, attacker, victim).await;
            let some = std::iter::repeat_with(|| attempt(&mut dice, &world));
            // Projects themselves are kept by whoever sees all of them, past every wall.
            let some = some.filter(|attempt| !attempt.is_about_projects());
            attempts.extend(some.take(tries));
        }
        let secrets = [
            Secrets::of(&walruses, &penguins, &house).await,
            Secrets::of(&penguins, &walruses, &house).await,
        ];
        let roles = [
            Role::Write(house.ours.uuid()),
            Role::Write(house.theirs.uuid()),
        ];
        let token = house
            .authority
            .issue_operator("both", &roles, TimeDelta::hours(1), house.clock.now())
            .expect("a token");
        let mistake = Mistake {
            between: [house.ours, house.theirs],
            without_walls,
        };
        house.router = house.served_by(&mistaken(&house.store, mistake));
        Self {
            token: token.token.reveal().to_owned(),
            house,
            secrets,
            attempts,
        }
    }

    /// All that there is in both projects.
    async fn held(&self) -> [Vec<String>; 2] {
        let house = &self.house;
        let ours = rows_of(&house.store, house.ours).await;
        [ours, rows_of(&house.store, house.theirs).await]
    }

    /// Tries all of it: which answers told something, and how many were a success.
    async fn try_all(&self) -> (Vec<String>, usize) {
        let succeeded = AtomicUsize::new(0);
        let tries = stream::iter(&self.attempts)
            .map(|attempt| self.try_one(attempt, &succeeded))
            .buffer_unordered(AT_ONCE);
        let told: Vec<Option<String>> = tries.collect().await;
        let told = told.into_iter().flatten().collect();
        (told, succeeded.into_inner())
    }

    async fn try_one(&self, attempt: &Attempt, succeeded: &AtomicUsize) -> Option<String> {
        let project = attempt.project.as_deref();
        let answer = self.house.ask_with(
            Some(&self.token),
            project,
            &attempt.what,
            attempt.body.clone(),
        );
        let (status, text) = text_of(answer.await).await;
        if status.is_success() {
            succeeded.fetch_add(1, Ordering::Relaxed);
        }
        let said = if status.is_success() {
            String::new()
        } else {
            attempt.said()
        };
        let told = |secrets: &Secrets| secrets.told_in(&text, &said).map(str::to_owned);
        let secret = self.secrets.iter().find_map(told)?;
        Some(format!(
            "{}: {status} tells {secret}: {text}",
            attempt.said()
        ))
    }
}

#[tokio::test]
async fn a_program_that_takes_one_project_for_another_tells_and_changes_nothing() {
    let seed = seed();
    println!("ISOLATION_SEED={seed}");
    let muddle = Box::pin(Muddle::new(seed, TRIES, false)).await;
    let before = muddle.held().await;
    let (told, succeeded) = muddle.try_all().await;
    let some: Vec<_> = told.iter().take(5).collect();
    assert!(
        told.is_empty(),
        "seed {seed}: {} tell: {some:#?}",
        told.len()
    );
    assert!(
        muddle.held().await == before,
        "seed {seed}: something was changed"
    );
    // Empty lists, most of them: the program did ask.
    assert!(succeeded > TRIES / 5, "only {succeeded} were served");
    println!("{} tries, {succeeded} served with nothing", 2 * TRIES);
}

#[tokio::test]
async fn without_the_walls_the_same_mistake_tells_and_changes_a_lot() {
    let seed = seed();
    println!("ISOLATION_SEED={seed}");
    let muddle = Box::pin(Muddle::new(seed, WITHOUT_WALLS, true)).await;
    let before = muddle.held().await;
    let (told, _) = muddle.try_all().await;
    println!("{} of {} tell something", told.len(), 2 * WITHOUT_WALLS);
    let least = WITHOUT_WALLS / 5;
    assert!(told.len() > least, "seed {seed}: only {}", told.len());
    assert!(
        muddle.held().await != before,
        "seed {seed}: nothing was changed"
    );
}
