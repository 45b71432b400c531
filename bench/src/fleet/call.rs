//! A call to the server, optionally with injected faults.

use std::time::Duration;

use evenkeel_simulator::connection::{Fate, Network, NodeConnection, node_request};
use evenkeel_simulator::polling::{self, CallOutcome, PollPayload};
use evenkeel_simulator::rng::Rng;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::connect::Dialer;

#[derive(Debug)]
pub enum CallConnection {
    Open(Channel),
    /// A connection that is opened for the call: its dialer and its number.
    Dial(Box<Dialer>, u32),
}

/// A call to send.
#[derive(Debug)]
pub struct OutgoingCall {
    /// The connection to use.
    pub connection: CallConnection,
    /// The value of the `authorization` header; `None` if the connection shows a client certificate.
    pub authorization: Option<MetadataValue<Ascii>>,
    /// The message to send.
    pub payload: PollPayload,
    /// Deadline of the call.
    pub timeout: Duration,
    /// The network that injects faults, and the random numbers that select the fault; `None` for no
    /// faults.
    pub fault_injection: Option<(Network, Rng)>,
}

#[derive(Debug)]
pub struct CallResult {
    pub answer: Result<CallOutcome, Status>,
    /// Effect of fault injection.
    pub fate: Fate,
    /// The connection that was opened for the call.
    pub opened_channel: Option<Channel>,
}

impl OutgoingCall {
    /// Sends the call, and waits for the answer.
    pub async fn run(self) -> CallResult {
        let result = tokio::time::timeout(self.timeout, self.send()).await;
        result.unwrap_or_else(|_| {
            CallResult::from_status(Status::deadline_exceeded("no answer in time"))
        })
    }

    async fn send(self) -> CallResult {
        let (channel, opened_channel) = match self.connection {
            CallConnection::Open(channel) => (channel, None),
            CallConnection::Dial(dialer, number) => match Box::pin(dialer.dial(number)).await {
                Ok(channel) => (channel.clone(), Some(channel)),
                Err(error) => {
                    return CallResult::from_status(Status::unavailable(format!(
                        "cannot connect: {error}"
                    )));
                }
            },
        };
        let (answer, fate) = match self.fault_injection {
            None => {
                let authorization = self.authorization.as_ref();
                let answer = send_directly(channel, authorization, self.payload).await;
                (answer, Fate::Arrives)
            }
            Some((network, mut rng)) => {
                let connection =
                    NodeConnection::with_authorization(vec![channel], self.authorization, &network);
                let call = connection.call_with_fate(&mut rng, self.payload, polling::send);
                Box::pin(call).await
            }
        };
        CallResult { answer, fate, opened_channel }
    }
}

impl CallResult {
    fn from_status(status: Status) -> Self {
        Self { answer: Err(status), fate: Fate::Arrives, opened_channel: None }
    }
}

/// Sends a message without faults.
pub async fn send_directly(
    channel: Channel,
    authorization: Option<&MetadataValue<Ascii>>,
    payload: PollPayload,
) -> Result<CallOutcome, Status> {
    let request = node_request(payload, authorization);
    polling::send(channel, request).await.map(Response::into_inner)
}
