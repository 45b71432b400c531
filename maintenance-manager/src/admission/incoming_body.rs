//! The body of an admitted call while it arrives. A call counts as in flight, so slow bodies would
//! block other calls. After a grace period a call that waits for its body no longer counts; it
//! fails at the body timeout, or at once if too many calls wait. If long messages use too much
//! memory, the one that grows fails. The sender of an arriving message is unknown; its project is
//! that of the other calls on the connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::Bytes;

use crate::admission::concurrency::{Load, MessageMemory};
use crate::admission::connection::{ConnectionState, SenderProject};
use crate::admission::semaphore::ProjectUnitPermit;

/// How long a call counts as in flight while its body arrives.
const BODY_GRACE_PERIOD: Duration = Duration::from_millis(100);

/// The time limit for the rest of the body. The largest message meets it at 35 KiB/s.
const BODY_TIMEOUT: Duration = Duration::from_mins(2);

/// A message body that is being received.
#[derive(Debug)]
pub struct IncomingBody<B> {
    inner: B,
    load: Arc<Load>,
    wait: BodyWait,
    memory: MessageMemory,
}

/// The state of waiting for the body.
#[derive(Debug)]
enum BodyWait {
    /// Not waiting. Almost all bodies are complete at once.
    NotWaiting,
    /// Waiting; the call counts as in flight.
    Counted(Pin<Box<Sleep>>),
    /// Waiting; the call no longer counts.
    Parked { timeout: Pin<Box<Sleep>>, _permit: ProjectUnitPermit<SenderProject> },
}

impl<B> IncomingBody<B> {
    /// The body of an admitted call. `connection` is its connection, if the server tracks it.
    pub fn new(message: B, load: Arc<Load>, connection: Option<ConnectionState>) -> Self {
        Self {
            inner: message,
            memory: MessageMemory::new(connection),
            load,
            wait: BodyWait::NotWaiting,
        }
    }

    /// Waits for more data. Ready with the error if the call must fail.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        loop {
            match &mut self.wait {
                BodyWait::NotWaiting => {
                    self.wait = BodyWait::Counted(Box::pin(sleep(BODY_GRACE_PERIOD)));
                }
                BodyWait::Counted(wait) => {
                    ready!(wait.as_mut().poll(context));
                    self.wait = match self.load.await_body(self.memory.connection()) {
                        Ok(late) => BodyWait::Parked {
                            timeout: Box::pin(sleep(BODY_TIMEOUT)),
                            _permit: late,
                        },
                        Err(busy) => return Poll::Ready(busy.status()),
                    };
                }
                BodyWait::Parked { timeout: wait, .. } => {
                    ready!(wait.as_mut().poll(context));
                    let text = "the message of the call did not arrive in time";
                    return Poll::Ready(Status::deadline_exceeded(text));
                }
            }
        }
    }
}

