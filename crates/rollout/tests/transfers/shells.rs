//! Nodes for the tests: each has a store in memory, a folder, and streams to the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, Candidate, Role};
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::{MemberStream, OpenStream, OpenStreamError};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use edgefaas_rollout::transfer::{
    ArtefactTraffic, Artefacts, ArtefactsParts, FetchBlobError, FetchedBlob, Holder,
};
use edgefaas_rollout::{Member, Members, Presence};

/// Virtual time for anything here.
const PATIENCE: Duration = Duration::from_secs(600);

/// A blob of random bytes.
pub fn blob(size: usize, seed: u64) -> (BlobDigest, Bytes) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let bytes: Vec<u8> = (0..size.div_ceil(4)).flat_map(|_| next().to_le_bytes()).take(size).collect();
    (BlobDigest(*blake3::hash(&bytes).as_bytes()), bytes.into())
}

/// A store in memory.
#[derive(Debug)]
pub struct TestStore {
    blobs: Mutex<BTreeMap<BlobDigest, Bytes>>,
    pub room_bytes: AtomicU64,
    pub wanted: Mutex<Option<BTreeSet<BlobDigest>>>,
}

impl TestStore {
    /// Deletes a blob.
    pub fn delete(&self, blob: BlobDigest) {
        self.blobs.lock().remove(&blob);
    }

    /// Other bytes under a digest.
    pub fn hold_damaged(&self, blob: BlobDigest, size: usize) {
        self.blobs.lock().insert(blob, vec![0; size].into());
    }
}

impl Holder for TestStore {
    fn size_bytes(&self, blob: &BlobDigest) -> Option<u64> {
        self.blobs.lock().get(blob).map(|bytes| bytes.len() as u64)
    }

    fn read(&self, blob: &BlobDigest) -> Option<Bytes> {
        self.blobs.lock().get(blob).cloned()
    }

    fn wanted(&self) -> Option<BTreeSet<BlobDigest>> {
        self.wanted.lock().clone()
    }

    fn room_bytes(&self) -> u64 {
        self.room_bytes.load(Ordering::Relaxed)
    }
}

/// Takes the streams that are opened to a node: the node that opens, and its stream.
pub type Accept = mpsc::UnboundedSender<(u64, MemberStream)>;

#[derive(Default)]
pub struct Shells {
    shells: BTreeMap<u64, Shell>,
    /// Accepts streams, by node.
    accepts: Arc<Mutex<BTreeMap<u64, Accept>>>,
    away: BTreeSet<u64>,
    folders: BTreeMap<u64, tempfile::TempDir>,
    stores: BTreeMap<u64, Arc<TestStore>>,
}

struct Shell {
    artefacts: Artefacts,
    members: watch::Sender<Arc<Members>>,
    running: JoinHandle<()>,
    accepting: JoinHandle<()>,
    _stop: DropGuard,
}

/// A fetch that runs.
pub struct Want {
    running: JoinHandle<Result<FetchedBlob, FetchBlobError>>,
    progress: watch::Receiver<u16>,
}

impl Want {
    /// Waits until this part has arrived, in thousandths.
    pub async fn reached(&self, permille: u16) {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|part| *part >= permille);
        tokio::time::timeout(PATIENCE, reached).await.expect("it goes on").expect("it runs");
        assert!(*self.progress.borrow() < 1000, "it is not complete");
    }
}

impl Future for Want {
    type Output = Result<FetchedBlob, FetchBlobError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.running).poll(context).map(|ended| ended.expect("no panic"))
    }
}

