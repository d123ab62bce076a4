//! What goes through the ingress ring: envelopes as they came, by either API.

use diode::Weigh;
use loggregator::{
    Limits, Message, Run,
    convert::{TagMap, v1_to_v2},
    v1::Pushed,
};

/// One entry of the ingress ring.
#[derive(Clone)]
pub(crate) enum Item {
    /// Consecutive envelopes of a v2 message.
    V2(Run),
    /// One v1 envelope.
    V1(Box<V1>),
}

#[derive(Clone)]
pub(crate) struct V1 {
    pub(crate) pushed: Pushed,
    /// Its v2 form, once somebody needed it.
    converted: Option<Converted>,
}

/// The v2 form of a v1 envelope.
#[derive(Clone)]
pub(crate) struct Converted {
    pub(crate) run: Run,
    /// Whether some text was not UTF-8 and had to be repaired.
    pub(crate) repaired: bool,
}

impl Item {
    pub(crate) fn v1(pushed: Pushed) -> Self {
        Self::V1(Box::new(V1 {
            pushed,
            converted: None,
        }))
    }

    pub(crate) fn envelopes(&self) -> usize {
        match self {
            Self::V2(run) => run.len(),
            Self::V1(_) => 1,
        }
    }

    /// The envelopes in v2 form.
    pub(crate) fn run(&mut self) -> &Run {
        match self {
            Self::V2(run) => run,
            Self::V1(v1) => &v1.converted().run,
        }
    }
}

impl V1 {
    /// The v2 form, converted once.
    pub(crate) fn converted(&mut self) -> &Converted {
        self.converted.get_or_insert_with(|| {
            let converted = v1_to_v2(&self.pushed.envelope(), TagMap::Preferred);
            let limits = Limits { bytes: usize::MAX };
            let message = Message::parse_envelope(&converted.envelope, limits)
                .expect("what conversion makes is well formed");
            Converted {
                run: message.whole(),
                repaired: converted.repaired > 0,
            }
        })
    }
}

impl Weigh for Item {
    fn weight(&self) -> usize {
        self.envelopes()
    }

    fn bytes(&self) -> usize {
        match self {
            Self::V2(run) => Weigh::bytes(run),
            Self::V1(v1) => Weigh::bytes(&v1.pushed),
        }
    }
}
