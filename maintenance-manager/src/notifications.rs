//! Delivery of notifications: what a message contains, to which addresses the server connects for
//! webhooks, and how one message is sent. The task in `tasks::notification_deliveries` decides when.

pub(crate) mod addresses;
pub(crate) mod mail;
pub(crate) mod mail_text;
pub(crate) mod message;
pub(crate) mod sender;
