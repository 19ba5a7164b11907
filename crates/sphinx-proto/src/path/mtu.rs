//! Path MTU discovery with padded probes (compare RFC 8899), and noticing that the path has become
//! too narrow (`docs/protocol.md` §10.1).

use crate::{Nanos, Time};

/// How often each size is probed before it counts as failed, so that random loss does not hide a
/// larger MTU. A copy follows when the one before is not acknowledged in time.
const COPIES: u8 = 3;
/// The search on a new path begins after so many IP bytes of data: a single message has fewer, and
/// would gain nothing from it.
pub(super) const WORTHWHILE: u64 = 24 << 10;
/// A size that failed is tried again after this time, nanoseconds.
const FAILED_SIZE_PAUSE: Nanos = 60_000_000_000;
/// After the path has become too narrow, larger sizes are tried again after this time, then after
/// twice that, and so on up to [`FAILED_SIZE_PAUSE`].
const AGAIN_SOON: Nanos = 1_000_000_000;
/// A run of lost large packets shows a narrow path if it has at least so many packets …
const RUN_MIN: f64 = 6.0;
/// … they left over so many round trips …
const RUN_ROUND_TRIPS: Nanos = 2;
/// … and the loss rate, at most this one, makes such a run as rare as that.
const PLR_MAX: f64 = 0.97;
const RUN_PROBABILITY: f64 = 1e-6;

/// Largest UDP payload of an IPv4 packet on Ethernet: what most paths carry.
const COMMON: u16 = 1472;
/// Usual link MTUs, bytes of the IP packet: the minimum of IPv6, several kinds of tunnels, PPPoE,
/// Ethernet, jumbo frames.
const LINK_MTUS: [u16; 7] = [1280, 1400, 1420, 1452, 1492, 1500, 9000];

/// UDP payload sizes to probe, where IP and UDP headers have `ip_overhead` bytes together.
pub fn mtu_candidates(ip_overhead: u16) -> Vec<u16> {
    LINK_MTUS.iter().map(|mtu| mtu - ip_overhead).collect()
}

/// Finds the largest UDP payload that the path carries, upwards from a safe size.
#[derive(Debug)]
pub(crate) struct PathMtu {
    base: u16,
    current: u16,
    /// Sizes to try, rising.
    sizes: Vec<u16>,
    /// The smallest size that has failed in the present search, or that the interface refuses.
    failed: Option<u16>,
    /// How long after a failed search the next one begins, nanoseconds.
    pause: Nanos,
    fell_at: Time,
    copies_sent: u8,
    next_copy: Time,
    /// The size that an earlier session found. It is probed first; larger ones, which that session
    /// has tried, wait.
    remembered: Option<u16>,
    /// IP bytes of data that are to leave before anything is probed.
    waits_for: u64,
}

impl PathMtu {
    /// `candidates` rise; sizes not above `base` or above `limit` are ignored, and so is a `remembered`
    /// size that is none of them.
    pub(crate) fn new(base: u16, candidates: &[u16], limit: u16, remembered: Option<u16>) -> Self {
        let wanted = |c: &u16| (base + 1..=limit).contains(c);
        Self {
            base,
            current: base,
            sizes: candidates.iter().copied().filter(wanted).collect(),
            failed: None,
            pause: FAILED_SIZE_PAUSE,
            fell_at: Time::ZERO,
            copies_sent: 0,
            next_copy: Time::ZERO,
            remembered: remembered.filter(|size| candidates.contains(size) && wanted(size)),
            waits_for: 0,
        }
    }

    /// The same, but the search begins only when `ip_bytes` of data have left.
    pub(crate) fn after(self, ip_bytes: u64) -> Self {
        let waits_for = ip_bytes;
        Self { waits_for, ..self }
    }

    /// A packet with data leaves.
    pub(crate) fn on_sent(&mut self, ip_bytes: u32) {
        self.waits_for = self.waits_for.saturating_sub(u64::from(ip_bytes));
    }

