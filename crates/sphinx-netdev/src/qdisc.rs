//! The queues in front of an interface (qdiscs).

use std::io;

use crate::{netlink::Message, nfnetlink::Values, tun::index_and_mtu};

/// Bytes in front of the attributes (`struct tcmsg`).
const FIXED: usize = 20;
/// Offset of the interface's index in these bytes.
const INDEX: usize = 4;
const KIND: u16 = 1;
#[cfg(test)]
const OPTIONS: u16 = 2;

/// The kinds of queues at an interface of the calling thread's namespace, such as `fq_codel`; several where it has one for each of the hardware's.
///
/// # Errors
///
/// Those of netlink; `NotFound` or another one if there is no such interface.
pub fn kinds(interface: &str) -> io::Result<Vec<String>> {
    let (index, _) = index_and_mtu(interface)?;
    let mut fixed = [0; FIXED];
    fixed[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    let mut kinds = Vec::new();
    Message::new(libc::RTM_GETQDISC, libc::NLM_F_DUMP, &fixed).list(|body| {
        // Those of all interfaces come, whatever was asked for.
        if let Some(kind) = kind_at(index, body)
            && !kinds.contains(&kind)
        {
            kinds.push(kind);
        }
    })?;
    Ok(kinds)
}

/// The kind of a queueing discipline, if it belongs to the interface.
fn kind_at(index: i32, body: &[u8]) -> Option<String> {
    let at = body.get(INDEX..)?.first_chunk::<4>()?;
    let values = Values(body.get(FIXED..)?);
    let (_, name) = values.into_iter().find(|(kind, _)| *kind == KIND)?;
    let name = name.split(|byte| *byte == 0).next()?;
    (i32::from_ne_bytes(*at) == index).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Replaces the queue of an interface, by one with these options or, if there are none, the usual ones.
#[cfg(test)]
pub(crate) fn replace(interface: &str, kind: &str, options: &[u8]) -> io::Result<()> {
    let (index, _) = index_and_mtu(interface)?;
    let mut fixed = [0; FIXED];
    fixed[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    // At the root (TC_H_ROOT).
    fixed[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
    let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let name: Vec<u8> = kind.bytes().chain([0]).collect();
    let message = Message::new(libc::RTM_NEWQDISC, flags, &fixed).with(KIND, &name);
    match options {
        [] => message.send(),
        options => message.with(OPTIONS, options).send(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn queues_of_an_interface_are_known() {
        let Ok(namespace) = Namespace::new() else {
            return sphinx_testing::skipped!("no network namespaces here");
        };
        let ran = namespace.run(|| {
            for kind in ["fq_codel", "cake"] {
                match replace("lo", kind, &[]) {
                    Ok(()) => assert_eq!(kinds("lo").expect("a list"), [kind]),
                    Err(error) => sphinx_testing::skipped!("this kernel has no {kind}: {error}"),
                }
            }
            kinds("lo").expect("a list");
            assert!(kinds("none-such").is_err());
        });
        ran.expect("a thread");
    }

    #[test]
    fn what_is_cut_off_is_no_queue() {
        let mut body = vec![0; FIXED];
        body[INDEX] = 7;
        body.extend([9, 0, 1, 0]);
        body.extend(b"cake\0");
        assert_eq!(kind_at(7, &body).as_deref(), Some("cake"));
        assert_eq!(kind_at(8, &body), None);
        for end in 0..body.len() {
            assert_eq!(kind_at(7, &body[..end]), None, "{end}");
        }
    }
}
