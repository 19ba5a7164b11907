//! Whether a program is ready to be talked to.

use std::fs;

use sphinx_link::front::End;

/// Tables of sockets, and the state of one that waits for others to speak first: a TCP listener, and
/// a UDP socket without a peer.
const TABLES: [(&str, &str); 4] = [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")];

/// Whether anything listens in the namespace of this end.
pub(super) fn somebody_listens(end: &End) -> bool {
    let look = || {
        TABLES.iter().any(|(table, state)| {
            let path = format!("/proc/thread-self/net/{table}");
            fs::read_to_string(path).is_ok_and(|text| has_listener(&text, state))
        })
    };
    end.run(look).unwrap_or(false)
}

/// Whether a table has a socket in this state. Its fourth column is the state, after a line of titles.
fn has_listener(table: &str, state: &str) -> bool {
    let mut states = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(3));
    states.any(|found| found == state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
                     0: 0100007F:1F90 00000000:0000 01 00000000:00000000 00:00000000 00000000\n";
        assert!(!has_listener(table, "0A") && has_listener(table, "01"));
        assert!(!has_listener("", "0A"));
    }
}
