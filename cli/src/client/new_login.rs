//! A new login after the user has changed the password.

use evenkeel_kit::Secret;

use super::{Client, Renewal, Session};
use crate::Failure;
use crate::contexts::lock_renewals;
use crate::http::build_realm_client;
use crate::login::{IssuedToken, LoginRequest};

impl Client {
    /// Logs in with the new password and saves the login, if the token is that of a login with a
    /// password. The old login has ended with the old password.
    pub async fn log_in_again(&self, password: &Secret) -> Result<(), Failure> {
        let Some(renewal) = self.session().renewal.clone() else {
            return Ok(());
        };
        if renewal.login.provider.is_some() {
            return Ok(());
        }
        let _lock = lock_renewals(&renewal.contexts).await;
        let login = renewal.login.clone();
        let http = build_realm_client(&login.realm, &self.base, self.target.ca.as_deref())?;
        let request =
            LoginRequest { username: login.username, realm: login.realm, client: login.client };
        let issued = request.log_in(&http, password).await?;
        self.use_token(renewal, issued);
        Ok(())
    }

    /// Uses a new token, and saves it. It is valid for this command even if it cannot be saved for the
    /// next one.
    pub(super) fn use_token(&self, renewal: Renewal, issued: IssuedToken) {
        let save_error = renewal.save_token(&issued).err();
        let login = issued.login;
        *self.session() = Session {
            token: Some(issued.token),
            renewal: login.map(|login| Renewal { login, ..renewal }),
            save_error,
        };
    }
}
