//! A checked policy: tags, their blocks, and the workers of a block.

use super::fault::{Place, nearest};

/// The tag whose blocks apply to functions without a tag and with an unknown one.
pub const DEFAULT_TAG: &str = "default";

/// A checked policy of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// How much of a node other zones may use.
    pub distribution: Distribution,
    /// The tags in the order of the text, with unique names.
    pub tags: Vec<Tag>,
}

impl Policy {
    /// The tag of this name.
    pub fn tag(&self, name: &str) -> Option<&Tag> {
        self.tags.iter().find(|tag| tag.name == name)
    }

    /// The name of the tag that is nearest to this one, if it is near enough for a typing error.
    pub fn nearest_tag(&self, name: &str) -> Option<&str> {
        nearest(name, self.tags.iter().map(|tag| tag.name.as_str()))
    }
}

/// How much of a node other zones may use. [`shares`](crate::placement::shares) has the amounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Distribution {
    /// All entry nodes have equal shares of every worker.
    #[default]
    Default,
    /// The entry nodes of a zone divide its workers among them, and have equal shares of the others.
    Shared,
    /// Another zone may run one invocation at a time.
    MinMemory,
    /// Another zone may not use the worker.
    Isolated,
}

/// The blocks of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The name, which `placement` of a function refers to.
    pub name: String,
    /// The place of the name.
    pub place: Place,
    /// The blocks in the order of the text; never empty.
    pub blocks: Vec<Block>,
    /// The order in which the blocks are tried.
    pub order: BlockOrder,
    /// What applies after the last block.
    pub followup: Followup,
}

/// The order in which blocks are tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlockOrder {
    /// The order of the text.
    #[default]
    BestFirst,
    /// A new random order for each call.
    Random,
}

/// What applies when no block has a usable worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Followup {
    /// The tag `default`; for this tag itself, the rule without a policy.
    #[default]
    Default,
    /// The call is refused.
    Fail,
}

/// One alternative of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The place of the block.
    pub place: Place,
    /// The entry node that the block is written for; `None` for any.
    pub controller: Option<Controller>,
    /// The workers to choose from.
    pub workers: WorkerList,
    /// How one of the usable workers is chosen.
    pub strategy: Strategy,
    /// When a worker counts as unusable. Limits of an entry come first.
    pub limits: Limits,
    /// Labels whose workers are tried first, in this order.
    pub prefer: Vec<Name>,
    /// Functions that must run, or must not run, on the worker.
    pub affinity: Vec<Affinity>,
    /// True if calls with equal keys go to the same worker.
    pub sticky: bool,
}

/// A name and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// The place of the name.
    pub place: Place,
}

/// A named entry node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// The name of the node.
    pub name: Name,
    /// What happens while it is away.
    pub tolerance: Tolerance,
}

/// What happens while the named controller is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// The node with the request takes its place, and its own zone comes first.
    #[default]
    All,
    /// Only workers in the zone of the named controller are used.
    Same,
    /// The block is refused.
    None,
}

/// The workers of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerList {
    /// All of them.
    All,
    /// A list; never empty.
    Listed(Vec<Entry>),
}

/// An entry of a list of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The place of the entry.
    pub place: Place,
    /// The workers.
    pub target: Target,
    /// Limits of these workers.
    pub limits: Limits,
}

/// The workers of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One worker by its name.
    Worker(Name),
    /// All workers that have each of these labels; all workers if there are none. A zone is a label.
    Set {
        /// The labels.
        labels: Vec<Name>,
        /// How one of the set is chosen. `None`: the set stands for its workers, in the order of their names.
        strategy: Option<Strategy>,
    },
}

/// How a worker is chosen among the usable ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The first one in the order of the list.
    BestFirst,
    /// Any, with equal probability.
    Random,
    /// A hash of the function selects the first one to try and the step to the next. If all are full, any of them that
    /// is healthy and has no limits of its own.
    #[default]
    Platform,
    /// As `Platform`, without the use of full workers.
    NextCoprime,
    /// The less loaded of two that are drawn at random.
    LeastLoaded,
    /// The one with the least round trip.
    Nearest,
    /// One that holds the objects of the function, else the nearest to them.
    Data,
}

/// When a worker counts as unusable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Unusable from this share of used function memory on, in percent from 1 to 100.
    pub capacity_used_percent: Option<u8>,
    /// Unusable from this number of running and queued invocations on; at least 1.
    pub max_concurrent_invocations: Option<u32>,
    /// Unusable when it is full, also by strategy `platform`.
    pub overload: bool,
}

impl Limits {
    /// These limits, with those of `outer` where they say nothing.
    pub(crate) fn within(self, outer: Limits) -> Limits {
        Limits {
            capacity_used_percent: self.capacity_used_percent.or(outer.capacity_used_percent),
            max_concurrent_invocations: self
                .max_concurrent_invocations
                .or(outer.max_concurrent_invocations),
            overload: self.overload || outer.overload,
        }
    }

    /// True if the policy sets any limit.
    pub(crate) fn is_explicit(self) -> bool {
        self != Limits::default()
    }
}

/// A function that must run, or must not run, on the worker at the time of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// The function.
    pub function: Name,
    /// Must it run there, or not?
    pub rule: AffinityRule,
}

/// The two kinds of affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityRule {
    /// The worker runs the function.
    Runs,
    /// The worker does not run the function.
    RunsNot,
}

macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),+) => {
        impl $type {
            /// The words of the language, in the order of the documentation.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The value of a word.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The word of the value.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

words!(Distribution: Default = "default", Shared = "shared", MinMemory = "min_memory", Isolated = "isolated");
words!(BlockOrder: BestFirst = "best-first", Random = "random");
words!(Followup: Default = "default", Fail = "fail");
words!(Tolerance: All = "all", Same = "same", None = "none");
words!(Strategy: BestFirst = "best-first", Random = "random", Platform = "platform", NextCoprime = "next-coprime",
    LeastLoaded = "least-loaded", Nearest = "nearest", Data = "data");
