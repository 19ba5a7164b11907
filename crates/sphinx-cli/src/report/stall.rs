//! Telling what a transfer waits for, long before a time-out ends it.

use std::time::{Duration, Instant};

use super::{Event, Figures, Reporter, Role};

/// A wait that is longer than this is reported. With the time between two looks, that happens within three seconds.
const NOTABLE: Duration = Duration::from_secs(2);
/// An end that lives is heard every three seconds, if it has nothing to say and is not asked.
const SILENT: Duration = Duration::from_secs(4);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A read or write of this end.
    OwnDisk,
    /// Any packet from the other end.
    Path,
    /// The other end's window: it takes nothing more at present.
    PeerTakesNothing,
    /// The last word of the other end, which has received everything.
    PeerConfirmsNothing,
    /// Data from the other end, which is heard of and sends none.
    PeerSendsNothing,
}

/// What is known at a look.
pub(super) struct Look<'a> {
    pub(super) now: Instant,
    /// How long this end has been reading from, or writing to its disk without a pause.
    pub(super) at_disk: Option<Duration>,
    /// Bytes of files that this end is through with.
    pub(super) bytes: u64,
    /// Whether the sender has announced more than that.
    pub(super) unfinished: bool,
    /// Whether all that this end sends has arrived, and the other end is to say that it is in place.
    pub(super) handed_over: bool,
    pub(super) figures: &'a Figures,
}

impl Look<'_> {
    fn is_at_disk_for_long(&self) -> bool {
        self.at_disk.is_some_and(|time| time >= NOTABLE)
    }

    /// Whether the peer seems to be gone: it answers within a round trip if asked, and sends something every three seconds if not.
    fn is_silent(&self) -> bool {
        let stats = &self.figures.stats;
        stats.unanswered >= NOTABLE + stats.rtt || stats.silence >= SILENT
    }
}

/// A stall that was reported.
#[derive(Clone, Copy)]
struct Told {
    cause: Cause,
    since: Instant,
    /// When something had moved last.
    moved: Instant,
}

/// Tells of each stall once, and when it is over.
pub(super) struct StallWatch {
    told: Option<Told>,
    /// Whatever tells that something moves, and when it last did.
    moved: ([u64; 3], Instant),
    /// How long this end had waited for the other one's window then.
    limited: Duration,
}

/// What a look has found: what is over after how long, and what is waited for now, since how long.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    over: Option<(Cause, Duration)>,
    begun: Option<(Cause, Duration)>,
}

impl StallWatch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            told: None,
            moved: ([0; 3], now),
            limited: Duration::ZERO,
        }
    }

    pub(super) fn look(&mut self, look: &Look<'_>, peer: Option<&str>, reporter: &Reporter) {
        let news = self.news(look);
        if let Some((cause, time)) = news.over {
            tell_end(cause, time, peer, reporter);
        }
        if let Some((cause, time)) = news.begun {
            let by_ssh = look.figures.stats.io == "ssh";
            tell(cause, time, (peer, by_ssh), reporter);
        }
    }

    fn news(&mut self, look: &Look<'_>) -> News {
        // A session that has ended waits for nothing.
        if look.figures.stats.has_ended {
            return News::default();
        }
        let found = self.find(look);
        let mut news = News::default();
        if let Some(told) = self.told.filter(|told| self.goes_on(told, look)) {
            let time = look.now.saturating_duration_since(told.since);
            news.over = Some((told.cause, time));
            self.told = None;
        }
        if let Some((cause, time)) = found
            && self.told.is_none_or(|told| told.cause != cause)
        {
            news.begun = found;
            self.told = Some(Told {
                cause,
                since: look.now.checked_sub(time).unwrap_or(look.now),
                moved: self.moved.1,
            });
        }
        news
    }

    /// Whether what the stall waited for has come, so that it is over.
    fn goes_on(&self, told: &Told, look: &Look<'_>) -> bool {
        match told.cause {
            Cause::OwnDisk => !look.is_at_disk_for_long(),
            Cause::Path => !look.is_silent(),
            Cause::PeerTakesNothing | Cause::PeerConfirmsNothing | Cause::PeerSendsNothing => {
                self.moved.1 != told.moved
            }
        }
    }

    /// What is waited for now, and how long already.
    fn find(&mut self, look: &Look<'_>) -> Option<(Cause, Duration)> {
        let stats = &look.figures.stats;
        let movement = [
            look.bytes,
            look.figures.stream_bytes(),
            u64::from(look.handed_over),
        ];
        if movement != self.moved.0 {
            self.moved = (movement, look.now);
            self.limited = stats.window_limited;
        }
        if let Some(time) = look.at_disk.filter(|_| look.is_at_disk_for_long()) {
            return Some((Cause::OwnDisk, time));
        }
        if look.is_silent() {
            return Some((Cause::Path, stats.silence));
        }
        let still = look.now.saturating_duration_since(self.moved.1);
        let waited = stats.window_limited.saturating_sub(self.limited);
        if still < NOTABLE || look.at_disk.is_some() {
            return None;
        }
        match look.figures.role {
            Some(Role::Sender) if look.handed_over => Some((Cause::PeerConfirmsNothing, still)),
            Some(Role::Sender) if waited >= NOTABLE / 2 => Some((Cause::PeerTakesNothing, still)),
            Some(Role::Receiver) if look.unfinished => Some((Cause::PeerSendsNothing, still)),
            _ => None,
        }
    }
}

