//! One program in network and mount namespaces of its own, with or without root, and a device of it in the hands of another process.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::netns::{context, write_sysctl};
use crate::tun::bring_up;

/// Moves the process into namespaces of its own for interfaces and mounts. Without the right to that, it goes into a user namespace first, where it
/// has the same user as before, and all rights over its namespaces until it executes a program. There is no way back.
///
/// # Errors
///
/// `InvalidInput` if the process has more than one thread; others where the system does not allow user namespaces.
pub fn enter() -> io::Result<()> {
    let flags = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    // SAFETY: the flags separate no file descriptors.
    let direct = unsafe { unshare_unsafe(flags) };
    if direct.is_err() {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        // SAFETY: as above.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
            .map_err(|error| context("unshare(CLONE_NEWUSER)", error.into()))?;
        for (path, line) in [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{user} {user} 1")),
            ("/proc/self/gid_map", format!("{group} {group} 1")),
        ] {
            fs::write(path, line).map_err(|error| context(path, error))?;
        }
        // SAFETY: as above.
        unsafe { unshare_unsafe(flags) }
            .map_err(|error| context("unshare(CLONE_NEWNET)", error.into()))?;
    }
    // What is mounted here from now on does not show in other namespaces.
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE)?;
    bring_up("lo")?;
    // Programs without rights may ping: in a new namespace nobody may. Where that cannot be set, they cannot.
    let group = rustix::process::getegid().as_raw();
    let _ = write_sysctl("net.ipv4.ping_group_range", &format!("{group} {group}"));
    Ok(())
}

/// Lets a file, or an empty directory, stand where another one is, for this namespace.
///
/// # Errors
///
/// Those of mounting: `NotFound` if there is nothing at `onto`.
pub fn stand_in(from: &Path, onto: &Path) -> io::Result<()> {
    mount(Some(from), onto, libc::MS_BIND)
}

fn mount(from: Option<&Path>, onto: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let shown = onto.display().to_string();
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (from, onto) = (from.map(path).transpose()?, path(onto)?);
    let from = from.as_ref().map_or(std::ptr::null(), |from| from.as_ptr());
    // SAFETY: paths end with a NUL and live until the call is over; type and data may be absent with these flags.
    let done = unsafe {
        libc::mount(
            from,
            onto.as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(context(&shown, io::Error::last_os_error())),
    }
}

/// The process ends with a signal when the one that has started it ends, also after it has executed a program.
///
/// # Errors
///
/// Those of the system call.
pub fn end_with_parent() -> io::Result<()> {
    let signal = Some(rustix::process::Signal::TERM);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// Gives a file to whoever is at the other end.
///
/// # Errors
///
/// Those of the socket.
pub fn give(to: &UnixStream, file: &impl AsFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(
        to,
        &[IoSlice::new(&[0])],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Takes a file that the other end gives.
///
/// # Errors
///
/// `UnexpectedEof` if it gives none; those of the socket.
pub fn take(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    file.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
