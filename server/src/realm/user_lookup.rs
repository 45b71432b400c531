//! Users of both sources: the file of users and the database.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_auth::users::is_new_name;
use evenkeel_auth::{User, Users};
use evenkeel_inventory::{PasswordAttempt, PasswordCheck, PasswordChecker, ReservedNames};
use evenkeel_kit::Secret;
use evenkeel_store::{FleetTx, StoreError, users};

use super::access_log::truncate_name;
use super::login_record::LoginRefusal;
use super::{Realm, TokenError, internal_error, invalid_grant, store_error};

/// What the two sources have for one name.
#[derive(Debug)]
struct UserSources {
    file: Arc<Users>,
    stored: Option<User>,
}

impl UserSources {
    /// Whether the name is in both sources. Then it is not known which user is meant.
    fn has_both(&self, name: &str) -> bool {
        self.file.find(name).is_some() && self.stored.is_some()
    }
}

/// A user who may log in.
#[derive(Clone, Debug)]
pub(super) struct LoginUser {
    pub(super) user: User,
    /// Whether the user is in the database, not in the file.
    is_stored: bool,
}

impl LoginUser {
    /// The user with its current roles; it does not change until the end of the transaction. None if
    /// the user was disabled or deleted, or got another password, since it was found. A change of the
    /// user that follows revokes the tokens that the transaction issues.
    pub(super) async fn lock(self, tx: &FleetTx) -> Result<Option<User>, StoreError> {
        if !self.is_stored {
            return Ok(Some(self.user));
        }
        let name = &self.user.name;
        let Some(login) = users::lock_login(tx, name).await? else {
            return Ok(None);
        };
        let current = User::from_stored(name, login.roles, login.password_hash).ok();
        Ok(current.filter(|current| current.session() == self.user.session()))
    }
}

impl Realm {
    /// The names in the file of users, which the database must not have.
    pub(crate) fn names_in_file(&self) -> ReservedNames {
        let people = Arc::clone(&self.users);
        ReservedNames::new(move |name| people.current_users().has_entry(name))
    }

    /// Checks the passwords of users who change them. The check counts failures as a login does.
    pub(crate) fn password_checker(&self) -> PasswordChecker {
        let realm = Arc::new(self.clone());
        PasswordChecker::new(move |attempt| {
            let realm = Arc::clone(&realm);
            Box::pin(async move { realm.check_attempt(attempt).await })
        })
    }

    async fn check_attempt(&self, attempt: PasswordAttempt) -> PasswordCheck {
        let PasswordAttempt { user, client, password } = attempt;
        match self.attempt_password(&user, client, password).await {
            Ok(Some(_)) => PasswordCheck::Correct,
            Ok(None) => PasswordCheck::Wrong,
            Err(TokenError::TooManyAttempts(wait)) => PasswordCheck::TooManyAttempts(wait),
            Err(TokenError::BadRequest(_, why)) => PasswordCheck::Refused(why),
            Err(TokenError::Overloaded | TokenError::Unavailable | TokenError::Internal) => {
                PasswordCheck::Unavailable
            }
        }
    }

    /// Returns the user if the password is correct. Failures are counted and recorded, and repeated
    /// ones must wait.
    pub(super) async fn attempt_password(
        &self,
        name: &str,
        client: Option<IpAddr>,
        password: Secret,
    ) -> Result<Option<LoginUser>, TokenError> {
        let begun = self.attempts.begin(name, client, self.clock.now());
        begun.map_err(|wait| {
            tracing::debug!(user = truncate_name(name), ?client, ?wait, "a login was delayed");
            self.failures.record(name, client, LoginRefusal::TooManyAttempts);
            TokenError::TooManyAttempts(wait)
        })?;
        let Some(found) = self.check_password(name, client, password).await? else {
            tracing::warn!(
                user = truncate_name(name),
                client = client.map(tracing::field::display),
                "a login failed"
            );
            self.failures.record(name, client, LoginRefusal::BadCredentials);
            return Ok(None);
        };
        self.attempts.record_success(name, client, self.clock.now());
        Ok(Some(found))
    }

    async fn load_sources(&self, name: &str) -> Result<UserSources, TokenError> {
        let people = Arc::clone(&self.users);
        let file = tokio::task::spawn_blocking(move || people.current_users()).await;
        let file = file.map_err(|error| internal_error(&error))?;
        let tx = self.store_for(truncate_name(name)).fleet().await;
        let tx = tx.map_err(|error| store_error(&error))?;
        // Postgres refuses some of the other names as texts.
        let found = if is_new_name(name) { users::find_login(&tx, name).await } else { Ok(None) };
        let found = found.map_err(|error| store_error(&error))?;
        let stored = found.and_then(|found| {
            let user = User::from_stored(name, found.roles, found.password_hash);
            user.inspect_err(|error| {
                tracing::error!(%error, "a user of the database cannot log in because its entry is invalid");
            })
            .ok()
        });
        Ok(UserSources { file, stored })
    }

    /// The user of this name, if it may log in.
    pub(super) async fn find_user(&self, name: &str) -> Result<Option<LoginUser>, TokenError> {
        let sources = self.load_sources(name).await?;
        if sources.has_both(name) {
            return Ok(None);
        }
        let in_file = sources.file.find(name).cloned();
        let is_stored = in_file.is_none();
        Ok(in_file.or(sources.stored).map(|user| LoginUser { user, is_stored }))
    }

    /// Returns the user if the password is correct. Runs on a blocking thread; the number of
    /// concurrent checks is limited, in total and per address.
    async fn check_password(
        &self,
        name: &str,
        client: Option<IpAddr>,
        password: Secret,
    ) -> Result<Option<LoginUser>, TokenError> {
        let permit = self.password_checks.acquire(client).await;
        let sources = self.load_sources(name).await?;
        let is_ambiguous = sources.has_both(name);
        let owned_name = name.to_owned();
        let checked = tokio::task::spawn_blocking(move || {
            let is_stored = sources.file.find(&owned_name).is_none();
            let stored = sources.stored.as_ref();
            let user = sources.file.log_in_with(stored, &owned_name, &password).cloned();
            drop(permit);
            user.map(|user| LoginUser { user, is_stored })
        });
        let user = checked.await.map_err(|error| internal_error(&error))?;
        if user.is_some() && is_ambiguous {
            tracing::error!(
                user = truncate_name(name),
                "a user cannot log in because the name is in the file of users and in the database; remove one of them"
            );
            self.failures.record(name, client, LoginRefusal::AmbiguousName);
            return Err(invalid_grant(
                "the name is in the file of users and in the database of the server; an administrator must remove one \
                 of them",
            ));
        }
        Ok(user)
    }
}
