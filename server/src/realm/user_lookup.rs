//! Users of both sources: the file of users and the database.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_auth::users::is_new_name;
use evenkeel_auth::{User, Users};
use evenkeel_inventory::ReservedNames;
use evenkeel_kit::Secret;
use evenkeel_store::users;

use super::login_record::LoginRefusal;
use super::{Realm, TokenError, internal_error, invalid_grant, store_error, truncate_name};

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

impl Realm {
    /// The names in the file of users, which the database must not have.
    pub(crate) fn names_in_file(&self) -> ReservedNames {
        let people = Arc::clone(&self.users);
        ReservedNames::new(move |name| people.current_users().has_entry(name))
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
    pub(super) async fn find_user(&self, name: &str) -> Result<Option<User>, TokenError> {
        let sources = self.load_sources(name).await?;
        if sources.has_both(name) {
            return Ok(None);
        }
        Ok(sources.file.find(name).cloned().or(sources.stored))
    }

    /// Returns the user if the password is correct. Runs on a blocking thread; the number of
    /// concurrent checks is limited, in total and per address.
    pub(super) async fn check_password(
        &self,
        name: &str,
        client: Option<IpAddr>,
        password: Secret,
    ) -> Result<Option<User>, TokenError> {
        let permit = self.password_checks.acquire(client).await;
        let sources = self.load_sources(name).await?;
        let is_ambiguous = sources.has_both(name);
        let owned_name = name.to_owned();
        let checked = tokio::task::spawn_blocking(move || {
            let stored = sources.stored.as_ref();
            let user = sources.file.log_in_with(stored, &owned_name, &password).cloned();
            drop(permit);
            user
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
