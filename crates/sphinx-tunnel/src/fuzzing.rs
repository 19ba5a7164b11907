//! What the fuzz target `tunnel` runs (`docs/fuzzing.md`).

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::forward::{self, Carried, Forward};
use crate::permit::{Permit, Transport};
use crate::proxy;
use crate::wire::{HEADER_MAX, Reply, Request, Target};

/// Headers and replies, datagrams with addresses, what programs tell a proxy, and what people write.
///
/// # Panics
/// If something that was read is not written and read again as the same, or rules let through what they must not.
pub fn tunnel(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match choice % 6 {
        0 => {
            if let Ok(request) = Request::parse(rest) {
                let bytes = request.to_bytes();
                assert!(bytes.len() <= HEADER_MAX);
                assert_eq!(Request::parse(&bytes[2..]), Ok(request));
            }
        }
        1 => {
            if let Ok(reply) = Reply::parse(rest) {
                let bytes = reply.to_bytes();
                assert!(bytes.len() <= HEADER_MAX);
                assert!(Reply::parse(&bytes[2..]).is_ok());
            }
        }
        2 => {
            let mut after = rest;
            if let Ok(target) = Target::take(&mut after) {
                let mut again = Vec::new();
                target.put(&mut again);
                assert_eq!(again.len() + after.len(), rest.len());
                let shown = target.to_string();
                assert!(!shown.is_empty());
            }
            let _ = proxy::inward(rest);
            // It waits for nothing: all of it is here.
            let mut outward = pin!(proxy::outward(rest));
            let polled = outward
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(_)));
        }
        3 => {
            if let Some(Ok((_, behind))) = proxy::wish(rest, None) {
                assert!(rest.ends_with(&behind));
            }
        }
        4 => {
            if let Ok(forward) = text.parse::<Forward>() {
                assert_eq!(forward.text, text);
                if let Carried::Datagrams(deadline) = forward.carried {
                    assert!(deadline.as_secs() <= 60);
                }
            }
            let _ = (forward::listen_address(&text), forward::target(&text));
        }
        _ => {
            if let Ok(permit) = text.parse::<Permit>()
                && !text.contains("169.254")
                && !text.contains(['/', '[', '0'])
            {
                // No rule that does not name it lets anybody to where clouds keep their keys.
                let metadata = ([169, 254, 169, 254], 80).into();
                assert!(!permit.lets_reach(Transport::Tcp, Some("a.example"), metadata));
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
        replay("tunnel", tunnel);
    }

    proptest! {
        #[test]
        fn random(data in prop::collection::vec(any::<u8>(), 0..300)) {
            tunnel(&data);
        }

        #[test]
        fn random_text(choice in 3..6_u8, text in "(tunnel:|listen:|tcp:|udp:|unix:|[a-z*.]{1,3}|[0-9]{1,5}|[:/\\[\\],=]|CONNECT |HTTP/1.1\r\n){1,12}") {
            tunnel(&[&[choice], text.as_bytes()].concat());
        }
    }
}
