//! What the tests of several crates need. No program contains this crate.

mod node_keys;
mod redaction;
mod rest_client;
mod server_process;
mod tenant_conditions;
mod test_server;

pub use node_keys::{
    certificate_pem, certificate_request, decryption_certificate_request, node_key,
    node_key_from_secret,
};
pub use redaction::redact;
pub use rest_client::{Answer, RestClient, install_tls, resource_id};
pub use server_process::ServerProcess;
pub use tenant_conditions::{StatementException, find_missing_tenant_conditions};
pub use test_server::TestServer;
