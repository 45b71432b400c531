//! Listeners that cannot use their addresses at the same time.

use std::net::SocketAddr;

use super::Config;

impl Config {
    /// Pairs of listeners with one address. A process that runs only one of the two would start, but
    /// `evenkeeld all` would not.
    pub(crate) fn find_shared_addresses(&self) -> Vec<String> {
        let all = [
            ("rest.listen", Some(self.rest.listen)),
            ("southbound.listen", Some(self.southbound.listen)),
            ("admin.listen", Some(self.admin.listen)),
            ("files.listen", self.files.listen),
        ];
        let set: Vec<(&str, SocketAddr)> =
            all.into_iter().filter_map(|(key, address)| Some((key, address?))).collect();
        let mut faults = Vec::new();
        for (index, (key, address)) in set.iter().enumerate() {
            for (other_key, other) in &set[index + 1..] {
                if overlap(*address, *other) {
                    faults.push(format!(
                        "{key} ({address}) and {other_key} ({other}) are the same address; give each listener its own port"
                    ));
                }
            }
        }
        faults
    }
}

/// Whether two sockets cannot listen at the same time. The system chooses another port for each port 0.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.port() != 0 && (covers(one, other) || covers(other, one))
}

/// Whether a socket receives the connections to an address. `[::]` also receives those of IPv4.
fn covers(socket: SocketAddr, address: SocketAddr) -> bool {
    let (ip, other) = (socket.ip().to_canonical(), address.ip().to_canonical());
    ip == other || (ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(rest: &str, admin: &str) -> Vec<String> {
        let mut config = Config::default();
        config.rest.listen = rest.parse().unwrap();
        config.admin.listen = admin.parse().unwrap();
        config.find_shared_addresses()
    }

    #[test]
    fn two_listeners_with_one_address_are_a_fault_with_both_keys() {
        for (rest, admin) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("192.0.2.1:8080", "[::]:8080"),
            ("[::1]:8080", "[::]:8080"),
        ] {
            let found = faults(rest, admin);
            assert_eq!(found.len(), 1, "{found:?}");
            let start = format!("rest.listen ({rest}) and admin.listen ({admin}) are");
            assert!(found[0].starts_with(&start), "{found:?}");
        }
        for (rest, admin) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:8080", "127.0.0.1:8081"),
            ("127.0.0.1:8080", "127.0.0.2:8080"),
            ("0.0.0.0:8080", "[::1]:8080"),
        ] {
            assert_eq!(faults(rest, admin), [""; 0], "{rest} {admin}");
        }
        assert_eq!(Config::default().find_shared_addresses(), [""; 0], "the defaults differ");
    }

    #[test]
    fn the_listener_for_files_is_checked_as_well() {
        let mut config = Config::default();
        config.files.listen = Some(config.southbound.listen);
        let found = config.find_shared_addresses();
        let is_named = found[0].contains("southbound.listen") && found[0].contains("files.listen");
        assert!(found.len() == 1 && is_named, "{found:?}");
    }
}
