//! The message of a call while it arrives. A call that was taken on counts as one that is under way, so those whose messages
//! do not come would soon keep all others out: they count no more once they wait, and are given up in the end, or at once if too
//! many wait. What has come of a message is in memory, and nobody knows yet whose it is: if long ones take too much, the one
//! that grows is given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::Bytes;

use crate::carried::Carried;
use crate::load::{Late, Load, Weight};

/// How long a message may be in coming before its call counts no more among those that are under way.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How long a message may be in coming from then on. The largest needs that over a line of 35 KiB/s.
const IN_ALL: Duration = Duration::from_mins(2);

/// A message, on its way.
#[derive(Debug)]
pub struct Arriving<B> {
    message: B,
    load: Arc<Load>,
    wait: Wait,
    weight: Weight,
}

/// How long it has been waited for.
#[derive(Debug)]
enum Wait {
    /// It was there: almost all are.
    Not,
    /// It counts still.
    Inside(Pin<Box<Sleep>>),
    /// It counts no more.
    Aside { wait: Pin<Box<Sleep>>, _late: Late },
}

impl<B> Arriving<B> {
    /// The message of a call that was taken on, over a connection if the server tells them apart.
    pub fn new(message: B, load: Arc<Load>, carried: Option<Carried>) -> Self {
        Self {
            message,
            weight: Weight::new(Arc::clone(&load), carried),
            load,
            wait: Wait::Not,
        }
    }

    /// Waits for more of it. Ready with why, when it is given up.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        loop {
            match &mut self.wait {
                Wait::Not => self.wait = Wait::Inside(Box::pin(sleep(AT_ONCE))),
                Wait::Inside(wait) => {
                    ready!(wait.as_mut().poll(context));
                    self.wait = match self.load.arriving() {
                        Ok(late) => Wait::Aside {
                            wait: Box::pin(sleep(IN_ALL)),
                            _late: late,
                        },
                        Err(busy) => return Poll::Ready(busy.status()),
                    };
                }
                Wait::Aside { wait, .. } => {
                    ready!(wait.as_mut().poll(context));
                    let text = "the message of the call did not arrive in time";
                    return Poll::Ready(Status::deadline_exceeded(text));
                }
            }
        }
    }
}

