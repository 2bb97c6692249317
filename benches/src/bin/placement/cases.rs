//! The ten cases of the evaluation of topology-aware scheduling (thesis on tAPP), with its loads. `scale-to-zero` is
//! measured together with `coldstart`.

use std::time::Duration;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    Hellojs,
    Sleep,
    Matrixmult,
    Mongodb,
    Pycatj,
    Slackpost,
    Terrain,
    Coldstart,
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
        Self::Pycatj,
        Self::Slackpost,
        Self::Terrain,
        Self::Coldstart,
        Self::Datalocality,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hellojs => "hellojs",
            Self::Sleep => "sleep",
            Self::Matrixmult => "matrixMult",
            Self::Mongodb => "mongoDB",
            Self::Pycatj => "pycatj",
            Self::Slackpost => "slackpost",
            Self::Terrain => "terrain",
            Self::Coldstart => "coldstart",
            Self::Datalocality => "datalocality",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::Hellojs => "/fn/hello?name=Ada",
            Self::Sleep => "/fn/sleep",
            Self::Matrixmult => "/fn/matrix",
            Self::Mongodb => "/fn/document?key=small",
            Self::Pycatj => "/fn/equivalences",
            Self::Slackpost => "/fn/post",
            Self::Terrain => "/fn/terrain",
            Self::Coldstart => "/fn/cold",
            Self::Datalocality => "/fn/document?key=large",
        }
    }

    /// The load of the evaluation, or a short one.
    pub fn load(self, quick: bool) -> Load {
        let load = |users, requests, pause_s| Load { users, requests, pause: Duration::from_secs(pause_s) };
        match (self, quick) {
            (Self::Hellojs | Self::Matrixmult | Self::Mongodb | Self::Pycatj, false) => load(4, 200, 0),
            (Self::Hellojs | Self::Matrixmult | Self::Mongodb | Self::Pycatj, true) => load(4, 50, 0),
            (Self::Sleep, false) => load(4, 25, 0),
            (Self::Sleep, true) => load(4, 2, 0),
            (Self::Slackpost, false) => load(1, 100, 1),
            (Self::Slackpost, true) => load(1, 10, 0),
            (Self::Terrain, false) => load(1, 5, 20),
            (Self::Terrain, true) => load(1, 2, 1),
            (Self::Coldstart, false) => load(1, 3, 660),
            (Self::Coldstart, true) => load(1, 3, 5),
            (Self::Datalocality, false) => load(4, 50, 0),
            (Self::Datalocality, true) => load(2, 2, 0),
        }
    }

    /// The published average latency in ms: of the platform as it was, and of its best policy.
    pub fn published_ms(self) -> [f64; 2] {
        match self {
            Self::Hellojs => [1133.0, 724.0],
            Self::Sleep => [3775.0, 3554.0],
            Self::Matrixmult => [1324.0, 1453.0],
            Self::Mongodb => [1053.0, 794.0],
            Self::Pycatj => [831.0, 606.0],
            Self::Slackpost => [1543.0, 1101.0],
            Self::Terrain => [11932.0, 6364.0],
            Self::Coldstart => [6758.0, 8612.0],
            Self::Datalocality => [9870.0, 2817.0],
        }
    }
}