    /// Validated UDP payload in bytes.
    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    fn larger(&self) -> impl Iterator<Item = u16> + '_ {
        let sizes = self.sizes.iter().copied();
        sizes.filter(|size| *size > self.current)
    }

    /// The size to probe next: the largest one up to what most paths carry, then larger ones; once
    /// a size has failed, the middle one of those below it.
    fn target(&self) -> Option<u16> {
        if self.remembered.is_some() {
            return self.remembered;
        }
        let Some(failed) = self.failed else {
            let common = self.larger().filter(|size| *size <= COMMON).last();
            return common.or_else(|| self.larger().next());
        };
        let between: Vec<u16> = self.larger().filter(|size| *size < failed).collect();
        between.get(between.len() / 2).copied()
    }

    /// Size of a probe to send now.
    pub(crate) fn poll(&mut self, now: Time, rtt: Nanos) -> Option<u16> {
        if self.timeout().is_none_or(|at| at > now) {
            return None;
        }
        if self.copies_sent == COPIES {
            // All copies had time to be acknowledged: the path does not carry this size.
            if self.remembered.take().is_some() {
                self.search_from(now);
            } else {
                self.failed = self.target();
                self.copies_sent = 0;
            }
        }
        let Some(size) = self.target() else {
            self.search_from(now + self.pause);
            self.pause = (2 * self.pause).min(FAILED_SIZE_PAUSE);
            return None;
        };
        self.copies_sent += 1;
        let wait = if self.copies_sent == COPIES {
            3 * rtt + 50_000_000
        } else {
            rtt + rtt / 4
        };
        self.next_copy = now + wait;
        Some(size)
    }

    /// No probe is to be sent before `at`.
    pub(crate) fn put_off(&mut self, at: Time) {
        self.next_copy = self.next_copy.max(at);
    }

    fn search_from(&mut self, at: Time) {
        self.copies_sent = 0;
        self.failed = None;
        self.next_copy = at;
    }

    /// When [`PathMtu::poll`] has something to do.
    pub(crate) fn timeout(&self) -> Option<Time> {
        (self.is_searching() && self.waits_for == 0).then_some(self.next_copy)
    }

    fn is_searching(&self) -> bool {
        self.remembered.is_some() || self.larger().next().is_some()
    }

    /// Whether a probe is due now, or may become due with the next packet of data.
    pub(crate) fn may_be_due(&self, now: Time) -> bool {
        self.is_searching() && (self.waits_for > 0 || self.next_copy <= now)
    }

    /// A probe of `size` was acknowledged.
    pub(crate) fn acked(&mut self, size: u16) {
        if size > self.current {
            self.current = size;
            // An earlier session has tried the larger sizes.
            let known = self.remembered.take() == Some(size);
            let failed = self.failed;
            self.search_from(if known {
                self.next_copy + FAILED_SIZE_PAUSE
            } else {
                Time::ZERO
            });
            self.failed = failed;
            if failed.is_none() {
                self.pause = FAILED_SIZE_PAUSE;
            }
        }
    }

    /// A packet of `size` that left at `sent_at` was acknowledged.
    pub(crate) fn carried(&mut self, sent_at: Time, size: u16) {
        if sent_at >= self.fell_at {
            self.acked(size);
        }
    }

    /// The path may carry less than before: go back to the safe size, and search at once.
    pub(crate) fn fall(&mut self, now: Time) {
        self.current = self.base;
        self.remembered = None;
        self.waits_for = 0;
        self.search_from(now);
        self.pause = AGAIN_SOON;
        self.fell_at = now;
    }

    /// This end's own interface does not take datagrams of `size`.
    pub(crate) fn too_large(&mut self, now: Time, size: u16) {
        if size <= self.base {
            return;
        }
        let failed = self.failed.map_or(size, |failed| failed.min(size));
        if size <= self.current {
            self.fall(now);
        } else {
            self.pause = FAILED_SIZE_PAUSE;
        }
        if self.target().is_some_and(|target| target >= size) {
            self.copies_sent = 0;
        }
        self.failed = Some(failed);
    }
}