impl<B> Body for Arriving<B>
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
        if let Poll::Ready(frame) = Pin::new(&mut this.message).poll_frame(context) {
            if frame.is_none() || this.message.is_end_stream() {
                this.wait = Wait::Not;
            }
            let come = frame
                .as_ref()
                .and_then(|frame| frame.as_ref().ok()?.data_ref());
            if let Err(busy) = this.weight.add(come.map_or(0, Bytes::len)) {
                return Poll::Ready(Some(Err(busy.status().into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let given_up = ready!(this.wait(context));
        Poll::Ready(Some(Err(given_up.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.message.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::load::{CallKind, LoadSettings};

    /// A message of which so much has come; the rest never does.
    #[derive(Debug)]
    struct Part(Option<&'static str>);

    impl Body for Part {
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

    fn one_call() -> Arc<Load> {
        Arc::new(Load::new(LoadSettings {
            calls: 1,
            calls_of_any_kind: 1,
            ..LoadSettings::default()
        }))
    }

    async fn next<B>(message: &mut Arriving<B>) -> Option<Result<Frame<Bytes>, String>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<tonic::codegen::StdError>,
    {
        let frame = poll_fn(|context| Pin::new(&mut *message).poll_frame(context)).await;
        frame.map(|frame| frame.map_err(|error| error.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_does_not_come_keeps_nobody_out_and_is_given_up() {
        let load = one_call();
        let Ok(_inside) = load.enter(CallKind::Quiet) else {
            panic!("there is nobody else");
        };
        let mut message = Arriving::new(Part(Some("half a mess")), Arc::clone(&load), None);
        let begun = tokio::time::Instant::now();
        assert!(next(&mut message).await.is_some_and(|part| part.is_ok()));
        assert!(load.enter(CallKind::Quiet).is_err(), "it counts");

        let rest = tokio::time::timeout(2 * AT_ONCE, next(&mut message)).await;
        assert!(rest.is_err(), "the rest does not come");
        let another = load.enter(CallKind::Quiet);
        assert!(another.is_ok(), "it counts no more");
        drop(another);

        let late = next(&mut message).await.expect("an end").expect_err("none");
        assert!(late.contains("did not arrive in time"), "{late}");
        assert!(begun.elapsed() >= IN_ALL);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_messages_are_waited_for_than_calls_may_be_under_way() {
        let load = one_call();
        let mut first = Arriving::new(Part(Some("half a mess")), Arc::clone(&load), None);
        assert!(next(&mut first).await.is_some_and(|part| part.is_ok()));
        let rest = tokio::time::timeout(2 * AT_ONCE, next(&mut first)).await;
        assert!(rest.is_err(), "the rest does not come");

        let mut second = Arriving::new(Part(None), Arc::clone(&load), None);
        let refused = next(&mut second).await.expect("an end").expect_err("none");
        assert!(refused.contains("too much to do"), "{refused}");
        drop((first, second));
        let mut third = Arriving::new(Part(None), Arc::clone(&load), None);
        let rest = tokio::time::timeout(2 * AT_ONCE, next(&mut third)).await;
        assert!(rest.is_err(), "there is room again");
    }

    /// A message that is sent on and on.
    #[derive(Debug)]
    struct Long;

    impl Body for Long {
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
    async fn long_messages_take_no_more_memory_than_they_may() {
        let load = Arc::new(Load::new(LoadSettings {
            message_memory: 100 << 10,
            ..LoadSettings::default()
        }));
        let mut first = Arriving::new(Long, Arc::clone(&load), None);
        for _ in 0..164 {
            assert!(next(&mut first).await.is_some_and(|part| part.is_ok()));
        }
        let mut second = Arriving::new(Long, Arc::clone(&load), None);
        for _ in 0..64 {
            let short = next(&mut second).await;
            assert!(short.is_some_and(|part| part.is_ok()), "as long as most");
        }
        let refused = next(&mut second).await.expect("an end").expect_err("none");
        assert!(refused.contains("too much to do"), "{refused}");
        let refused = next(&mut first).await.expect("an end").expect_err("none");
        assert!(refused.contains("too much to do"), "{refused}");
        drop((first, second));
        let mut third = Arriving::new(Long, Arc::clone(&load), None);
        for _ in 0..164 {
            let part = next(&mut third).await;
            assert!(part.is_some_and(|part| part.is_ok()), "there is room again");
        }
    }

    #[tokio::test]
    async fn messages_of_strangers_leave_room_for_those_of_nodes() {
        let load = Arc::new(Load::new(LoadSettings {
            message_memory: 400 << 10,
            ..LoadSettings::default()
        }));
        let strangers: Vec<_> = (0..3).map(|_| Some(Carried::default())).collect();
        let message =
            |carried: &Option<Carried>| Arriving::new(Long, Arc::clone(&load), carried.clone());
        let mut theirs: Vec<_> = strangers.iter().map(message).collect();
        let mut come = 0;
        for one in &mut theirs {
            while next(one).await.is_some_and(|part| part.is_ok()) {
                come += 1;
            }
        }
        assert_eq!(come, 3 * 64 + 100, "a quarter, and what is free");
        let known = Carried::default();
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(known.clone());
        Carried::prove(&request);
        let mut ours = message(&Some(known));
        for _ in 0..64 + 296 {
            assert!(next(&mut ours).await.is_some_and(|part| part.is_ok()));
        }
        drop((theirs, ours));
        let mut again = message(&strangers[0]);
        for _ in 0..64 + 100 {
            assert!(next(&mut again).await.is_some_and(|part| part.is_ok()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_message_has_come_counts() {
        let load = one_call();
        let Ok(_inside) = load.enter(CallKind::Quiet) else {
            panic!("there is nobody else");
        };
        let mut message = Arriving::new("a message".to_owned(), Arc::clone(&load), None);
        assert!(next(&mut message).await.is_some_and(|part| part.is_ok()));
        assert!(next(&mut message).await.is_none());
        tokio::time::advance(2 * AT_ONCE).await;
        assert!(load.enter(CallKind::Quiet).is_err());
    }
}
