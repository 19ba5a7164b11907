//! Network namespaces without names on disk, with or without root.
//!
//! A [`Namespace`] is an open file: it disappears with its last user, however the program ends.
//! Without root, [`enter_user_namespace`] first makes the process the root of a user namespace of
//! its own; [`probe`] tells beforehand which of the two ways is open.

use std::{
    fmt,
    fs::{self, File},
    io::{self, PipeWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command},
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::tun;

/// The network namespace of the calling thread, as a link to open.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
}

impl Namespace {
    /// Creates a namespace that contains nothing but a loopback interface, which is up. The
    /// caller's own namespace stays as it is.
    ///
    /// # Errors
    ///
    /// Those of `unshare(CLONE_NEWNET)`: `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn new() -> io::Result<Namespace> {
        in_new_thread(|| {
            // SAFETY: the flag separates neither the file descriptors nor anything else that Rust
            // relies on being shared between threads, and this thread ends right afterwards.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| context("unshare(CLONE_NEWNET)", error.into()))?;
            tun::bring_up("lo")?;
            Namespace::current()
        })
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// Those of opening a file in `/proc`.
    pub fn current() -> io::Result<Namespace> {
        let file = File::open(OWN_NAMESPACE).map_err(|error| context(OWN_NAMESPACE, error))?;
        Ok(Namespace { file: file.into() })
    }

    /// Runs a closure in a thread of its own that is inside the namespace, and waits for it.
    /// Sockets opened there stay in the namespace wherever they are used. A panic of the closure
    /// goes on in the caller.
    ///
    /// # Errors
    ///
    /// Those of creating a thread and of `setns`.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_new_thread(|| {
            self.enter()?;
            Ok(action())
        })
    }

    /// Starts a command inside the namespace. The child is an ordinary one of this process.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Namespace::run) and of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // A child begins in the namespace of the thread that starts it.
        self.run(|| command.spawn())?
    }

    /// Moves the calling thread, and what it starts from now on, into the namespace.
    ///
    /// # Errors
    ///
    /// Those of `setns`.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| context("setns", error.into()))
    }

    /// Writes a kernel parameter of the namespace: `net.ipv4.tcp_rmem`, for example; with slashes in place of the dots where a name in it has a dot.
    /// Not every parameter exists per namespace or on every kernel.
    ///
    /// # Errors
    ///
    /// Those of writing a file in `/proc/sys`, naming it.
    pub fn sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.run(|| write_sysctl(name, value))?
    }
}

/// Writes a kernel parameter in the namespace of the calling thread; see [`Namespace::sysctl`], which needs
/// `CAP_SYS_ADMIN` besides.
///
/// # Errors
///
/// Those of creating a thread and of writing a file in `/proc/sys`, naming it.
pub fn write_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = match name.contains('/') {
        true => format!("/proc/sys/{name}"),
        false => format!("/proc/sys/{}", name.replace('.', "/")),
    };
    in_new_thread(|| {
        // While somebody else configures a network, the kernel tries such a write again and again without sleeping. Threads
        // with real-time priority on all processors would then wait for ever for one that they do not let run.
        without_real_time_priority();
        fs::write(&path, value).map_err(|error| context(&path, error))
    })
}

/// Lets the calling thread take its turn like ordinary ones, whatever it has inherited.
fn without_real_time_priority() {
    // SAFETY: `sched_param` consists of integers, for which zero is valid.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // Less priority is refused to nobody. SAFETY: 0 is the calling thread, and `parameters` is valid for reading.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
}

/// Runs a closure in a new thread, so that the caller's namespace cannot change.
pub(crate) fn in_new_thread<T: Send>(
    action: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, action)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Says what failed.
pub(crate) fn context(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Makes the process the root of a new user namespace, in a new network namespace without
/// interfaces that are up. After that, [`Namespace::new`] and [`Tun::open`](crate::tun::Tun::open)
/// need no further rights. There is no way back. Outside, everything counts as done by the same user
/// as before.
///
/// # Errors
///
/// `InvalidInput` if the process has more than one thread; `PermissionDenied` or others where the
/// system does not allow user namespaces. Ask [`probe`] first: where only parts of this work, the
/// process may be left inside the namespace.
pub fn enter_user_namespace() -> io::Result<()> {
    become_namespace_root(&IdMaps::of_this_process())
        .map_err(|refusal| context(refusal.step.name(), refusal.error))
}

/// The way in which this process can have namespaces and TUN devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Directly: the process has the rights.
    Direct,
    /// After [`enter_user_namespace`].
    UserNamespace,
}

/// Finds out which access works by opening a TUN device in a new network namespace, in a child
/// process, so that nothing changes for this one.
///
/// # Errors
///
/// [`NoAccess`] with the reasons if neither way works.
pub fn probe() -> Result<Access, NoAccess> {
    let direct = match try_in_child(false) {
        Ok(()) => return Ok(Access::Direct),
        Err(refusal) => refusal,
    };
    match try_in_child(true) {
        Ok(()) => Ok(Access::UserNamespace),
        Err(user_namespace) => Err(NoAccess {
            direct,
            user_namespace,
        }),
    }
}

