//! Notices that the database has lost the hosts that it created last, as after the restore of a
//! copy of its files.

use tonic::{Code, Status};

use crate::admission::peer::Peer;
use crate::manager::MaintenanceManager;

impl MaintenanceManager {
    /// Lets all ids jump ahead if the call was refused because the database has not created the
    /// host of the credential yet. A host that was deleted does not count.
    pub(crate) async fn protect_ids_of_lost_host<T>(
        &self,
        peer: &Peer,
        answer: &Result<T, Status>,
    ) {
        let (Peer::Host(_, host), Err(refused)) = (peer, answer) else {
            return;
        };
        if refused.code() != Code::NotFound {
            return;
        }
        if let Err(error) = self.store.protect_ids_after(*host).await {
            tracing::warn!(%host, %error, "cannot check whether the database has lost this host");
        }
    }
}
