//! One program whose packets a tunnel carries: `sphx __inside` makes namespaces, gives the interface away, waits for its addresses and becomes the
//! program.

use std::fs;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use sphinx_netdev::tcp::listen_on;
use sphinx_netdev::tun::{JoiningTun, TunConfig, add_address};
use sphinx_netdev::{confine, route};
use sphinx_transport::ErrorKind;
use sphinx_tunnel::{MTU, ProgramDevice, Settings};

use crate::args::tunnel::{InsideArgs, TunnelArgs};
use crate::failure::{Failure, Outcome, fail, fail_hint, local_io};
use crate::text::printable;

/// Name of the hidden command that runs inside the namespace; people have no use for it.
pub(crate) const COMMAND: &str = "__inside";
/// Where the two meet, in a directory of their own.
const SOCKET: &str = "socket";
/// The interface, in its namespace.
const INTERFACE: &str = "tun0";
const QUEUE_PACKETS: u32 = 500;
/// How long the program inside gets until there is a namespace.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_TIME: Duration = Duration::from_millis(5);
/// What shells exit with where there is no such program.
const NOT_FOUND: u8 = 127;
const ERROR_BYTES_MAX: u64 = 1000;

/// A program that waits for its interface.
pub(super) struct Waiting {
    child: Child,
    _directory: tempfile::TempDir,
}

/// Starts the process that is to become a program: it has an interface, and waits.
pub(super) fn start(args: &TunnelArgs) -> Outcome<(Waiting, ProgramDevice)> {
    let refused = |error: io::Error| local_io("start", "the program's namespace", error);
    let directory = tempfile::tempdir().map_err(refused)?;
    let listener = UnixListener::bind(directory.path().join(SOCKET)).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let mut command = Command::new(std::env::current_exe().map_err(refused)?);
    command
        .arg(COMMAND)
        .arg("--directory")
        .arg(directory.path());
    for address in &args.dns {
        command.arg("--dns").arg(address.to_string());
    }
    if args.split_tcp {
        command.arg("--split-tcp");
    }
    command.arg("--").args(&args.program);
    command.env_remove("SPHX_TICKET");
    if args.common.json {
        // Standard output has the JSON events, so the program writes to standard error.
        let error = io::stderr().as_fd().try_clone_to_owned();
        command.stdout(error.map_err(refused)?);
    }
    let mut waiting = Waiting {
        child: command.spawn().map_err(refused)?,
        _directory: directory,
    };
    let met = meet(&listener, &mut waiting.child, args.split_tcp);
    match met {
        Ok(device) => Ok((waiting, device)),
        Err(failure) => {
            let _ = waiting.child.kill();
            let _ = waiting.child.wait();
            Err(failure)
        }
    }
}

/// `listens`: a listener comes behind the interface.
fn meet(listener: &UnixListener, child: &mut Child, listens: bool) -> Outcome<ProgramDevice> {
    let refused = |error: io::Error| local_io("set up", "the program's namespace", error);
    let end = Instant::now() + NAMESPACE_TIMEOUT;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(refused(error)),
            Err(_) if child.try_wait().map_err(refused)?.is_some() || Instant::now() > end => {
                return Err(refused(io::ErrorKind::TimedOut.into()));
            }
            Err(_) => thread::sleep(LOOK_TIME),
        }
    };
    stream.set_nonblocking(false).map_err(refused)?;
    stream
        .set_read_timeout(Some(NAMESPACE_TIMEOUT))
        .map_err(refused)?;
    let taken = confine::take(&stream).and_then(|device| {
        let listener = listens.then(|| confine::take(&stream)).transpose()?;
        Ok((device, listener))
    });
    let Ok((file, own)) = taken else {
        let mut why = String::new();
        let _ = (&mut stream).take(ERROR_BYTES_MAX).read_to_string(&mut why);
        let why = printable(why.as_bytes());
        return Err(fail_hint(
            ErrorKind::LocalIo,
            format!("no namespace of its own for the program: {why}"),
            "it needs /dev/net/tun, and user namespaces (sysctl kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces) or root",
        ));
    };
    let device = JoiningTun::adopt(file, INTERFACE.to_owned()).map_err(refused)?;
    Ok(ProgramDevice {
        device,
        waiting: stream,
        listener: own.map(Into::into),
    })
}

impl Waiting {
    /// The process, and its directory, which has to exist as long as it runs.
    pub(super) fn into_parts(self) -> (Child, tempfile::TempDir) {
        (self.child, self._directory)
    }
}