impl<B> Body for IncomingBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<tonic::codegen::StdError>,
{
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            if frame.is_none() || this.inner.is_end_stream() {
                this.wait = BodyWait::NotWaiting;
            }
            let received = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            if let Err(busy) = this.memory.charge(received.map_or(0, Bytes::len), &this.load) {
                return Poll::Ready(Some(Err(busy.status().into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let timed_out = ready!(this.poll_timeout(context));
        Poll::Ready(Some(Err(timed_out.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use evenkeel_domain::tenant::TenantId;
    use uuid::Uuid;

    use super::*;
    use crate::admission::concurrency::{CallKind, LoadSettings};

    fn project(number: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(number))
    }

    /// A connection with the client certificate of a node of a project.
    fn connection_of(number: u128) -> ConnectionState {
        let connection = ConnectionState::default();
        connection.note_project(project(number));
        connection
    }

    /// A message that arrives only in part.
    #[derive(Debug)]
    struct PartialBody(Option<&'static str>);

    impl Body for PartialBody {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match self.0.take() {
                Some(part) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(part))))),
                None => Poll::Pending,
            }
        }
    }

    fn single_call_load() -> Arc<Load> {
        Arc::new(Load::new(LoadSettings {
            query_call_limit: 1,
            total_call_limit: 1,
            ..LoadSettings::default()
        }))
    }

    async fn next_frame<B>(message: &mut IncomingBody<B>) -> Option<Result<Frame<Bytes>, String>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<tonic::codegen::StdError>,
    {
        let frame = poll_fn(|context| Pin::new(&mut *message).poll_frame(context)).await;
        frame.map(|frame| frame.map_err(|error| error.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_does_not_arrive_blocks_no_other_and_times_out() {
        let load = single_call_load();
        let Ok(_inside) = load.admit(CallKind::Query) else {
            panic!("there is no other call");
        };
        let mut message =
            IncomingBody::new(PartialBody(Some("half a mess")), Arc::clone(&load), None);
        let started = tokio::time::Instant::now();
        assert!(next_frame(&mut message).await.is_some_and(|part| part.is_ok()));
        assert!(load.admit(CallKind::Query).is_err(), "it counts as in flight");

        let rest = tokio::time::timeout(2 * BODY_GRACE_PERIOD, next_frame(&mut message)).await;
        assert!(rest.is_err(), "the rest does not come");
        let another = load.admit(CallKind::Query);
        assert!(another.is_ok(), "it no longer counts");
        drop(another);

        let late = next_frame(&mut message).await.expect("an end").expect_err("none");
        assert!(late.contains("did not arrive in time"), "{late}");
        assert!(started.elapsed() >= BODY_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_messages_are_limited_like_calls_in_flight() {
        let load = single_call_load();
        let mut first =
            IncomingBody::new(PartialBody(Some("half a mess")), Arc::clone(&load), None);
        assert!(next_frame(&mut first).await.is_some_and(|part| part.is_ok()));
        let rest = tokio::time::timeout(2 * BODY_GRACE_PERIOD, next_frame(&mut first)).await;
        assert!(rest.is_err(), "the rest does not come");

        let mut second = IncomingBody::new(PartialBody(None), Arc::clone(&load), None);
        let refused = next_frame(&mut second).await.expect("an end").expect_err("none");
        assert!(refused.contains("overloaded"), "{refused}");
        drop((first, second));
        let mut third = IncomingBody::new(PartialBody(None), Arc::clone(&load), None);
        let rest = tokio::time::timeout(2 * BODY_GRACE_PERIOD, next_frame(&mut third)).await;
        assert!(rest.is_err(), "there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_project_leaves_pending_messages_to_others() {
        let load = Arc::new(Load::new(LoadSettings {
            query_call_limit: 4,
            total_call_limit: 4,
            ..LoadSettings::default()
        }));
        let mut pending = Vec::new();
        for (number, is_refused) in [(1, false), (1, false), (1, false), (1, true), (2, false)] {
            let mut message = IncomingBody::new(
                PartialBody(None),
                Arc::clone(&load),
                Some(connection_of(number)),
            );
            let rest = tokio::time::timeout(2 * BODY_GRACE_PERIOD, next_frame(&mut message)).await;
            let refused = rest.ok().flatten().and_then(Result::err);
            assert_eq!(refused.is_some(), is_refused, "{number}: {refused:?}");
            pending.push(message);
        }
        let mut fifth =
            IncomingBody::new(PartialBody(None), Arc::clone(&load), Some(connection_of(3)));
        let refused = next_frame(&mut fifth).await.expect("an end").expect_err("none");
        assert!(refused.contains("overloaded"), "the limit of all: {refused}");
    }

    /// A message without end.
    #[derive(Debug)]
    struct EndlessBody;

    impl Body for EndlessBody {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1 << 10])))))
        }
    }

    #[tokio::test]
    async fn long_messages_stay_within_the_memory_limit() {
        let load = Arc::new(Load::new(LoadSettings {
            message_memory_limit: 100 << 10,
            ..LoadSettings::default()
        }));
        let mut first = IncomingBody::new(EndlessBody, Arc::clone(&load), None);
        for _ in 0..164 {
            assert!(next_frame(&mut first).await.is_some_and(|part| part.is_ok()));
        }
        let mut second = IncomingBody::new(EndlessBody, Arc::clone(&load), None);
        for _ in 0..64 {
            let short = next_frame(&mut second).await;
            assert!(short.is_some_and(|part| part.is_ok()), "below the uncharged size");
        }
        let refused = next_frame(&mut second).await.expect("an end").expect_err("none");
        assert!(refused.contains("overloaded"), "{refused}");
        let refused = next_frame(&mut first).await.expect("an end").expect_err("none");
        assert!(refused.contains("overloaded"), "{refused}");
        drop((first, second));
        let mut third = IncomingBody::new(EndlessBody, Arc::clone(&load), None);
        for _ in 0..164 {
            let part = next_frame(&mut third).await;
            assert!(part.is_some_and(|part| part.is_ok()), "there is room again");
        }
    }

    #[tokio::test]
    async fn a_project_leaves_memory_to_the_messages_of_others() {
        let load = Arc::new(Load::new(LoadSettings {
            message_memory_limit: 400 << 10,
            ..LoadSettings::default()
        }));
        let authenticated = |number| {
            let connection = ConnectionState::default();
            let mut request = tonic::Request::new(());
            request.extensions_mut().insert(connection.clone());
            ConnectionState::mark_authenticated(&request, project(number));
            IncomingBody::new(EndlessBody, Arc::clone(&load), Some(connection))
        };
        let mut theirs = [authenticated(1), authenticated(1)];
        let mut received = 0;
        for body in &mut theirs {
            while next_frame(body).await.is_some_and(|part| part.is_ok()) {
                received += 1;
            }
        }
        assert_eq!(received, 2 * 64 + 300, "three quarters, plus the uncharged parts");
        let mut ours = authenticated(2);
        for _ in 0..64 + 100 {
            assert!(next_frame(&mut ours).await.is_some_and(|part| part.is_ok()));
        }
        let refused = next_frame(&mut ours).await.expect("an end").expect_err("none");
        assert!(refused.contains("overloaded"), "the limit of all: {refused}");
    }

    #[tokio::test]
    async fn unauthenticated_messages_get_a_quarter_of_the_memory() {
        let load = Arc::new(Load::new(LoadSettings {
            message_memory_limit: 400 << 10,
            ..LoadSettings::default()
        }));
        let unauthenticated: Vec<_> = (0..3).map(|_| Some(ConnectionState::default())).collect();
        let message = |connection: &Option<ConnectionState>| {
            IncomingBody::new(EndlessBody, Arc::clone(&load), connection.clone())
        };
        let mut theirs: Vec<_> = unauthenticated.iter().map(message).collect();
        let mut received = 0;
        for body in &mut theirs {
            while next_frame(body).await.is_some_and(|part| part.is_ok()) {
                received += 1;
            }
        }
        assert_eq!(received, 3 * 64 + 100, "a quarter of the limit, plus the uncharged parts");
        let authenticated = ConnectionState::default();
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(authenticated.clone());
        ConnectionState::mark_authenticated(&request, project(1));
        let mut ours = message(&Some(authenticated));
        for _ in 0..64 + 296 {
            assert!(next_frame(&mut ours).await.is_some_and(|part| part.is_ok()));
        }
        drop((theirs, ours));
        let mut again = message(&unauthenticated[0]);
        for _ in 0..64 + 100 {
            assert!(next_frame(&mut again).await.is_some_and(|part| part.is_ok()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_has_arrived_counts() {
        let load = single_call_load();
        let Ok(_inside) = load.admit(CallKind::Query) else {
            panic!("there is no other call");
        };
        let mut message = IncomingBody::new("a message".to_owned(), Arc::clone(&load), None);
        assert!(next_frame(&mut message).await.is_some_and(|part| part.is_ok()));
        assert!(next_frame(&mut message).await.is_none());
        tokio::time::advance(2 * BODY_GRACE_PERIOD).await;
        assert!(load.admit(CallKind::Query).is_err());
    }
}
