//! A slow connection between a node and the server: answers arrive late, so that a test can act in between.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Forwards bytes to an address.
#[derive(Debug)]
pub struct SlowConnection {
    address: SocketAddr,
    state: Arc<ConnectionState>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    is_cut: AtomicBool,
    has_lost_answer: AtomicBool,
    /// Bytes from the server that were forwarded.
    bytes_carried: AtomicU64,
}

impl SlowConnection {
    /// Forwards to `server`. Everything that comes from the server is delayed by `delay`.
    pub fn to(server: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(ConnectionState::default());
        let (server, shared) = (server.to_owned(), Arc::clone(&state));
        thread::spawn(move || {
            for node in listener.incoming().flatten() {
                if shared.is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&server) else {
                    continue;
                };
                carry_both_ways(&node, &far, delay, &shared);
            }
        });
        Self { address, state }
    }

    /// The address that the node connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drops everything in flight and all new connections until [`SlowConnection::repair`].
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
    }

    /// Forwards again.
    pub fn repair(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    /// Number of bytes of the server's answers that were forwarded.
    pub fn bytes_carried(&self) -> u64 {
        self.state.bytes_carried.load(Ordering::SeqCst)
    }

    /// Whether a part of an answer was lost.
    pub fn has_lost_answer(&self) -> bool {
        self.state.has_lost_answer.load(Ordering::SeqCst)
    }
}

fn carry_both_ways(
    node: &TcpStream,
    far: &TcpStream,
    delay: Duration,
    state: &Arc<ConnectionState>,
) {
    let copies = || Some((node.try_clone().ok()?, far.try_clone().ok()?));
    let (Some((from_node, to_far)), Some((to_node, from_far))) = (copies(), copies()) else {
        return;
    };
    let (up, down) = (Arc::clone(state), Arc::clone(state));
    thread::spawn(move || carry(from_node, to_far, Duration::ZERO, &up, false));
    thread::spawn(move || carry(from_far, to_node, delay, &down, true));
}

/// Copies until one side closes or the connection is cut.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    state: &ConnectionState,
    is_answer: bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        thread::sleep(delay);
        if state.is_cut.load(Ordering::SeqCst) {
            if is_answer {
                state.has_lost_answer.store(true, Ordering::SeqCst);
            }
            break;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if is_answer {
            state.bytes_carried.fetch_add(count as u64, Ordering::SeqCst);
        }
    }
    let _closed = from.shutdown(Shutdown::Both);
    let _closed = to.shutdown(Shutdown::Both);
}
