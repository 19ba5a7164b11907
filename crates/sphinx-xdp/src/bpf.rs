//! Loading and attaching a program: bpf(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_long, c_uint};

use crate::config::Attach;

// Commands, kinds and flags of linux/bpf.h.
const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const PROG_LOAD: c_long = 5;
const LINK_CREATE: c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program can look at packets of several fragments.
pub(crate) const XDP_HAS_FRAGS: u32 = 1 << 5;

/// What the kernel's verifier may say.
const LOG_BYTES: usize = 64 << 10;
const LICENSE: &std::ffi::CStr = c"MIT OR Apache-2.0";

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Makes the system call; what it returns is an open descriptor or 0.
///
/// # Safety
///
/// `T` has to be the layout that the kernel expects of this command, and every address in it valid for what the command does there.
unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the pointer and the size describe `attributes`, which the kernel copies. The rest is the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>() as c_uint,
        )
    };
    match result {
        0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the descriptor that a command has returned.
///
/// # Safety
///
/// `fd` has to be an open descriptor that nobody else owns.
unsafe fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The sockets of an interface's queues, as a program finds them.
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

impl SocketMap {
    /// A map for queues below `queues`.
    pub(crate) fn new(queues: u32) -> io::Result<Self> {
        let attributes = MapCreate {
            map_type: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
        };
        // SAFETY: the layout is that of the command, which has no addresses; it returns a new descriptor.
        let fd = unsafe { owned(bpf(MAP_CREATE, &attributes)?) };
        Ok(Self(fd))
    }

    /// Lets packets of a queue go to this socket, until either is gone.
    pub(crate) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let attributes = MapUpdate {
            map_fd: self.0.as_raw_fd() as u32,
            _padding: 0,
            key: (&raw const queue).addr() as u64,
            value: (&raw const value).addr() as u64,
            flags: 0,
        };
        // SAFETY: the layout is that of the command, which reads four bytes at either address, as many as are there.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes)? };
        Ok(())
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Loads an XDP program. The kernel proves that it ends and reads nothing but the packet.
pub(crate) fn load(instructions: &[[u8; 8]], flags: u32) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..6].copy_from_slice(b"sphinx");
    let mut attributes = ProgLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr().addr() as u64,
        license: LICENSE.as_ptr().addr() as u64,
        prog_flags: flags,
        prog_name: name,
        expected_attach_type: ATTACH_XDP,
        ..ProgLoad::default()
    };
    // SAFETY: the layout is that of the command, which reads as many instructions as are there, and a text that ends with a
    // zero. It returns a new descriptor.
    let loaded = unsafe { bpf(PROG_LOAD, &attributes).map(|fd| owned(fd)) };
    let Err(error) = loaded else {
        return loaded;
    };
    if error.raw_os_error() != Some(libc::EINVAL) && error.raw_os_error() != Some(libc::EACCES) {
        return Err(error);
    }
    // Only the verifier can say what it dislikes.
    let mut log = vec![0_u8; LOG_BYTES];
    attributes.log_level = 1;
    attributes.log_size = LOG_BYTES as u32;
    attributes.log_buf = log.as_mut_ptr().addr() as u64;
    // SAFETY: as above; besides, it writes at most as many bytes to the log as there are.
    match unsafe { bpf(PROG_LOAD, &attributes).map(|fd| owned(fd)) } {
        Ok(fd) => Ok(fd),
        Err(error) => {
            let text = String::from_utf8_lossy(&log);
            let text = text.trim_end_matches(['\0', '\n']);
            let last = text
                .lines()
                .rev()
                .find(|line| !line.starts_with("processed"));
            Err(match last {
                Some(line) if !line.is_empty() => {
                    // Not a matter of rights, whatever its number says.
                    io::Error::other(format!("{error} ({line})"))
                }
                _ => error,
            })
        }
    }
}

/// Attaches a program to an interface for as long as the link that this returns is open: it is gone with the process, however that ends.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, how: Attach) -> io::Result<OwnedFd> {
    // XDP_FLAGS_… of linux/if_link.h.
    let flags = match how {
        Attach::Generic => 1 << 1,
        Attach::Native => 1 << 2,
    };
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: interface,
        attach_type: ATTACH_XDP,
        flags,
    };
    // SAFETY: the layout is that of the command, which has no addresses; it returns a new descriptor.
    Ok(unsafe { owned(bpf(LINK_CREATE, &attributes)?) })
}