/// Why neither way to namespaces and TUN devices is open.
#[derive(Debug)]
pub struct NoAccess {
    direct: Refusal,
    user_namespace: Refusal,
}

impl fmt::Display for NoAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoAccess {
            direct,
            user_namespace,
        } = self;
        write!(f, "no network namespace with a TUN device: {direct}; ")?;
        write!(f, "in a user namespace: {user_namespace}")
    }
}

impl std::error::Error for NoAccess {}

/// The step that failed, and how.
#[derive(Debug)]
struct Refusal {
    step: Step,
    error: io::Error,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.name(), self.error)
    }
}

/// The steps to a TUN device in a namespace; the numbers are exit codes of the probing child.
#[derive(Clone, Copy, Debug)]
enum Step {
    Fork = 1,
    UserNamespace,
    SetGroups,
    UidMap,
    GidMap,
    NetworkNamespace,
    Tun,
}

impl Step {
    const ALL: [Step; 7] = [
        Step::Fork,
        Step::UserNamespace,
        Step::SetGroups,
        Step::UidMap,
        Step::GidMap,
        Step::NetworkNamespace,
        Step::Tun,
    ];

    fn name(self) -> &'static str {
        match self {
            Step::Fork => "starting a child process",
            Step::UserNamespace => "unshare(CLONE_NEWUSER)",
            Step::SetGroups => "/proc/self/setgroups",
            Step::UidMap => "/proc/self/uid_map",
            Step::GidMap => "/proc/self/gid_map",
            Step::NetworkNamespace => "unshare(CLONE_NEWNET)",
            Step::Tun => "opening /dev/net/tun",
        }
    }

    fn failed(self, error: impl Into<io::Error>) -> Refusal {
        Refusal {
            step: self,
            error: error.into(),
        }
    }
}

/// The lines that map the present user and group to root.
struct IdMaps {
    uid: String,
    gid: String,
}

impl IdMaps {
    fn of_this_process() -> IdMaps {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        IdMaps {
            uid: format!("0 {uid} 1"),
            gid: format!("0 {gid} 1"),
        }
    }
}

/// Allocates nothing, so that a forked child may call it.
fn become_namespace_root(maps: &IdMaps) -> Result<(), Refusal> {
    // SAFETY: the flag separates no file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(|error| Step::UserNamespace.failed(error))?;
    let write = |path, line: &str| {
        File::options()
            .write(true)
            .open(path)?
            .write_all(line.as_bytes())
    };
    write("/proc/self/setgroups", "deny").map_err(|error| Step::SetGroups.failed(error))?;
    write("/proc/self/uid_map", &maps.uid).map_err(|error| Step::UidMap.failed(error))?;
    write("/proc/self/gid_map", &maps.gid).map_err(|error| Step::GidMap.failed(error))?;
    new_network()
}

/// Allocates nothing, so that a forked child may call it.
fn new_network() -> Result<(), Refusal> {
    // SAFETY: the flag separates no file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| Step::NetworkNamespace.failed(error))
}

/// Opens a TUN device in a new network namespace, in a child process.
fn try_in_child(user_namespace: bool) -> Result<(), Refusal> {
    let maps = IdMaps::of_this_process();
    let (mut reader, mut writer) = io::pipe().map_err(|error| Step::Fork.failed(error))?;
    // SAFETY: the child calls only functions that make system calls without allocating or locking,
    // then `_exit`; so whatever other threads held at the time of the fork is not touched.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(Step::Fork.failed(io::Error::last_os_error()));
    }
    if child == 0 {
        let result = if user_namespace {
            become_namespace_root(&maps)
        } else {
            new_network()
        };
        let result = result.and_then(|()| {
            tun::open_device("probe", 0)
                .map(drop)
                .map_err(|error| Step::Tun.failed(error))
        });
        let code = result.map_or_else(|refusal| report(&mut writer, &refusal), |()| 0);
        // SAFETY: ends this child without running anything of the parent's.
        unsafe { libc::_exit(code) }
    }
    drop(writer);
    let mut error = [0; size_of::<i32>()];
    let reported = reader.read_exact(&mut error);
    let mut status = 0;
    // SAFETY: `child` is a child of this process that nobody else waits for, and `status` is valid
    // for writing.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Step::Fork.failed(error));
        }
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(());
    }
    let code = libc::WEXITSTATUS(status);
    let step = Step::ALL
        .into_iter()
        .find(|&step| step as i32 == code)
        .unwrap_or(Step::Fork);
    Err(match reported {
        Ok(()) => step.failed(io::Error::from_raw_os_error(i32::from_ne_bytes(error))),
        Err(error) => step.failed(error),
    })
}

/// Sends the error number to the parent; the step goes into the exit code.
fn report(writer: &mut PipeWriter, refusal: &Refusal) -> i32 {
    let number = refusal.error.raw_os_error().unwrap_or(libc::EIO);
    // Without the number, the parent still learns the step.
    let _ = writer.write_all(&number.to_ne_bytes());
    refusal.step as i32
}
