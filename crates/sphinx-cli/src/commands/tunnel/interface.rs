//! `--tun`: what is asked for, and what may be missing.

use std::io;

use sphinx_transport::ErrorKind;
use sphinx_tunnel::{Pool, Prefix, ProgramDevice, TunPlan};

use crate::args::tunnel::TunnelArgs;
use crate::failure::{Failure, Outcome, fail_hint, usage};

/// What is to be carried of IP packets; `None` without `--tun`.
pub(super) fn plan(args: &TunnelArgs, program: Option<ProgramDevice>) -> Option<TunPlan> {
    let name = args.tun.clone()?;
    Some(TunPlan {
        name,
        addresses: args.address.clone(),
        routes: args.route.clone(),
        excluded: args.exclude.clone(),
        program,
        split_tcp: args.split_tcp,
    })
}

/// Refuses arguments that can be judged before anything is set up.
pub(super) fn check(args: &TunnelArgs) -> Outcome<()> {
    if args.tun.is_none() {
        return Ok(());
    }
    for family in [true, false] {
        let of = |prefix: &&Prefix| prefix.0.is_ipv4() == family;
        let addresses: Vec<_> = args.address.iter().filter(of).collect();
        if let [first, second, ..] = addresses[..] {
            let (first, second) = (first.0, second.0);
            return Err(usage(format!(
                "--address {first} and {second}: an interface has one address of each family"
            )));
        }
        let routed = args.route.iter().find(of);
        if let Some((route, length)) = routed
            && !args.address.is_empty()
            && addresses.is_empty()
        {
            return Err(usage(format!(
                "--route {route}/{length}: --address has none of this family"
            )));
        }
    }
    if let (Some(Some(name)), false) = (&args.tun, args.program.is_empty()) {
        return Err(usage(format!(
            "--tun {name}: the interface of a program has no name here"
        ))
        .with_hint("sphx tunnel --ticket-file t --tun -- PROGRAM"));
    }
    Ok(())
}

/// Whether addresses for clients hide nobody whom this machine reaches without a router.
pub(in crate::commands) fn check_pools(pools: &[Pool]) -> Outcome<()> {
    for pool in pools {
        pool.check().map_err(|taken| {
            let hint = match taken.free {
                Some(free) => format!("choose a network that it is not in, like {free}"),
                None => "choose a network that it is not in".to_owned(),
            };
            fail_hint(ErrorKind::LocalIo, format!("--tun-pool {taken}"), hint)
        })?;
    }
    Ok(())
}

/// Why there is no interface, and what would help.
pub(in crate::commands) fn failure(message: String, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "it needs root or the capability CAP_NET_ADMIN; sphx tunnel --tun -- PROGRAM carries one program without either"
        }
        io::ErrorKind::NotFound => {
            "there is no /dev/net/tun here: modprobe tun, or give it to the container (--device /dev/net/tun)"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::ResourceBusy => {
            "there is an interface of that name; --tun without a name takes a free one"
        }
        io::ErrorKind::Unsupported => "it needs IPv6: turn that on, or leave addresses of it out",
        _ => "",
    };
    fail_hint(ErrorKind::LocalIo, message, hint)
}