/// Detects that the path drops large packets while small ones get through.
#[derive(Debug)]
pub(crate) struct BlackHole {
    /// Largest packet that every path carries, IP bytes.
    small: u32,
    /// Large packets lost in a row, and when the first and the last of them left.
    run: u32,
    first: Time,
    last: Time,
    /// When the last small packet that got through left, and the last large one.
    small_arrived: Option<Time>,
    large_arrived: Option<Time>,
}

impl BlackHole {
    pub(crate) fn new(small: u32) -> Self {
        Self {
            small,
            run: 0,
            first: Time::ZERO,
            last: Time::ZERO,
            small_arrived: None,
            large_arrived: None,
        }
    }

    /// Whether a packet is larger than every path carries.
    pub(crate) fn is_large(&self, ip_bytes: u32) -> bool {
        ip_bytes > self.small
    }

    pub(crate) fn lost(&mut self, sent_at: Time, ip_bytes: u32) {
        if !self.is_large(ip_bytes) || self.large_arrived >= Some(sent_at) {
            return;
        }
        if self.run == 0 {
            self.first = sent_at;
            self.last = sent_at;
        }
        self.run += 1;
        self.last = self.last.max(sent_at);
    }

    /// A packet was acknowledged. To be called for all packets of a SACK before
    /// [`lost`](Self::lost) is for those that it shows to be lost.
    pub(crate) fn acked(&mut self, sent_at: Time, ip_bytes: u32) {
        if !self.is_large(ip_bytes) {
            self.small_arrived = self.small_arrived.max(Some(sent_at));
            return;
        }
        self.large_arrived = self.large_arrived.max(Some(sent_at));
        // A packet that left before the run says nothing about the path after it.
        if sent_at >= self.first {
            self.run = 0;
        }
    }

