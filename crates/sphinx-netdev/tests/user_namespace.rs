//! The way without root. A file of its own, without the test harness, because the process must have
//! a single thread when it enters a user namespace.

use std::process::ExitCode;

use sphinx_netdev::{
    netns::{Namespace, enter_user_namespace, probe},
    tun::{Tun, TunConfig},
};

fn main() -> ExitCode {
    // The harness's way of asking what there is.
    if std::env::args().any(|argument| argument == "--list") {
        println!("user_namespace: test");
        return ExitCode::SUCCESS;
    }
    match probe() {
        Ok(access) => println!("access: {access:?}"),
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            return ExitCode::SUCCESS;
        }
    }
    if let Err(error) = enter_user_namespace() {
        sphinx_testing::skipped!("{error}");
        return ExitCode::SUCCESS;
    }
    let result = Namespace::new().and_then(|namespace| {
        let config = TunConfig {
            name: "inner".into(),
            mtu: 1500,
            queue_packets: 10_000,
            addresses: vec![(std::net::Ipv4Addr::new(10, 77, 0, 1).into(), 24)],
        };
        let tun = namespace.run(|| Tun::open(&config))??;
        namespace.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        drop(tun);
        Ok(())
    });
    match result {
        Ok(()) => {
            println!("test user_namespace ... ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("test user_namespace ... FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}
