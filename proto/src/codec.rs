//! Codec of the messages of all services.

use evenkeel_kit::offload_now;
use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// Protobuf. Large messages are decoded outside of the threads that run tasks: a message of 16 MiB
/// takes many milliseconds, and other tasks would wait.
#[derive(Clone, Debug)]
pub struct OffloadCodec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for OffloadCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T, U> Codec for OffloadCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = OffloadDecoder<<ProstCodec<T, U> as Codec>::Decoder>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        OffloadDecoder(self.0.decoder())
    }
}

/// Decodes large messages with another decoder outside of the threads that run tasks.
#[derive(Clone, Debug)]
pub struct OffloadDecoder<D>(D);

impl<D: Decoder<Error = Status> + Send> Decoder for OffloadDecoder<D> {
    type Item = D::Item;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        offload_now(message.remaining(), || self.0.decode(message))
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use evenkeel_kit::Lifecycle;
    use evenkeel_kit::offload::MAX_INLINE_BYTES;
    use prost::bytes::Bytes;
    use tokio::sync::oneshot;
    use tonic::codec::Streaming;

    use super::*;

    /// A decoder that waits for another task. Its message is whether that task has run.
    struct WaitingDecoder {
        start: Option<oneshot::Sender<()>>,
        answer: mpsc::Receiver<()>,
    }

    impl WaitingDecoder {
        fn new() -> Self {
            let (start, started) = oneshot::channel();
            let (ran, answer) = mpsc::channel();
            Lifecycle::detach(async move {
                started.await.expect("the decoder begins");
                ran.send(()).expect("the decoder waits");
            });
            Self { start: Some(start), answer }
        }
    }

    impl Decoder for WaitingDecoder {
        type Item = bool;
        type Error = Status;

        fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<bool>, Status> {
            message.advance(message.remaining());
            if let Some(start) = self.start.take() {
                start.send(()).expect("the task waits");
            }
            Ok(Some(self.answer.recv_timeout(Duration::from_mins(1)).is_ok()))
        }
    }

    /// A gRPC frame with a message of zeros.
    fn frame(length: usize) -> Bytes {
        let mut frame = vec![0];
        frame.extend(u32::try_from(length).expect("a short message").to_be_bytes());
        frame.resize(frame.len() + length, 0);
        frame.into()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_while_a_large_message_is_decoded() {
        let decoded = Lifecycle::detach(async {
            let body =
                tonic::body::Body::new(http_body_util::Full::new(frame(MAX_INLINE_BYTES + 1)));
            let decoder = OffloadDecoder(WaitingDecoder::new());
            let mut messages = Streaming::new_request(decoder, body, None, None);
            messages.message().await.expect("a message")
        });
        assert_eq!(decoded.await.expect("no panic"), Some(true));
    }
}