/// The exit code that a shell would report: 128 plus the number for a signal.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The process that becomes the program. It has one thread, and comes back only if that fails.
pub(crate) fn run(args: &InsideArgs) -> u8 {
    let failure = match become_program(args) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    if let Some(failure) = failure {
        let _ = writeln!(io::stderr(), "sphx: {}", failure.message);
    }
    NOT_FOUND
}

/// `Err(None)` where the other process knows the reason and reports it.
fn become_program(args: &InsideArgs) -> Result<std::convert::Infallible, Option<Failure>> {
    let told =
        |what: &str, error: io::Error| Some(local_io(what, "the program's interface", error));
    confine::end_with_parent().map_err(|error| told("watch over", error))?;
    let socket = args.directory.join(SOCKET);
    let mut stream = UnixStream::connect(socket).map_err(|error| told("give away", error))?;
    let opened = confine::enter().and_then(|()| {
        let config = TunConfig {
            name: INTERFACE.to_owned(),
            mtu: MTU,
            queue_packets: QUEUE_PACKETS,
            addresses: Vec::new(),
        };
        let device = JoiningTun::open_any(&config)?;
        let listener = args.split_tcp.then(|| listen_on(INTERFACE)).transpose()?;
        Ok((device, listener))
    });
    match opened {
        Ok((device, listener)) => {
            let given = confine::give(&stream, &device);
            let given = given.and_then(|()| match listener {
                Some(listener) => confine::give(&stream, &listener),
                None => Ok(()),
            });
            given.map_err(|error| told("give away", error))?;
        }
        Err(error) => {
            // A byte without a file descriptor, then the reason.
            let _ = stream.write_all(format!(" {error}").as_bytes());
            return Err(None);
        }
    }
    // The other process has not come that far, and says why itself.
    let settings = settings(&mut stream).map_err(|_| None)?;
    for (address, prefix) in &settings.addresses {
        match add_address(INTERFACE, *address, *prefix) {
            // Only a warning: nothing leaves this namespace past the tunnel.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let _ = writeln!(io::stderr(), "sphx: warning: without {address}: {error}");
            }
            added => added.map_err(|error| told("set up", error))?,
        }
    }
    route::default_route(INTERFACE).map_err(|error| told("set up", error))?;
    let nameservers = if args.dns.is_empty() {
        &settings.nameservers
    } else {
        &args.dns
    };
    if let Err(error) = names(&args.directory, nameservers) {
        let _ = writeln!(
            io::stderr(),
            "sphx: warning: names are not resolved through the tunnel: {error}"
        );
    }
    drop(stream);
    let [program, arguments @ ..] = &args.program[..] else {
        return Err(None);
    };
    let error = Command::new(program).args(arguments).exec();
    let program = printable(program.as_bytes());
    Err(Some(local_io("run", &program, error)))
}

fn settings(stream: &mut UnixStream) -> io::Result<Settings> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes)?;
    Settings::parse(&bytes).map_err(io::Error::other)
}

/// Has names asked for in the tunnel, and nowhere else: services that answer on Unix sockets would ask outside.
fn names(directory: &Path, nameservers: &[IpAddr]) -> io::Result<()> {
    if nameservers.is_empty() {
        return Err(io::Error::other(
            "the server told no name server; --dns says which",
        ));
    }
    let stand_in = |name: &str, text: String, onto: &str| {
        let path = directory.join(name);
        fs::write(&path, text)?;
        confine::stand_in(&path, Path::new(onto))
    };
    let lines = nameservers
        .iter()
        .map(|address| format!("nameserver {address}\n"));
    stand_in("resolv.conf", lines.collect(), "/etc/resolv.conf")?;
    if let Ok(text) = fs::read_to_string("/etc/nsswitch.conf") {
        let line = |line: &str| match line.trim_start().starts_with("hosts:") {
            true => "hosts: files dns\n".to_owned(),
            false => format!("{line}\n"),
        };
        stand_in(
            "nsswitch.conf",
            text.lines().map(line).collect(),
            "/etc/nsswitch.conf",
        )?;
    }
    let cache = Path::new("/var/run/nscd");
    if cache.is_dir() {
        let empty = directory.join("nscd");
        fs::create_dir_all(&empty)?;
        confine::stand_in(&empty, cache)?;
    }
    Ok(())
}

/// That a program has ended is no failure of the tunnel.
pub(super) fn lost() -> Failure {
    fail(ErrorKind::LocalIo, "the program cannot be waited for")
}
