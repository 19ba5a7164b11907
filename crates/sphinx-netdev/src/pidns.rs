//! Processes that end together.
//!
//! The processes of a [`PidNamespace`], and all that they start, however detached, are killed by the
//! kernel when its first process ends; and that one ends when the program that made the namespace does,
//! by whatever cause.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::netns::{Namespace, context, in_new_thread};

/// The first process says that it has a `/proc` of the namespace's own.
const OWN_PROC: u8 = b'p';
/// It says that the namespace sees the processes of the machine.
const FOREIGN_PROC: u8 = b'-';

/// A namespace of processes.
#[derive(Debug)]
pub struct PidNamespace {
    /// The first process. It ends when its standard input is closed.
    init: Child,
    processes: OwnedFd,
    /// Where `/proc` shows the namespace, if that was allowed.
    mounts: Option<OwnedFd>,
}

impl PidNamespace {
    /// Creates a namespace. Its first process is `init`, a command that calls [`serve_as_init`] at
    /// once: this same program, with an argument that only it knows.
    ///
    /// # Errors
    ///
    /// Those of `unshare(CLONE_NEWPID)`, which needs the rights that a network namespace needs, and of
    /// starting the command.
    pub fn start(init: &mut Command) -> io::Result<PidNamespace> {
        init.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut init = in_new_thread(|| {
            unshare(UnshareFlags::NEWPID, "unshare(CLONE_NEWPID)")?;
            init.spawn()
        })?;
        match open(&mut init) {
            Ok((processes, mounts)) => Ok(PidNamespace {
                init,
                processes,
                mounts,
            }),
            Err(error) => {
                // It may have ended already.
                let _ = init.kill();
                let _ = init.wait();
                Err(context("the first process of a namespace", error))
            }
        }
    }

    /// Whether `/proc` shows the processes of the namespace inside; otherwise it shows those of the
    /// machine, under numbers that are not those of the namespace.
    pub fn has_own_proc(&self) -> bool {
        self.mounts.is_some()
    }

    /// Starts a command inside this and a network namespace. The child is an ordinary one of this
    /// process, which has to wait for it.
    ///
    /// # Errors
    ///
    /// Those of `setns` and of [`Command::spawn`].
    pub fn spawn(&self, network: &Namespace, command: &mut Command) -> io::Result<Child> {
        if self.mounts.is_some() && command.get_current_dir().is_none() {
            // Entering a mount namespace leads to its root directory.
            command.current_dir(std::env::current_dir()?);
        }
        in_new_thread(|| {
            network.enter()?;
            if let Some(mounts) = &self.mounts {
                // Threads share their root and current directory until then.
                unshare(UnshareFlags::FS, "unshare(CLONE_FS)")?;
                enter(mounts, LinkNameSpaceType::Mount)?;
            }
            enter(&self.processes, LinkNameSpaceType::ProcessID)?;
            command.spawn()
        })
    }

    /// Kills every process inside. Those that are children of this process have to be waited for
    /// before [`wait`](PidNamespace::wait).
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.init.kill();
    }

    /// Waits until no process is left, after [`kill`](PidNamespace::kill).
    ///
    /// # Errors
    ///
    /// Those of `wait`.
    pub fn wait(&mut self) -> io::Result<()> {
        self.init.wait().map(drop)
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        self.kill();
        // Does not wait: children that nobody has waited for would make that last for ever.
        let _ = self.init.try_wait();
    }
}

fn open(init: &mut Child) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let mut word = [0];
    let output = init.stdout.as_mut();
    output
        .ok_or(io::ErrorKind::BrokenPipe)?
        .read_exact(&mut word)?;
    let open = |name| {
        let path = format!("/proc/{}/ns/{name}", init.id());
        let file = File::open(&path).map_err(|error| context(&path, error))?;
        io::Result::Ok(OwnedFd::from(file))
    };
    let mounts = match word {
        [OWN_PROC] => Some(open("mnt")?),
        _ => None,
    };
    Ok((open("pid")?, mounts))
}

/// The life of a first process: keeps the namespace alive until whoever made it closes this process's
/// standard input. To be called while the process has one thread.
pub fn serve_as_init() -> ! {
    let word = match mount_proc() {
        Ok(()) => OWN_PROC,
        Err(_) => FOREIGN_PROC,
    };
    // SAFETY: changes how the kernel treats ended children and nothing in this process: orphans, whose
    // parent is now this process, need nobody to wait for them.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let told = io::stdout()
        .write_all(&[word])
        .and_then(|()| io::stdout().flush());
    if told.is_ok() {
        // Ends with an end of file or an error: there is nobody any more in either case.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
    }
    std::process::exit(0)
}

/// Gives the process a mount namespace whose `/proc` shows its own PID namespace.
fn mount_proc() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS, "unshare(CLONE_NEWNS)")?;
    // What is mounted from now on shall not show outside.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

fn unshare(flags: UnshareFlags, what: &str) -> io::Result<()> {
    // SAFETY: callers separate no file descriptors, and nothing else that Rust relies on being shared
    // between threads that go on running: the thread ends right afterwards, or is the only one.
    unsafe { unshare_unsafe(flags) }.map_err(|error| context(what, error.into()))
}

fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(kind))
        .map_err(|error| context("setns", error.into()))
}
