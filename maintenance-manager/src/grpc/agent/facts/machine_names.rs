//! The host name and the serial number that a machine reports. They may change after its enrolment.

use evenkeel_domain::host::SerialNumber;
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::agent::Facts;
use evenkeel_store::{StoreError, hosts};
use serde_json::Value;

use crate::node_transaction::NodeTransaction;

/// The maximum length of a host name, in bytes.
const MAX_HOST_NAME_BYTES: usize = 253;

/// The reported host name; empty if the agent does not report it.
pub fn host_name(facts: &Facts) -> String {
    cut(&storable(&facts.host_name), MAX_HOST_NAME_BYTES)
}

/// The reported serial number; `None` if there is none.
pub fn serial_number(facts: &Facts) -> Option<String> {
    let serial = SerialNumber::from_report(&facts.serial_number)?;
    Some(serial.as_str().to_owned())
}

/// The serial number in stored facts.
pub fn reported_serial(facts: &Value) -> Option<SerialNumber> {
    facts.get("serialNumber").and_then(Value::as_str).and_then(SerialNumber::from_report)
}

/// Stores changed names of new facts with the host. A serial number that a user registered, and the
/// machine never reported, stays; so does the name that users gave the host. `previous` is the
/// serial number in the facts before.
pub async fn record_names(
    node_tx: &NodeTransaction<'_>,
    previous: Option<SerialNumber>,
) -> Result<(), StoreError> {
    let (host, facts) = (&node_tx.host, &node_tx.node.facts);
    let host_name = facts.get("hostName").and_then(Value::as_str);
    let host_name = host_name.filter(|name| !name.is_empty() && *name != host.hostname);
    let may_replace = host.serial.is_none() || host.serial == previous;
    let serial = reported_serial(facts).filter(|_| may_replace);
    let serial = serial.filter(|serial| host.serial.as_ref() != Some(serial));
    hosts::record_names(&node_tx.tx, host.id, host_name, serial.as_ref()).await
}
