//! The gRPC services for nodes: what a call carries, who sends it, and the answer.

pub mod agent;
pub mod caller;
mod daily_limit_condition;
pub mod eim;
pub mod hostmgr;
mod lost_hosts;
