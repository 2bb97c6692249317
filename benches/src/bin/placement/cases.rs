//! The cases of the evaluation of topology-aware scheduling (thesis on tAPP), with its users and requests; pauses are shorter. `coldstart`
//! and `scale-to-zero` are in `cold.rs`.

use std::time::Duration;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    Hellojs,
    Sleep,
    Matrixmult,
    Mongodb,
    /// Not in the evaluation: the same document over connections that the node keeps.
    MongodbHttp,
    Pycatj,
    Slackpost,
    Terrain,
    Datalocality,
}

/// Users that send one request after another.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub users: usize,
    /// Of each user.
    pub requests: usize,
    /// After each request.
    pub pause: Duration,
}

impl Case {
    pub const ALL: [Self; 9] = [
        Self::Hellojs,
        Self::Sleep,
        Self::Matrixmult,
        Self::Mongodb,
        Self::MongodbHttp,
        Self::Pycatj,
        Self::Slackpost,
        Self::Terrain,
        Self::Datalocality,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hellojs => "hellojs",
            Self::Sleep => "sleep",
            Self::Matrixmult => "matrixMult",
            Self::Mongodb => "mongoDB",
            Self::MongodbHttp => "mongoDB by HTTP",
            Self::Pycatj => "pycatj",
            Self::Slackpost => "slackpost",
            Self::Terrain => "terrain",
            Self::Datalocality => "datalocality",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::Hellojs => "/fn/hello?name=Ada",
            Self::Sleep => "/fn/sleep",
            Self::Matrixmult => "/fn/matrix",
            Self::Mongodb => "/fn/document?from=postgres",
            Self::MongodbHttp => "/fn/small",
            Self::Pycatj => "/fn/equivalences",
            Self::Slackpost => "/fn/post",
            Self::Terrain => "/fn/terrain",
            Self::Datalocality => "/fn/document?from=http",
        }
    }

    /// Whether the function has a tag: it uses what is in the other zone.
    pub fn is_tagged(self) -> bool {
        matches!(
            self,
            Self::Mongodb | Self::MongodbHttp | Self::Slackpost | Self::Terrain | Self::Datalocality
        )
    }

    /// Whether the peer without edgefaas has it, too.
    pub fn has_peer(self) -> bool {
        self != Self::Mongodb
    }

    /// The load of the evaluation, or a short one.
    pub fn load(self, quick: bool) -> Load {
        let load =
            |users, requests, pause_ms| Load { users, requests, pause: Duration::from_millis(pause_ms) };
        match (self, quick) {
            (Self::Sleep, false) => load(4, 25, 0),
            (Self::Sleep, true) => load(4, 2, 0),
            // There: 1 s.
            (Self::Slackpost, false) => load(1, 100, 100),
            (Self::Slackpost, true) => load(1, 10, 0),
            // There: 20 s.
            (Self::Terrain, false) => load(1, 5, 2_000),
            (Self::Terrain, true) => load(1, 2, 500),
            (Self::Datalocality, false) => load(4, 50, 0),
            (Self::Datalocality, true) => load(4, 2, 0),
            (_, false) => load(4, 200, 0),
            (_, true) => load(4, 25, 0),
        }
    }

    /// The published average latency in ms: of the platform as it was, and of its best policy.
    pub fn published_ms(self) -> Option<[f64; 2]> {
        Some(match self {
            Self::MongodbHttp => return None,
            Self::Hellojs => [1133.0, 724.0],
            Self::Sleep => [3775.0, 3554.0],
            Self::Matrixmult => [1324.0, 1453.0],
            Self::Mongodb => [1053.0, 794.0],
            Self::Pycatj => [831.0, 606.0],
            Self::Slackpost => [1543.0, 1101.0],
            Self::Terrain => [11932.0, 6364.0],
            Self::Datalocality => [9870.0, 2817.0],
        })
    }
}