impl Cause {
    /// `side` and `reason` of the event.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Cause::OwnDisk => ("own", "disk"),
            Cause::Path => ("path", "silence"),
            Cause::PeerTakesNothing => ("peer", "takes_nothing"),
            Cause::PeerConfirmsNothing => ("peer", "confirms_nothing"),
            Cause::PeerSendsNothing => ("peer", "sends_nothing"),
        }
    }

    /// The message for people. Over ssh (`by_ssh`) nothing is known of the path, only whether data passes.
    fn text(self, seconds: u64, from: &str, by_ssh: bool) -> String {
        match self {
            Cause::OwnDisk => {
                format!(
                    "a read or write of this end has taken {seconds} s: its disk, or what reads its standard output, is slow; waiting for it"
                )
            }
            Cause::Path => format!(
                "nothing heard from the other end{from} for {seconds} s; waiting for it as long as --idle-timeout allows"
            ),
            Cause::PeerTakesNothing if by_ssh => format!(
                "nothing has been taken for {seconds} s: the other end's disk, what reads there, or the way through ssh is slow; waiting for it"
            ),
            Cause::PeerConfirmsNothing if by_ssh => format!(
                "all is sent, and nothing has been confirmed for {seconds} s: the other end's disk, or the way through ssh, is slow; waiting for it"
            ),
            Cause::PeerSendsNothing if by_ssh => format!(
                "nothing has come for {seconds} s: the other end's disk, or the way through ssh, is slow; waiting for it"
            ),
            Cause::PeerTakesNothing => format!(
                "the other end{from} has taken nothing for {seconds} s: its disk, or what reads there, is slow; waiting for it"
            ),
            Cause::PeerConfirmsNothing => format!(
                "the other end{from} has received everything, and has not said for {seconds} s that it is in place: its disk, or what reads there, is slow; waiting for it"
            ),
            Cause::PeerSendsNothing => format!(
                "the other end{from} has sent nothing for {seconds} s: its disk is slow, unless nothing is heard from now on; waiting for it"
            ),
        }
    }
}

fn tell(cause: Cause, time: Duration, (peer, by_ssh): (Option<&str>, bool), reporter: &Reporter) {
    let from = peer.map_or(String::new(), |peer| format!(" ({peer})"));
    let message = cause.text(time.as_secs(), &from, by_ssh);
    let event = event("stall", cause, time, peer);
    reporter.event(event.with("message", message.as_str()));
    reporter.note(&format!("sphx: {message}"));
}

fn tell_end(cause: Cause, time: Duration, peer: Option<&str>, reporter: &Reporter) {
    reporter.event(event("stall_over", cause, time, peer));
    reporter.note(&format!("sphx: going on after {} s", time.as_secs()));
}

