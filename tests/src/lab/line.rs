//! A slow line between a node and the server: what the server answers arrives late, so that a test can act in between.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A line to an address. It carries bytes and understands none of them.
#[derive(Debug)]
pub struct SlowLine {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    lost_an_answer: AtomicBool,
    /// Bytes that came from the server and were passed on.
    carried: AtomicU64,
}

impl SlowLine {
    /// A line to `server` on which everything that comes from there takes `delay` longer.
    pub fn to(server: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
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

    /// Where the node connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses everything that is under way, and all that comes, until it is mended.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
    }

    /// Carries again.
    pub fn mend(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    /// How many bytes of the server's answers it has carried so far.
    pub fn carried(&self) -> u64 {
        self.state.carried.load(Ordering::SeqCst)
    }

    /// Whether something that the server answered was lost.
    pub fn lost_an_answer(&self) -> bool {
        self.state.lost_an_answer.load(Ordering::SeqCst)
    }
}

fn carry_both_ways(node: &TcpStream, far: &TcpStream, delay: Duration, state: &Arc<State>) {
    let copies = || Some((node.try_clone().ok()?, far.try_clone().ok()?));
    let (Some((from_node, to_far)), Some((to_node, from_far))) = (copies(), copies()) else {
        return;
    };
    let (up, down) = (Arc::clone(state), Arc::clone(state));
    thread::spawn(move || carry(from_node, to_far, Duration::ZERO, &up, false));
    thread::spawn(move || carry(from_far, to_node, delay, &down, true));
}

/// Copies until one side closes or the line is cut.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration, state: &State, is_answer: bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        thread::sleep(delay);
        if state.is_cut.load(Ordering::SeqCst) {
            if is_answer {
                state.lost_an_answer.store(true, Ordering::SeqCst);
            }
            break;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if is_answer {
            state.carried.fetch_add(count as u64, Ordering::SeqCst);
        }
    }
    let _closed = from.shutdown(Shutdown::Both);
    let _closed = to.shutdown(Shutdown::Both);
}
