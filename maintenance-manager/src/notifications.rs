//! Delivery of notifications to webhooks: what a message contains, to which addresses the server
//! connects, and how one message is sent. The task in `tasks::notification_deliveries` decides when.

pub(crate) mod addresses;
pub(crate) mod message;
pub(crate) mod sender;