impl Drop for Want {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Shells {
    /// Starts a node, which reaches all others. It keeps its folder and its store over `kill`. It sends 1 MB in a second.
    pub fn start(&mut self, node: u64) {
        let folder = self.folders.entry(node).or_insert_with(|| tempfile::tempdir().expect("a folder"));
        let store = self.stores.entry(node).or_insert_with(|| {
            Arc::new(TestStore {
                blobs: Mutex::default(),
                room_bytes: AtomicU64::new(u64::MAX),
                wanted: Mutex::default(),
            })
        });
        let members = watch::Sender::new(Arc::default());
        let artefacts = Artefacts::new(ArtefactsParts {
            node_id: node,
            seed: 7,
            dir: folder.path().join("artefacts"),
            holder: store.clone(),
            open: opener(node, self.accepts.clone()),
            members: members.subscribe(),
            upload_bytes_per_second: Some(1_000_000),
        });
        let (accept, mut streams) = mpsc::unbounded_channel();
        self.accepts.lock().insert(node, accept);
        let accepting = tokio::spawn({
            let artefacts = artefacts.clone();
            async move {
                while let Some((from, stream)) = streams.recv().await {
                    artefacts.incoming(from, stream).await;
                }
            }
        });
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let (artefacts, stop) = (artefacts.clone(), stop.clone());
            async move { artefacts.run(stop).await }
        });
        let stop = stop.drop_guard();
        let shell = Shell { artefacts, members, running, accepting, _stop: stop };
        self.shells.insert(node, shell);
        self.away.remove(&node);
        self.announce();
    }

    /// A node of the test's own, to which others open streams.
    pub fn add_foreign(&mut self, node: u64, accept: Accept) {
        self.accepts.lock().insert(node, accept);
        self.announce();
    }

    /// Streams from a node of the test's own.
    pub fn opener(&self, node: u64) -> OpenStream {
        opener(node, self.accepts.clone())
    }

    /// Ends a node without notice; the others see it disconnected.
    pub fn kill(&mut self, node: u64) {
        self.kill_unnoticed(node);
        self.accepts.lock().remove(&node);
        self.announce();
    }

    /// The same; the others do not see it.
    pub fn kill_unnoticed(&mut self, node: u64) {
        if let Some(shell) = self.shells.remove(&node) {
            shell.running.abort();
            shell.accepting.abort();
        }
    }

    pub fn candidates(&self, roles: impl IntoIterator<Item = (u64, Role)>) -> Vec<Candidate> {
        let candidate = |(other, role)| Candidate { node: NodeId(other), zone: "".into(), role };
        roles.into_iter().map(candidate).collect()
    }

    /// Publishes the members to all nodes.
    fn announce(&self) {
        let nodes: Vec<u64> = self.accepts.lock().keys().copied().collect();
        for (node, shell) in &self.shells {
            let member = |other: &u64| Member {
                node_id: *other,
                name: format!("n{other}"),
                presence: if self.away.contains(other) { Presence::Away } else { Presence::Connected },
                ..Member::default()
            };
            let others = nodes.iter().filter(|other| *other != node).map(member).collect();
            shell.members.send_replace(Arc::new(Members { me: member(node), others }));
        }
    }

    /// Cuts the connections with a node, which runs on.
    pub fn disconnect(&mut self, node: u64) {
        self.away.insert(node);
        self.announce();
        let others: Vec<u64> = self.shells.keys().copied().filter(|other| *other != node).collect();
        if let Some(shell) = self.shells.get(&node) {
            let others = others.into_iter().map(|other| Member {
                node_id: other,
                presence: Presence::Away,
                ..Member::default()
            });
            shell
                .members
                .send_replace(Arc::new(Members { me: Member::default(), others: others.collect() }));
        }
    }

    /// Connects a node again.
    pub fn connect(&mut self, node: u64) {
        self.away.remove(&node);
        self.announce();
    }

    pub fn hold(&self, node: u64, bytes: &Bytes) {
        let digest = BlobDigest(*blake3::hash(bytes).as_bytes());
        self.stores[&node].blobs.lock().insert(digest, bytes.clone());
    }

    pub fn store(&self, node: u64) -> &TestStore {
        &self.stores[&node]
    }

    pub fn artefacts(&self, node: u64) -> &Artefacts {
        &self.shells[&node].artefacts
    }

    pub fn traffic(&self, node: u64) -> ArtefactTraffic {
        self.artefacts(node).traffic()
    }

    pub fn part_file(&self, node: u64, blob: BlobDigest) -> PathBuf {
        self.folders[&node].path().join("artefacts").join(format!("{blob}.part"))
    }

    /// Starts a fetch.
    pub fn fetch(
        &self,
        node: u64,
        blob: BlobDigest,
        candidates: impl IntoIterator<Item = (u64, Role)>,
    ) -> Want {
        let candidates = self.candidates(candidates);
        let artefacts = self.artefacts(node).clone();
        let (sender, progress) = watch::channel(0);
        let running = tokio::spawn(async move {
            let fetch = artefacts.fetch(blob, candidates, sender);
            tokio::time::timeout(PATIENCE, fetch).await.expect("it ends")
        });
        Want { running, progress }
    }

    /// Waits until something is so.
    pub async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(tokio::time::Instant::now() < end, "it never is so");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn opener(from: u64, accepts: Arc<Mutex<BTreeMap<u64, Accept>>>) -> OpenStream {
    Arc::new(move |to| {
        let accept = accepts.lock().get(&to).cloned();
        Box::pin(async move {
            let accept = accept.ok_or(OpenStreamError::Gone { node_id: to })?;
            let (near, far) = tokio::io::duplex(128 << 10);
            accept.send((from, Box::pin(far))).map_err(|_| OpenStreamError::Gone { node_id: to })?;
            Ok(Box::pin(near) as MemberStream)
        })
    })
}
