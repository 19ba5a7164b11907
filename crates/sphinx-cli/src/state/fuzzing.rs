//! What the fuzz target `state` runs: the files that people edit, and what is in them.

use crate::config::{Kind, read_text};

use super::date::Moment;
use super::line::{name, quoted, words};
use super::tickets::{Tickets, directory};

/// Tickets and invitations, clients, servers, configuration, and the words and dates that these are made of.
///
/// # Panics
/// If what was read is not written and read again as the same, or a place is not below its root.
pub fn state(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match choice % 6 {
        0 => {
            if let Ok(tickets) = Tickets::parse(&text) {
                assert_eq!(Tickets::parse(&tickets.to_text()), Ok(tickets));
            }
        }
        #[cfg(feature = "tunnel")]
        1 => {
            use super::clients::Clients;
            if let Ok(clients) = Clients::parse(&text) {
                let lines = clients.sorted();
                let lines = lines.iter().map(|client| {
                    format!("{} {} {}\n", client.key, client.name, client.rights.text())
                });
                let again: String = lines.collect();
                assert_eq!(Clients::parse(&again), Ok(clients));
            }
        }
        #[cfg(feature = "tunnel")]
        2 => {
            let _ = super::servers::Servers::parse(&text);
        }
        3 => {
            for kind in [Kind::Server, Kind::User] {
                if let Ok(said) = read_text(kind, &text) {
                    assert!(said.iter().all(|said| !said.name.is_empty()));
                }
            }
        }
        4 => {
            if let Ok(all) = words(&text) {
                let again: Vec<String> = all.iter().map(|word| quoted(word)).collect();
                assert_eq!(words(&again.join(" ")), Ok(all));
            }
        }
        _ => {
            if let Ok(moment) = Moment::parse(&text) {
                assert_eq!(Moment::parse(&moment.to_string()), Ok(moment));
            }
            if let Ok(place) = directory(&text) {
                let below = std::path::Path::new("/root").join(&place);
                let climbs = place.components().any(|it| it.as_os_str() == "..");
                assert!(below.starts_with("/root") && !climbs, "{text}");
            }
            if let Ok(name) = name(&text) {
                assert!(!name.contains(['/', ' ', '\'']) && !name.starts_with(['.', '-']));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sphinx_fuzz::replay;

    use super::*;

    #[test]
    fn corpus() {
        replay("state", state);
    }

    proptest! {
        #[test]
        fn random(data in prop::collection::vec(any::<u8>(), 0..300)) {
            state(&data);
        }

        #[test]
        fn random_lines(
            choice in 0..6_u8,
            text in "((ed25519:[a-z2-7]{52}|[a-z]{1,4}|secret=[a-z2-7]{26}|permit=(tunnel|tunnel:tcp:[*]:[0-9]{1,3})|expires=20[0-9]{2}-0[1-9]-1[0-9]|rate=[1-9]mbit|uses=[0-9]|quota=[1-9]kB|'[a-z ]*'|#|[a-z]{1,8}=|[limits]|\"[a-z0-9:]{1,8}\")[ \n]?){1,14}",
        ) {
            state(&[&[choice], text.as_bytes()].concat());
        }
    }
}
