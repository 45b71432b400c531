//! The maintenance manager as a whole.

use std::sync::Arc;

use evenkeel_auth::Authority;
use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::lifecycle::Lifecycle;
use evenkeel_proto::agent::agent_service_server::AgentServiceServer;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrServiceServer;
use evenkeel_store::{Store, StoreError, Tx, hosts};
use tokio::sync::Semaphore;
use tonic::service::{LayerExt, Routes};
use tower::util::MapResponseLayer;

use crate::contacts::Contacts;
use crate::settings::{Settings, period};
use crate::tracker::Tracker;

/// The largest message that is read. A detail of 10 MiB is cut and its outcome kept; larger is refused.
const MAX_MESSAGE: usize = 16 << 20;

/// How many machines are let in at once.
const DOORS: usize = 4;

/// What the services for agents share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MaintenanceManager {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) contacts: Contacts,
    /// Machines that are let in at once. Each holds a connection while it waits for those with the same join token, so
    /// a roll-out must not take them all.
    pub(crate) doors: Arc<Semaphore>,
}

impl MaintenanceManager {
    /// A maintenance manager on a store.
    #[must_use]
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        authority: Arc<Authority>,
        settings: Settings,
    ) -> Self {
        Self {
            store,
            clock,
            authority,
            settings: Arc::new(settings),
            contacts: Contacts::default(),
            doors: Arc::new(Semaphore::new(DOORS)),
        }
    }

    /// The gRPC services, for a server that speaks HTTP/2.
    #[must_use]
    pub fn services(&self) -> Routes {
        let ours = AgentServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE);
        let ancestors =
            MaintmgrServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE);
        let too_large = MapResponseLayer::new(name_what_is_too_large);
        Routes::new(too_large.clone().named_layer(ours))
            .add_service(too_large.named_layer(ancestors))
    }

    /// Starts the loops: the times of last contact, and the runs whose time has come.
    pub fn start_loops(&self, life: &Lifecycle) {
        let contacts = self.contacts.clone();
        let (store, every) = (self.store.clone(), period(self.settings.contacts_every));
        let stopping = life.stopping();
        life.spawn("contacts", async move {
            contacts.run(store, every, stopping).await;
            Ok(())
        });
        let tracker = Tracker::new(self.store.clone(), Arc::clone(&self.clock), &self.settings);
        let stopping = life.stopping();
        life.spawn("tracker", async move {
            tracker.run(stopping).await;
            Ok(())
        });
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Opens a transaction and finds a host in it.
    pub(crate) async fn for_host(
        &self,
        tenant: TenantId,
        host: HostId,
    ) -> Result<(Tx, Host), StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let host = hosts::find(&tx, host).await?;
        Ok((tx, host))
    }
}

/// tonic says `OUT_OF_RANGE` of a message that is too large; the word for it is `RESOURCE_EXHAUSTED`.
fn name_what_is_too_large<B>(
    mut response: tonic::codegen::http::Response<B>,
) -> tonic::codegen::http::Response<B> {
    let status = response.headers_mut().get_mut("grpc-status");
    if let Some(code) = status.filter(|code| code.as_bytes() == b"11") {
        *code = tonic::codegen::http::HeaderValue::from_static("8");
    }
    response
}
