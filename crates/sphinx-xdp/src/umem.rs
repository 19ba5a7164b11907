//! Memory that is shared with the kernel.

use std::io;
use std::ptr::NonNull;

#[cfg(miri)]
pub(crate) use model::Mapping;
#[cfg(not(miri))]
pub(crate) use system::Mapping;

impl Mapping {
    /// Where `bytes` bytes at `offset` are, if they are part of it.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: the offset is not beyond the end of the mapping.
        (end <= self.len()).then(|| unsafe { self.start().add(offset) })
    }
}

#[cfg(not(miri))]
mod system {
    use std::io;
    use std::ptr::NonNull;

    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    /// A piece of memory that is mapped until this is dropped.
    #[derive(Debug)]
    pub(crate) struct Mapping {
        start: NonNull<u8>,
        len: usize,
    }

    // SAFETY: the memory belongs to the process and stays where it is; who may touch what of it is the affair of those who use it.
    unsafe impl Send for Mapping {}

    impl Mapping {
        /// Maps memory that is all zeros.
        pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: the kernel chooses where, so that nothing that is there is replaced.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags)? };
            Self::of(start.cast(), len)
        }

        /// A part of a descriptor.
        pub(crate) fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            // SAFETY: as above.
            let start =
                unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd.as_fd(), offset)? };
            Self::of(start.cast(), len)
        }

        /// The same memory, mapped twice, as the kernel's is.
        #[cfg(test)]
        pub(crate) fn twice(len: usize) -> [Self; 2] {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let fd = rustix::fs::memfd_create("twice", flags).expect("memory");
            rustix::fs::ftruncate(&fd, len as u64).expect("memory");
            [(); 2].map(|()| Self::shared(fd.as_fd(), 0, len).expect("memory"))
        }

        fn of(start: *mut u8, len: usize) -> io::Result<Self> {
            let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { start, len })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            self.start
        }

        pub(crate) fn len(&self) -> usize {
            self.len
        }

        pub(crate) fn address(&self) -> u64 {
            self.start.as_ptr().addr() as u64
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: it is this one's own mapping, of which no reference is left.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// Miri cannot map memory: it is allocated there.
#[cfg(miri)]
mod model {
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::io;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use rustix::fd::BorrowedFd;

    const PAGE: usize = 4096;

    #[derive(Debug)]
    struct Pages {
        start: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: as of mappings.
    unsafe impl Send for Pages {}
    // SAFETY: as above; references to it give addresses only.
    unsafe impl Sync for Pages {}

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: it was allocated so, and no reference is left.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }

    #[derive(Debug)]
    pub(crate) struct Mapping(Arc<Pages>);

    impl Mapping {
        pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
            let layout = Layout::from_size_align(len.max(1), PAGE).map_err(io::Error::other)?;
            // SAFETY: it is not empty.
            let start = unsafe { alloc_zeroed(layout) };
            let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
            Ok(Self(Arc::new(Pages { start, layout })))
        }

        pub(crate) fn shared(_: BorrowedFd<'_>, _: u64, _: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        #[cfg(test)]
        pub(crate) fn twice(len: usize) -> [Self; 2] {
            let one = Self::anonymous(len).expect("memory");
            [Self(Arc::clone(&one.0)), one]
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            self.0.start
        }

        pub(crate) fn len(&self) -> usize {
            self.0.layout.size()
        }

        pub(crate) fn address(&self) -> u64 {
            self.0.start.as_ptr().addr() as u64
        }
    }
}

/// The frames of a queue: chunks of one size for what arrives, and behind them slots of one or more chunks for what leaves. Which of them
/// the kernel has at a time, the rings say.
#[derive(Debug)]
pub(crate) struct Umem {
    memory: Mapping,
}

impl Umem {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Mapping::anonymous(bytes)?,
        })
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.memory
    }

    /// Bytes of a frame; `None` if they are not part of the memory.
    ///
    /// # Safety
    ///
    /// The kernel must not have the frame: it has not been put into a ring since it was taken out of one, or at all.
    pub(crate) unsafe fn frame(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.memory.at(offset, len)?;
        // SAFETY: the bytes are part of a mapping that lives as long as this does and began as zeros. Nobody else in this process has a
        // reference to them, since this one borrows the whole; the kernel does not touch them, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}