fn event(name: &'static str, cause: Cause, time: Duration, peer: Option<&str>) -> Event {
    let (side, reason) = cause.words();
    let event = Event::new(name)
        .with("side", side)
        .with("reason", reason)
        .with("seconds", time.as_secs_f64());
    match peer {
        Some(peer) => event.with("peer", peer),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use sphinx_transport::Stats;

    use super::*;

    /// Makes looks at given times after the beginning, in seconds.
    struct At<'a> {
        watch: &'a mut StallWatch,
        start: Instant,
    }

    impl At<'_> {
        fn find(
            &mut self,
            seconds: f64,
            role: Role,
            stats: Stats,
            disk: Option<f64>,
        ) -> Option<Cause> {
            let look = Look {
                now: self.start + Duration::from_secs_f64(seconds),
                at_disk: disk.map(Duration::from_secs_f64),
                bytes: 10,
                unfinished: true,
                handed_over: false,
                figures: &Figures::new(role, stats),
            };
            self.watch.find(&look).map(|(cause, _)| cause)
        }
    }

    fn stats(silence: f64, limited: f64) -> Stats {
        Stats {
            silence: Duration::from_secs_f64(silence),
            window_limited: Duration::from_secs_f64(limited),
            ..Stats::default()
        }
    }

    #[test]
    fn the_cause_is_found() {
        let start = Instant::now();
        let mut watch = StallWatch::new(start);
        let mut at = At {
            watch: &mut watch,
            start,
        };
        let (sender, receiver) = (Role::Sender, Role::Receiver);
        assert_eq!(at.find(0.0, sender, stats(0.0, 0.5), None), None);
        assert_eq!(at.find(1.9, sender, stats(0.1, 2.4), None), None);
        let full = Some(Cause::PeerTakesNothing);
        assert_eq!(at.find(2.1, sender, stats(0.1, 2.6), None), full);
        // A sender that is not held up has nothing to say, or waits for repairs.
        assert_eq!(at.find(2.1, sender, stats(0.1, 0.6), None), None);
        let idle = Some(Cause::PeerSendsNothing);
        assert_eq!(at.find(2.1, receiver, stats(3.1, 0.0), None), idle);
        assert_eq!(at.find(2.1, receiver, stats(3.1, 0.0), Some(1.0)), None);
        let disk = Some(Cause::OwnDisk);
        assert_eq!(at.find(2.1, receiver, stats(9.0, 0.0), Some(2.0)), disk);
        let path = Some(Cause::Path);
        assert_eq!(at.find(2.1, receiver, stats(4.0, 0.0), None), path);
        assert_eq!(at.find(5.0, sender, stats(4.0, 9.0), None), path);
        // Who has been asked and does not answer is told of sooner, but not before a round trip has passed.
        let asked = |unanswered, rtt| Stats {
            unanswered: Duration::from_secs_f64(unanswered),
            rtt: Duration::from_secs_f64(rtt),
            ..stats(2.5, 0.0)
        };
        assert_eq!(at.find(5.1, sender, asked(2.2, 0.1), None), path);
        assert_eq!(at.find(5.1, sender, asked(2.2, 0.6), None), None);
    }

    #[test]
    fn a_last_word_that_does_not_come_is_waited_for() {
        let start = Instant::now();
        let mut watch = StallWatch::new(start);
        let mut find = |seconds, handed_over| {
            let look = Look {
                now: start + Duration::from_secs_f64(seconds),
                at_disk: None,
                bytes: 10,
                unfinished: false,
                handed_over,
                figures: &Figures::new(Role::Sender, stats(0.1, 0.0)),
            };
            watch.find(&look)
        };
        assert_eq!(find(0.0, false), None);
        // The other end may have waited meanwhile, for instance for its user's consent.
        assert_eq!(find(60.0, false), None);
        assert_eq!(find(60.1, true), None);
        assert_eq!(find(62.0, true), None);
        let told = (Cause::PeerConfirmsNothing, Duration::from_secs(2));
        assert_eq!(find(62.1, true), Some(told));
    }

    #[test]
    fn it_is_over_when_something_moves_or_is_heard() {
        let start = Instant::now();
        let mut watch = StallWatch::new(start);
        let mut news = |seconds: f64, bytes, silence, has_ended| {
            let stats = Stats {
                has_ended,
                ..stats(silence, 0.0)
            };
            let look = Look {
                now: start + Duration::from_secs_f64(seconds),
                at_disk: None,
                bytes,
                unfinished: true,
                handed_over: false,
                figures: &Figures::new(Role::Receiver, stats),
            };
            let news = watch.news(&look);
            let cause = |it: Option<(Cause, Duration)>| it.map(|(cause, _)| cause);
            (cause(news.over), cause(news.begun))
        };
        let (idle, path) = (Some(Cause::PeerSendsNothing), Some(Cause::Path));
        assert_eq!(news(0.0, 10, 0.1, false), (None, None));
        assert_eq!(news(3.0, 10, 0.1, false), (None, idle));
        // Nothing moves when nothing is heard any more, nor when it is again.
        assert_eq!(news(6.0, 10, 4.1, false), (None, path));
        assert_eq!(news(7.0, 10, 5.1, false), (None, None));
        assert_eq!(news(8.0, 10, 0.1, false), (path, idle));
        assert_eq!(news(9.0, 20, 0.1, false), (idle, None));
        assert_eq!(news(20.0, 20, 10.0, false), (None, path));
        // It is given up, and nothing is known of silence.
        for seconds in [20.3, 25.0] {
            assert_eq!(news(seconds, 20, 0.0, true), (None, None));
        }
    }

    #[test]
    fn what_moves_does_not_stall() {
        let start = Instant::now();
        let mut watch = StallWatch::new(start);
        for second in 0..10 {
            let look = Look {
                now: start + Duration::from_secs(second),
                at_disk: None,
                bytes: second,
                unfinished: true,
                handed_over: false,
                figures: &Figures::new(Role::Receiver, Stats::default()),
            };
            assert!(watch.find(&look).is_none());
        }
    }
}
