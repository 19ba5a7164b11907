//! Datagrams that arrive together: what is the same for all of them is looked at once.

use sphinx_proto::wire::{ConnectionId, HEADER_LEN, Header, OVERHEAD};
use sphinx_proto::{PacketNumber, PathId, Place, Placement, Time};

use super::{Driver, Origin, Workshop};
use crate::executor::Executor;
use crate::protection::PacketProtection;

impl<P: PacketProtection, E: Executor> Driver<P, E> {
    /// A data-plane datagram with one of this session's connection ids. It is opened in place, or into the place that its symbol has in a
    /// block; its bytes are of no use afterwards.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        origin: Origin,
        datagram: &mut [u8],
        workshop: &mut Workshop,
    ) {
        if self.opens_elsewhere() {
            let accepted = self.accept(now, &origin, datagram);
            if let Some((path, header, packet_number)) = accepted {
                let packet = (path, &header, packet_number);
                self.open_later(now, origin, packet, datagram, workshop);
            }
            return;
        }
        let stride = datagram.len();
        self.handle_same_id(now, origin, (datagram, stride), workshop);
    }

    /// Such datagrams, which have arrived as one and lie one after another: each has `stride` bytes, but for the last one. The same as if they came
    /// [one by one](Self::handle_datagram), for less work.
    pub fn handle_segments(
        &mut self,
        now: Time,
        origin: Origin,
        (datagrams, stride): (&mut [u8], usize),
        workshop: &mut Workshop,
    ) {
        let stride = stride.max(1);
        if self.opens_elsewhere() {
            for datagram in datagrams.chunks_mut(stride) {
                self.handle_datagram(now, origin, datagram, workshop);
            }
            return;
        }
        let mut rest = datagrams;
        while !rest.is_empty() {
            let (some, behind) = rest.split_at_mut(ConnectionId::leading(rest, stride));
            self.handle_same_id(now, origin, (some, stride), workshop);
            rest = behind;
        }
    }

    /// The same of datagrams with the same connection id, which are opened here and now.
    fn handle_same_id(
        &mut self,
        now: Time,
        origin: Origin,
        (mut rest, stride): (&mut [u8], usize),
        workshop: &mut Workshop,
    ) {
        let Some(path) = self.path_of(rest) else {
            return;
        };
        let Some(lane) = self.lanes.of(path) else {
            return;
        };
        lane.protection.unprotect_all(rest, stride);
        while !rest.is_empty() && self.core.has_path(path) {
            let handled = self.handle_run(now, origin, path, (rest, stride), workshop);
            rest = &mut rest[handled..];
        }
    }

    /// Handles the first one of these datagrams, which have lost their header protection, and those behind it that can be handled together with it: how many bytes that were.
    fn handle_run(
        &mut self,
        now: Time,
        origin: Origin,
        path: PathId,
        (datagrams, stride): (&mut [u8], usize),
        workshop: &mut Workshop,
    ) -> usize {
        let len = stride.min(datagrams.len());
        let first = &datagrams[..len];
        let header = first.first_chunk().filter(|_| len >= OVERHEAD);
        let header = header.and_then(Header::decode);
        let packet_number = self.expand(now, &origin, (path, header.as_ref(), len));
        let (Some(header), Some(packet_number)) = (header, packet_number) else {
            return len;
        };
        let Some(lane) = self.lanes.of(path) else {
            return len;
        };
        let pto = self.core.probe_timeout();
        let packet = (&header, packet_number, len);
        if let Some(place) = self.core.place_of(&header, len - OVERHEAD) {
            let is_above = packet_number >= lane.replay.expected();
            let most = match is_above && !header.last_of_flight {
                true => place.run.max(1),
                false => 1,
            };
            let (mut count, mut failed) = (0, None);
            let mut before: Option<&[u8; HEADER_LEN]> = None;
            let places = self.rx.vacancies(place.slot, place.index);
            let packets = std::iter::zip(datagrams.chunks(stride), places);
            for (datagram, body) in packets.take(usize::from(most)) {
                let Some(head) = datagram.first_chunk() else {
                    break;
                };
                let follows = |before| datagram.len() == len && Header::is_next(head, before);
                if !before.is_none_or(follows) {
                    break;
                }
                let number = packet_number + u64::from(count);
                let sealed = (datagram, body);
                let opened = lane.protection.open_into(&header, number, sealed, now, pto);
                if let Err(error) = opened {
                    failed = Some(error);
                    break;
                }
                lane.replay.commit(number);
                count += 1;
                before = Some(head);
            }
            if count > 0 {
                self.handle_placed(now, origin, packet, (&place, count), workshop);
            }
            if let Some(error) = failed {
                self.did_not_open(now, error);
            }
            let handled = usize::from(count) + usize::from(failed.is_some());
            if handled > 0 {
                return datagrams.len().min(handled * stride);
            }
        }
        let datagram = &mut datagrams[..len];
        let Some(lane) = self.lanes.of(path) else {
            return len;
        };
        let opened = lane
            .protection
            .open(&header, packet_number, datagram, now, pto);
        match opened {
            Ok(body) => {
                lane.replay.commit(packet_number);
                self.handle_packet(now, origin, packet, &datagram[body], workshop);
            }
            Err(error) => self.did_not_open(now, error),
        }
        len
    }

    /// A packet is the peer's, and new, or so many are, one behind the other. They were opened into the place of this symbol, and into those behind it.
    fn handle_placed(
        &mut self,
        now: Time,
        origin: Origin,
        (header, packet_number, datagram_len): (&Header, PacketNumber, usize),
        (place, count): (&Place, u16),
        workshop: &mut Workshop,
    ) {
        let meta = origin.meta(now, packet_number, datagram_len);
        let Some(placement) = self.core.handle_placed(&meta, header, place, count) else {
            return;
        };
        // What is not wanted any more does not become known by lying there.
        if placement != Placement::Discard {
            self.rx.occupy(place.slot, place.index, count);
        }
        self.window.stored(header.block, &placement);
        self.settle(now, workshop);
    }
}