    /// Whether the path has become too narrow. To be asked when all that a SACK says has been
    /// noted.
    pub(crate) fn is_found(&self, rtt: Nanos, plr: f64) -> bool {
        if self.run == 0 || self.small_arrived < Some(self.first) {
            return false;
        }
        let is_long = self.last - self.first >= RUN_ROUND_TRIPS * rtt;
        let rare = RUN_PROBABILITY.ln() / plr.clamp(1e-6, PLR_MAX).ln();
        is_long && f64::from(self.run) >= rare.max(RUN_MIN)
    }

    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.small);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::time;

    #[test]
    fn climbs_stops_and_tries_again_a_minute_later() {
        let mut mtu = PathMtu::new(1200, &[1200, 1472, 8972], 9000, None);
        assert_eq!(mtu.poll(time(0), 8), Some(1472));
        assert_eq!(mtu.poll(time(9), 8), None);
        assert_eq!(mtu.poll(time(10), 8), Some(1472));
        mtu.acked(1472);
        assert_eq!((mtu.current(), mtu.poll(time(11), 8)), (1472, Some(8972)));
        mtu.acked(1472);
        let mut now = time(11);
        let mut copies = 1;
        while let Some(at) = mtu.timeout().filter(|at| *at < time(FAILED_SIZE_PAUSE)) {
            now = now.max(at);
            copies += usize::from(mtu.poll(now, 8).is_some());
        }
        assert_eq!((mtu.current(), copies), (1472, 3));
        now = mtu.timeout().expect("again");
        assert_eq!(mtu.poll(now, 8), Some(8972));
        mtu.acked(8972);
        assert_eq!((mtu.current(), mtu.timeout()), (8972, None));
    }

    #[test]
    fn finds_what_lies_between() {
        for mtu in [1228, 1280, 1399, 1400, 1420, 1452, 1492, 1500, 4000, 9000] {
            let sizes = mtu_candidates(28);
            let mut search = PathMtu::new(1200, &sizes, 9000, None);
            let mut probes = 0;
            while let Some(at) = search.timeout().filter(|at| *at < time(FAILED_SIZE_PAUSE)) {
                if let Some(size) = search.poll(at, 8) {
                    probes += 1;
                    if size + 28 <= mtu {
                        search.acked(size);
                    }
                }
            }
            let fits = sizes.into_iter().filter(|size| size + 28 <= mtu).max();
            assert_eq!(search.current(), fits.unwrap_or(1200), "{mtu}");
            assert!(probes <= 13, "{mtu}: {probes}");
        }
    }

    #[test]
    fn tries_first_what_is_remembered() {
        let new = |size| PathMtu::new(1200, &[1472, 8972], 9000, Some(size));
        let mut mtu = new(8972);
        assert_eq!(mtu.poll(time(0), 8), Some(8972));
        mtu.acked(8972);
        assert_eq!((mtu.current(), mtu.timeout()), (8972, None));
        // Nothing larger for a minute.
        let mut mtu = new(1472);
        assert_eq!(mtu.poll(time(0), 8), Some(1472));
        mtu.acked(1472);
        assert!(mtu.timeout() > Some(time(FAILED_SIZE_PAUSE)));
        // It does not get through any more.
        let mut mtu = new(8972);
        let mut now = Time::ZERO;
        let sizes: Vec<u16> = (0..4)
            .filter_map(|_| {
                now = mtu.timeout()?;
                mtu.poll(now, 8)
            })
            .collect();
        assert_eq!(sizes, [8972, 8972, 8972, 1472]);
        assert_eq!(new(1300).poll(time(0), 8), Some(1472));
    }

    #[test]
    fn falls_and_climbs_at_once() {
        let mut mtu = PathMtu::new(1200, &[1472], 9000, None);
        mtu.acked(1472);
        mtu.fall(time(100));
        assert_eq!((mtu.current(), mtu.poll(time(100), 8)), (1200, Some(1472)));
        mtu.carried(time(99), 1472);
        assert_eq!(mtu.current(), 1200);
        mtu.carried(time(100), 1472);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn believes_its_own_interface() {
        let mut mtu = PathMtu::new(1200, &[1372, 1472], 9000, None);
        mtu.acked(1472);
        mtu.too_large(time(5), 1472);
        mtu.too_large(time(5), 1200);
        mtu.too_large(time(5), 8972);
        assert_eq!((mtu.current(), mtu.poll(time(5), 8)), (1200, Some(1372)));
        mtu.acked(1372);
        // The size that was refused is not tried before a minute has passed.
        mtu.too_large(time(6), 1472);
        assert_eq!(
            (mtu.poll(time(6), 8), mtu.timeout()),
            (None, Some(time(6 + FAILED_SIZE_PAUSE)))
        );
    }

    #[test]
    fn a_run_of_large_losses_needs_a_small_packet_as_witness() {
        let mut hole = BlackHole::new(1228);
        for at in 0..21 {
            hole.lost(time(at), 1500);
        }
        assert!(!hole.is_found(10, 0.1));
        hole.acked(time(0), 100);
        assert!(hole.is_found(10, 0.1) && !hole.is_found(11, 0.1));
        hole.acked(time(5), 1500);
        assert!(!hole.is_found(10, 0.1));
    }

    #[test]
    fn losses_of_small_packets_do_not_count() {
        let mut hole = BlackHole::new(1228);
        for at in 0..5 {
            hole.lost(time(100 * at), 1500);
            hole.lost(time(100 * at), 1228);
        }
        hole.acked(time(500), 100);
        assert!(!hole.is_found(10, 0.1));
        hole.lost(time(500), 1500);
        assert!(hole.is_found(10, 0.1) && !hole.is_found(10, 0.2));
    }
}
