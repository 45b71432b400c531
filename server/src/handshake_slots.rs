//! Limits the TLS handshakes that use the processors at the same time.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum number of concurrent handshakes of a listener per CPU. Existing connections need CPU time
/// as well.
const HANDSHAKES_PER_CPU: usize = 64;

/// Time after which a handshake no longer counts as concurrent. A slow client uses almost no CPU
/// time, and must not block others.
const HANDSHAKE_TURN: Duration = Duration::from_millis(20);

/// Slots for the concurrent handshakes of a listener. Further handshakes wait.
#[derive(Debug)]
pub(crate) struct HandshakeSlots(Semaphore);

impl HandshakeSlots {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new(processors.saturating_mul(HANDSHAKES_PER_CPU)))
    }

    /// Performs a handshake once the client has sent data and a slot is free.
    pub(crate) async fn accept(
        &self,
        acceptor: &TlsAcceptor,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        // A client that sends nothing must not use a slot.
        stream.readable().await?;
        self.run_in_turn(acceptor.accept(stream)).await
    }

    /// Runs `work` with one of the slots. After `HANDSHAKE_TURN` it releases the slot and continues
    /// without it.
    async fn run_in_turn<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let slot = self.0.acquire().await;
        let done = tokio::time::timeout(HANDSHAKE_TURN, work.as_mut()).await;
        drop(slot);
        match done {
            Ok(done) => done,
            Err(_) => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    /// Polls the future once; returns whether it is ready.
    async fn is_ready(work: &mut Pin<&mut impl Future>) -> bool {
        poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn a_waiting_handshake_starts_when_another_has_used_its_turn() {
        let slots = HandshakeSlots(Semaphore::new(1));
        let mut slow = pin!(slots.run_in_turn(pending::<()>()));
        assert!(!is_ready(&mut slow).await, "it has the only slot");
        let mut quick = pin!(slots.run_in_turn(async {}));
        assert!(!is_ready(&mut quick).await, "it waits for the slot");
        tokio::select! {
            () = slow => panic!("it never ends"),
            () = quick => {}
        }
    }
}
