//! Several sockets that are waited for as one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

/// An epoll instance, which can be polled itself: it is readable while one of its sockets is.
pub(super) struct Group(OwnedFd);

impl Group {
    /// A group with this socket.
    pub(super) fn new(first: BorrowedFd<'_>) -> io::Result<Self> {
        let group = Self(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        group.add(first)?;
        Ok(group)
    }

    pub(super) fn add(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.0, socket, data, epoll::EventFlags::IN)?;
        Ok(())
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
