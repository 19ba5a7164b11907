//! Which controllers there are: the one table of their names, and what builds them.

use std::fmt;

use super::{AimdEcn, Bbr, CcParams, Cubic, Fixed, RateControl, Scavenger};

/// Names of controllers that need nothing more than a name, and what they do; the first is the default.
const NAMES: [(&str, CcKind, &str); 5] = [
    ("auto", CcKind::Bbr, "bbr"),
    (
        "bbr",
        CcKind::Bbr,
        "a model of the link, deaf to random loss",
    ),
    (
        "aimd-ecn",
        CcKind::AimdEcn,
        "the paper's: ECN marks slow it down",
    ),
    (
        "cubic",
        CcKind::Cubic,
        "as most senders: every loss slows it down",
    ),
    (
        "scavenger",
        CcKind::Scavenger,
        "what nobody else wants, deaf to random loss",
    ),
];
/// What comes before the rate of [`CcKind::Fixed`], and what it does.
const FIXED: &str = "fixed:";
const FIXED_DOES: &str = "this rate, whatever the link does";

/// Which controller serves a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CcKind {
    /// A model of the link's rate and delay that random loss does not slow ([`Bbr`]).
    #[default]
    Bbr,
    /// The paper's window: +1 block per round trip, halved on ECN-CE ([`AimdEcn`]).
    AimdEcn,
    /// What most of the Internet does: every loss is congestion ([`Cubic`]).
    Cubic,
    /// What nobody else wants: it yields to every queue, and not to random loss ([`Scavenger`]).
    Scavenger,
    /// A fixed rate in IP bytes per second ([`Fixed`]).
    Fixed(u64),
    /// A controller that the application brings.
    Own(OwnController),
}

/// A controller that is not one of ours.
#[derive(Clone, Copy)]
pub struct OwnController {
    /// What statistics and reports call it; two with one name count as the same.
    pub name: &'static str,
    /// Builds it for one path.
    pub build: fn(CcParams) -> Box<dyn RateControl>,
}

impl CcKind {
    /// The controller that is written so: a name, or `fixed:` and a rate, which `rate` understands as bits per second.
    ///
    /// # Errors
    /// What `rate` says. `None` for another name.
    pub fn parse<E>(
        text: &str,
        rate: impl FnOnce(&str) -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        if let Some(written) = text.strip_prefix(FIXED) {
            return Ok(Some(Self::Fixed((rate(written)? / 8).max(1))));
        }
        let named = NAMES.iter().find(|(name, ..)| *name == text);
        Ok(named.map(|(_, kind, _)| *kind))
    }

    /// What [`parse`](Self::parse) understands, for people.
    pub fn expected() -> String {
        let names = NAMES.map(|(name, ..)| name);
        format!("{} or {FIXED}RATE", names.join(", "))
    }

    /// The same, and what each of them does, for people.
    pub fn all() -> impl Iterator<Item = (String, &'static str)> {
        let named = NAMES
            .iter()
            .map(|(name, _, does)| ((*name).to_owned(), *does));
        named.chain([(format!("{FIXED}RATE"), FIXED_DOES)])
    }

    /// Its name, without a rate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed(_) => FIXED.trim_end_matches(':'),
            Self::Own(own) => own.name,
            Self::Bbr | Self::AimdEcn | Self::Cubic | Self::Scavenger => {
                // The default controller has two names; the later one is its own.
                let mut named = NAMES.iter().rev();
                named
                    .find(|(_, kind, _)| *kind == self)
                    .map_or("", |(name, ..)| *name)
            }
        }
    }

    /// Builds the controller for one path.
    pub fn build(self, params: CcParams) -> Box<dyn RateControl> {
        match self {
            Self::Bbr => Box::new(Bbr::new(params)),
            Self::AimdEcn => Box::new(AimdEcn::new(params)),
            Self::Cubic => Box::new(Cubic::new(params)),
            Self::Scavenger => Box::new(Scavenger::new(params)),
            Self::Fixed(rate) => Box::new(Fixed::new(rate, params)),
            Self::Own(own) => (own.build)(params),
        }
    }
}

impl PartialEq for OwnController {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OwnController {}

impl fmt::Debug for OwnController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_table() {
        let rate = |text: &str| text.parse::<u64>();
        assert_eq!(CcKind::parse("auto", rate), Ok(Some(CcKind::default())));
        assert_eq!(
            CcKind::parse("fixed:800", rate),
            Ok(Some(CcKind::Fixed(100)))
        );
        assert!(CcKind::parse("fixed:fast", rate).is_err());
        assert_eq!(CcKind::parse("fast", rate), Ok(None));
        for name in ["bbr", "aimd-ecn", "cubic", "scavenger"] {
            let kind = CcKind::parse(name, rate).ok().flatten();
            assert_eq!(kind.map(CcKind::name), Some(name));
        }
        assert_eq!(CcKind::Fixed(1).name(), "fixed");
        assert_eq!(
            CcKind::expected(),
            "auto, bbr, aimd-ecn, cubic, scavenger or fixed:RATE"
        );
    }
}
