//! The state of a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use evenkeel_domain::tenant::TenantId;
use tonic::Request;

use crate::admission::semaphore::{PrioritySemaphore, UnitPermit};

/// The state of a connection. The server puts it into the extensions of each request of the
/// connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState(Arc<ConnectionInner>);

#[derive(Debug, Default)]
struct ConnectionInner {
    long_polls: Arc<PrioritySemaphore>,
    is_authenticated: AtomicBool,
    /// The project of the client certificate or of the first authenticated call.
    project: OnceLock<TenantId>,
    has_several_projects: AtomicBool,
}

/// The project that a message counts for while it arrives. Its call is authenticated only later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SenderProject {
    /// The project of the client certificate and of all authenticated calls of the connection.
    Known(TenantId),
    /// The connection has calls of several projects: it is that of a proxy. Such connections count
    /// like one project.
    Several,
    /// The connection has no client certificate and no authenticated call yet. Such connections
    /// count like one project.
    Unknown,
}

impl SenderProject {
    /// The project of the next message on a connection.
    pub fn from_connection(connection: Option<&ConnectionState>) -> Self {
        let Some(ConnectionState(inner)) = connection else {
            return Self::Unknown;
        };
        match inner.project.get() {
            Some(_) if inner.has_several_projects.load(Ordering::Relaxed) => Self::Several,
            Some(project) => Self::Known(*project),
            None => Self::Unknown,
        }
    }
}

impl ConnectionState {
    /// Whether an authenticated call has arrived on the connection.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.0.is_authenticated.load(Ordering::Relaxed)
    }

    /// Records that a call of a node of this project was authenticated on the connection.
    pub(crate) fn mark_authenticated<T>(request: &Request<T>, project: TenantId) {
        let Some(connection) = request.extensions().get::<Self>() else {
            return;
        };
        connection.note_project(project);
        // All calls read the flag; only the first one writes it.
        if !connection.is_authenticated() {
            connection.0.is_authenticated.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the client certificate or a call on the connection is of this project.
    pub(crate) fn note_project(&self, project: TenantId) {
        let Self(inner) = self;
        let is_other = *inner.project.get_or_init(|| project) != project;
        if is_other && !inner.has_several_projects.load(Ordering::Relaxed) {
            inner.has_several_projects.store(true, Ordering::Relaxed);
        }
    }

    /// The number of long polls on the connection.
    #[must_use]
    pub fn long_polls(&self) -> u64 {
        self.0.long_polls.in_use()
    }

    /// Counts one more long poll, up to a number, until the permit is dropped.
    #[must_use]
    pub fn acquire_long_poll(&self, max: u32) -> Option<UnitPermit> {
        self.0.long_polls.try_acquire(1, max.into())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_connection_belongs_to_the_project_of_all_its_calls() {
        let [ours, theirs] = [1, 2].map(|number| TenantId::new(Uuid::from_u128(number)));
        let connection = ConnectionState::default();
        let mut request = Request::new(());
        request.extensions_mut().insert(connection.clone());
        let sender = || SenderProject::from_connection(Some(&connection));
        assert_eq!(sender(), SenderProject::Unknown);
        connection.note_project(ours);
        assert_eq!(sender(), SenderProject::Known(ours), "by its certificate");
        assert!(!connection.is_authenticated());
        ConnectionState::mark_authenticated(&request, ours);
        assert_eq!(sender(), SenderProject::Known(ours));
        assert!(connection.is_authenticated());
        ConnectionState::mark_authenticated(&request, theirs);
        ConnectionState::mark_authenticated(&request, ours);
        assert_eq!(sender(), SenderProject::Several);
        assert_eq!(SenderProject::from_connection(None), SenderProject::Unknown);
    }
}
