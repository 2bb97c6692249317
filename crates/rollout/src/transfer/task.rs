//! The task that owns the machine, the files and the streams.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_cluster::artefacts::wire::{Chunk, Kind, Message};
use edgefaas_cluster::artefacts::{
    BlobDigest, Candidate, Event, Output, Resumed, Settings, Transfers, Tree,
};
use edgefaas_cluster::replication::NodeId;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use super::part_file::{self, PartFile};
use super::peers::{NotSent, Peers};
use super::served::{Content, Served};
use super::streams::StreamEnd;
use super::{ArtefactsParts, Command, FetchBlobError, FetchedBlob, STORE_COPIES, Traffic, Waiter};
use crate::members::Presence;

/// Reports of streams and jobs that wait for the task.
const REPORTS: usize = 64;
/// Time without a member that has any of a blob after which its fetch fails.
const NO_HOLDER_AFTER: Duration = Duration::from_secs(15);
/// Pause between two looks at files that are no longer needed, and at fetches that nobody waits for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Time after which the file of a blob that nothing has fetched meanwhile is removed.
const MAX_UNUSED: Duration = Duration::from_secs(3600);

struct Task {
    parts: ArtefactsParts,
    machine: Transfers,
    started: Instant,
    fetches: BTreeMap<BlobDigest, Running>,
    /// Files of blobs that are being fetched, or have been and are not in the store yet.
    files: BTreeMap<BlobDigest, PartFile>,
    /// Since when nothing has fetched the blob of a file.
    unused: BTreeMap<BlobDigest, Instant>,
    served: Served,
    loading: BTreeMap<BlobDigest, Loading>,
    memory: Memory,
    peers: Peers,
    zone: Arc<str>,
    jobs: JoinSet<()>,
    reports: mpsc::Sender<Report>,
    /// Number of fetches so far, to know reports of earlier ones.
    fetches_begun: u64,
}

struct Running {
    /// Its number among all fetches: one that begins while a job of an earlier one still runs has nothing to do with that.
    number: u64,
    waiters: Vec<Waiter>,
    candidates: Vec<Candidate>,
    stage: Stage,
    /// The time since which no member has any of it.
    no_source_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The file of an earlier fetch is read.
    Opening,
    Fetching,
    /// The whole blob is read and verified.
    Finishing,
}

/// A blob of the store that is being read.
#[derive(Default)]
struct Loading {
    /// The machine has asked for it.
    is_lookup: bool,
    /// Chunks to send: the member, its request, and the index.
    chunks: Vec<(u64, u32, usize)>,
}

/// What streams and jobs report to the task.
pub(super) enum Report {
    Message { node_id: u64, session: u64, message: Message },
    Ended { node_id: u64, session: u64, end: StreamEnd },
    Opened { blob: BlobDigest, fetch: u64, result: io::Result<Opened> },
    Loaded { blob: BlobDigest, content: Option<Content> },
    Finished { blob: BlobDigest, fetch: u64, result: Result<FetchedBlob, FetchBlobError> },
}

/// What a node has of a blob when its fetch begins.
pub(super) struct Opened {
    file: Option<(PartFile, Resumed)>,
    is_stored: bool,
}

pub(super) async fn run(
    parts: ArtefactsParts,
    (traffic, dropped): (Arc<Traffic>, Arc<Notify>),
    mut commands: mpsc::Receiver<Command>,
    shutdown: CancellationToken,
) {
    let (reports, mut reported) = mpsc::channel(REPORTS);
    let settings = Settings { seed: parts.seed, upload_bytes_per_second: parts.upload_bytes_per_second };
    let mut members = parts.members.clone();
    let mut task = Task {
        machine: Transfers::new(NodeId(parts.node_id), settings),
        peers: Peers::new(parts.open.clone(), reports.clone(), traffic),
        parts,
        started: Instant::now(),
        fetches: BTreeMap::new(),
        files: BTreeMap::new(),
        unused: BTreeMap::new(),
        served: Served::default(),
        loading: BTreeMap::new(),
        memory: Memory::new(),
        zone: "".into(),
        jobs: JoinSet::new(),
        reports,
        fetches_begun: 0,
    };
    let dir = task.parts.dir.clone();
    if let Err(error) = blocking(move || std::fs::create_dir_all(dir)).await {
        tracing::error!(dir = %task.parts.dir.display(), %error, "the folder of unfinished artefacts cannot be created");
    }
    members.mark_changed();
    let mut sweep_at = Instant::now();
    loop {
        let tick = task.machine.next_deadline().map(|due| task.started + due);
        let due = [tick, task.peers.next_reopening()];
        let due = due.into_iter().flatten().fold(sweep_at, Instant::min);
        tokio::select! {
            () = shutdown.cancelled() => return,
            command = commands.recv() => match command {
                Some(command) => task.command(command).await,
                None => return,
            },
            () = dropped.notified() => task.end_dropped().await,
            Some(report) = reported.recv() => task.report(report).await,
            Ok(()) = members.changed() => task.members_changed().await,
            Some(ended) = task.jobs.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "reading an artefact failed");
            },
            () = tokio::time::sleep_until(due) => {
                let now = Instant::now();
                for node_id in task.peers.reopened(now) {
                    task.handle(Event::PeerUp { node: NodeId(node_id) }).await;
                }
                if now >= sweep_at {
                    sweep_at = now + SWEEP_EVERY;
                    task.sweep().await;
                }
                task.handle(Event::Tick).await;
            }
        }
    }
}

impl Task {
    async fn command(&mut self, command: Command) {
        match command {
            Command::Want { blob, candidates, waiter } => self.want(blob, candidates, waiter).await,
            Command::Candidates { blob, candidates } => self.set_candidates(blob, candidates).await,
            Command::Forget { blob } => {
                self.remove_file(blob).await;
                self.end(blob, || FetchBlobError::NoHolder);
                self.handle(Event::Forget { blob }).await;
            }
            Command::Incoming { node_id, stream } => {
                if self.peers.incoming(node_id, stream) {
                    self.handle(Event::PeerDown { node: NodeId(node_id) }).await;
                    self.handle(Event::PeerUp { node: NodeId(node_id) }).await;
                }
            }
        }
    }

    async fn members_changed(&mut self) {
        let members = self.parts.members.borrow_and_update().clone();
        if *self.zone != *members.me.zone {
            self.zone = members.me.zone.as_str().into();
            self.handle(Event::LocalZone(self.zone.clone())).await;
        }
        let connected = members.others.iter().filter(|other| other.presence == Presence::Connected);
        let connected: BTreeSet<u64> = connected.map(|other| other.node_id).collect();
        let before: BTreeSet<u64> = self.peers.up().collect();
        for node_id in before.difference(&connected) {
            self.peers.remove(*node_id);
            self.handle(Event::PeerDown { node: NodeId(*node_id) }).await;
        }
        for node_id in connected.difference(&before) {
            self.peers.set_up(*node_id);
            self.handle(Event::PeerUp { node: NodeId(*node_id) }).await;
        }
    }

    async fn want(&mut self, blob: BlobDigest, candidates: Vec<Candidate>, waiter: Waiter) {
        if waiter.done.is_closed() {
            // It was dropped before the command arrived.
            return;
        }
        self.unused.remove(&blob);
        if let Some(running) = self.fetches.get_mut(&blob) {
            running.waiters.push(waiter);
            return self.set_candidates(blob, candidates).await;
        }
        self.fetches_begun += 1;
        let fetch = self.fetches_begun;
        let running = Running {
            number: fetch,
            waiters: vec![waiter],
            candidates,
            stage: Stage::Opening,
            no_source_since: None,
        };
        self.fetches.insert(blob, running);
        let (dir, holder, reports) =
            (self.parts.dir.clone(), self.parts.holder.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let opened = blocking(move || {
                let file = PartFile::resume(&dir, &blob)?;
                Ok(Opened { file, is_stored: holder.size_bytes(&blob).is_some() })
            });
            let result = opened.await;
            let _ = reports.send(Report::Opened { blob, fetch, result }).await;
        });
    }

    async fn set_candidates(&mut self, blob: BlobDigest, candidates: Vec<Candidate>) {
        let Some(running) = self.fetches.get_mut(&blob) else { return };
        running.candidates.clone_from(&candidates);
        if running.stage == Stage::Fetching {
            self.handle(Event::Want { blob, candidates, resumed: None }).await;
        }
    }

    async fn report(&mut self, report: Report) {
        match report {
            Report::Message { node_id, session, message } => {
                if self.peers.is_current(node_id, session) {
                    self.peers.received(node_id);
                    self.handle(Event::Received { node: NodeId(node_id), message }).await;
                }
            }
            Report::Ended { node_id, session, end } => {
                if self.peers.is_current(node_id, session) {
                    tracing::debug!(node_id, %end, "a stream of artefacts has ended");
                    self.peers.end_session(node_id);
                    self.handle(Event::PeerDown { node: NodeId(node_id) }).await;
                }
            }
            Report::Opened { blob, fetch, result } => self.opened(blob, fetch, result).await,
            Report::Loaded { blob, content } => self.loaded(blob, content).await,
            Report::Finished { blob, fetch, result } => self.finished(blob, fetch, result).await,
        }
    }

    async fn opened(&mut self, blob: BlobDigest, fetch: u64, result: io::Result<Opened>) {
        let Some(running) = self.fetches.get_mut(&blob).filter(|running| running.number == fetch) else {
            return;
        };
        running.stage = Stage::Fetching;
        let candidates = running.candidates.clone();
        let resumed = match result {
            Ok(Opened { file, is_stored }) => {
                let is_whole = file.as_ref().is_some_and(|(_, resumed)| resumed.chunks.is_full());
                if !is_stored && !is_whole {
                    // The machine may know the whole blob from a time at which the store had it.
                    self.served.remove(&blob);
                    self.handle(Event::Forget { blob }).await;
                }
                match file {
                    // What the store has is taken from there.
                    Some(_) if is_stored && !is_whole => None,
                    Some((file, resumed)) => {
                        self.files.insert(blob, file);
                        Some(resumed)
                    }
                    None => None,
                }
            }
            Err(error) => {
                let mut events = Vec::new();
                self.file_failed(blob, error, &mut events).await;
                return self.handle_all(events).await;
            }
        };
        self.handle(Event::Want { blob, candidates, resumed }).await;
    }

    async fn handle(&mut self, event: Event) {
        self.handle_all(vec![event]).await;
    }

    async fn handle_all(&mut self, mut events: Vec<Event>) {
        while let Some(event) = events.pop() {
            for output in self.machine.handle(event, self.started.elapsed()) {
                self.carry_out(output, &mut events).await;
            }
        }
        for (blob, running) in &self.fetches {
            if let Some(permille) = self.machine.permille(blob) {
                for waiter in &running.waiters {
                    waiter
                        .progress
                        .send_if_modified(|before| std::mem::replace(before, permille) != permille);
                }
            }
        }
    }

    async fn carry_out(&mut self, output: Output, events: &mut Vec<Event>) {
        match output {
            Output::Send { node, message } => self.send(node.0, message, events),
            Output::SendChunk { node, blob, request, index } => {
                self.send_chunk(blob, (node.0, request, index), events).await;
            }
            Output::Lookup { blob } => match self.served.get(&blob, Instant::now()) {
                Some(content) => events.push(Event::Found { blob, tree: Some(content.tree) }),
                None => self.load(blob).is_lookup = true,
            },
            Output::Begin { blob, tree } => self.begin(blob, tree, events).await,
            Output::Store { blob, offset, bytes } => {
                let Some(file) = self.files.get(&blob).cloned() else { return };
                if let Some(running) = self.fetches.get_mut(&blob) {
                    running.no_source_since = None;
                }
                let holder = self.parts.holder.clone();
                let needed_bytes = bytes.len() as u64;
                let written = blocking(move || {
                    let room_bytes = holder.room_bytes();
                    if room_bytes < needed_bytes {
                        return Ok(Some(room_bytes));
                    }
                    file.write(offset, &bytes).map(|()| None)
                });
                match written.await {
                    Ok(None) => {}
                    Ok(Some(room_bytes)) => self.disk_full(blob, room_bytes, needed_bytes, events).await,
                    Err(error) => self.file_failed(blob, error, events).await,
                }
            }
            Output::Complete { blob } => self.complete(blob),
            Output::Blame { node, blob } => {
                tracing::warn!(node_id = node.0, %blob, "a member has sent bytes that do not match the digest");
            }
        }
    }

    /// Checks that the disk has room, and creates the file unless it is resumed.
    async fn begin(&mut self, blob: BlobDigest, tree: Arc<Tree>, events: &mut Vec<Event>) {
        let file = self.files.get(&blob).cloned();
        let (dir, holder) = (self.parts.dir.clone(), self.parts.holder.clone());
        let begun = blocking(move || {
            let missing_bytes = match &file {
                Some(file) => file.missing_bytes()?,
                None => tree.size_bytes(),
            };
            let needed_bytes = missing_bytes.saturating_add(STORE_COPIES.saturating_mul(tree.size_bytes()));
            let room_bytes = holder.room_bytes();
            if room_bytes < needed_bytes {
                return Ok(Err((room_bytes, needed_bytes)));
            }
            match file {
                Some(file) => Ok(Ok(file)),
                None => PartFile::create(&dir, &blob, tree).map(Ok),
            }
        });
        match begun.await {
            Ok(Ok(file)) => {
                self.files.insert(blob, file);
            }
            Ok(Err((room_bytes, needed_bytes))) => {
                self.disk_full(blob, room_bytes, needed_bytes, events).await;
            }
            Err(error) => self.file_failed(blob, error, events).await,
        }
    }

    /// Reads the whole blob, verifies it and hands it to those that wait.
    fn complete(&mut self, blob: BlobDigest) {
        let Some(running) = self.fetches.get_mut(&blob) else { return };
        running.stage = Stage::Finishing;
        let fetch = running.number;
        let path = part_file::path(&self.parts.dir, &blob);
        let (file, holder) = (self.files.get(&blob).cloned(), self.parts.holder.clone());
        let (memory, reports) = (self.memory.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let size_bytes = match &file {
                Some(file) => file.size_bytes(),
                None => {
                    let holder = holder.clone();
                    let size = blocking(move || Ok(holder.size_bytes(&blob))).await;
                    size.ok().flatten().unwrap_or(0)
                }
            };
            let taken = memory.take(size_bytes).await;
            let read = blocking(move || {
                let bytes = match file {
                    Some(file) => Some(file.finish()?),
                    // It was served from the store.
                    None => holder.read(&blob),
                };
                Ok(bytes.filter(|bytes| *blake3::hash(bytes).as_bytes() == blob.0))
            });
            let result = match read.await {
                Ok(Some(bytes)) => Ok(FetchedBlob { bytes, _taken: Arc::new(taken) }),
                Ok(None) => Err(FetchBlobError::Damaged { path }),
                Err(error) => Err(FetchBlobError::File { path, error }),
            };
            let _ = reports.send(Report::Finished { blob, fetch, result }).await;
        });
    }

    async fn finished(
        &mut self,
        blob: BlobDigest,
        fetch: u64,
        result: Result<FetchedBlob, FetchBlobError>,
    ) {
        if self.fetches.get(&blob).is_none_or(|running| running.number != fetch) {
            return;
        }
        match result {
            Ok(fetched) => {
                let running = self.fetches.remove(&blob);
                for waiter in running.map(|running| running.waiters).unwrap_or_default() {
                    waiter.progress.send_replace(1000);
                    let _ = waiter.done.send(Ok(fetched.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%blob, %error, "a fetched artefact is refused");
                self.remove_file(blob).await;
                let mut error = Some(error);
                let path = part_file::path(&self.parts.dir, &blob);
                self.end(blob, || {
                    error.take().unwrap_or_else(|| FetchBlobError::Damaged { path: path.clone() })
                });
                self.handle(Event::Forget { blob }).await;
            }
        }
    }

    async fn disk_full(
        &mut self,
        blob: BlobDigest,
        room_bytes: u64,
        needed_bytes: u64,
        events: &mut Vec<Event>,
    ) {
        // The room is for the store: what has arrived goes.
        self.remove_file(blob).await;
        self.end(blob, || FetchBlobError::DiskFull { room_bytes, needed_bytes });
        events.push(Event::Forget { blob });
    }

    async fn file_failed(&mut self, blob: BlobDigest, error: io::Error, events: &mut Vec<Event>) {
        if error.kind() == io::ErrorKind::StorageFull {
            let needed_bytes = self.files.get(&blob).map_or(0, PartFile::size_bytes);
            return self.disk_full(blob, 0, needed_bytes, events).await;
        }
        let path = part_file::path(&self.parts.dir, &blob);
        let kind = error.kind();
        tracing::warn!(path = %path.display(), %error, "the file of an artefact failed");
        self.end(blob, || FetchBlobError::File { path: path.clone(), error: kind.into() });
        self.files.remove(&blob);
        events.push(Event::Forget { blob });
    }

    /// Ends a fetch with an error.
    fn end(&mut self, blob: BlobDigest, mut error: impl FnMut() -> FetchBlobError) {
        for waiter in self.fetches.remove(&blob).map(|running| running.waiters).unwrap_or_default() {
            let _ = waiter.done.send(Err(error()));
        }
    }

    fn send(&mut self, node_id: u64, message: Message, events: &mut Vec<Event>) {
        if let Err(NotSent) = self.peers.send(node_id, message) {
            events.push(Event::PeerDown { node: NodeId(node_id) });
        }
    }

    async fn send_chunk(
        &mut self,
        blob: BlobDigest,
        (node_id, request, index): (u64, u32, usize),
        events: &mut Vec<Event>,
    ) {
        let read = if let Some(file) = self.files.get(&blob).cloned() {
            blocking(move || file.read_chunk(index)).await
        } else if let Some(content) = self.served.get(&blob, Instant::now()) {
            blocking(move || content.read_chunk(index)).await
        } else {
            return self.load(blob).chunks.push((node_id, request, index));
        };
        match read {
            Ok(bytes) => {
                let chunk = Chunk { id: request, index: index as u32, bytes };
                self.send(node_id, Message::new(blob, Kind::Chunk(chunk)), events);
            }
            Err(error) => {
                tracing::warn!(%blob, %error, "a chunk of an artefact cannot be read");
                self.served.remove(&blob);
                if !self.fetches.contains_key(&blob) {
                    events.push(Event::Forget { blob });
                }
            }
        }
    }

    /// Reads a blob of the store, unless that is under way.
    fn load(&mut self, blob: BlobDigest) -> &mut Loading {
        let (dir, holder) = (self.parts.dir.clone(), self.parts.holder.clone());
        let (memory, reports) = (self.memory.clone(), self.reports.clone());
        let jobs = &mut self.jobs;
        self.loading.entry(blob).or_insert_with(|| {
            jobs.spawn(async move {
                let sized = holder.clone();
                let size = blocking(move || Ok(sized.size_bytes(&blob))).await.ok().flatten();
                let content = match size {
                    Some(size_bytes) => {
                        let _taken = memory.take(size_bytes).await;
                        let read = blocking(move || Ok(Content::load(&dir, &*holder, &blob)));
                        read.await.ok().flatten()
                    }
                    None => None,
                };
                let _ = reports.send(Report::Loaded { blob, content }).await;
            });
            Loading::default()
        })
    }

    async fn loaded(&mut self, blob: BlobDigest, content: Option<Content>) {
        let Loading { is_lookup, chunks } = self.loading.remove(&blob).unwrap_or_default();
        let tree = content.as_ref().map(|content| content.tree.clone());
        let mut events = Vec::new();
        match content {
            Some(content) => {
                self.served.insert(blob, content, Instant::now());
                for chunk in chunks {
                    self.send_chunk(blob, chunk, &mut events).await;
                }
            }
            // It was deleted meanwhile.
            None if !chunks.is_empty() && !self.fetches.contains_key(&blob) => {
                events.push(Event::Forget { blob });
            }
            None => {}
        }
        if is_lookup {
            events.push(Event::Found { blob, tree });
        }
        self.handle_all(events).await;
    }

    /// Ends fetches that nobody waits for.
    async fn end_dropped(&mut self) {
        let mut dropped = Vec::new();
        for (blob, running) in &mut self.fetches {
            running.waiters.retain(|waiter| !waiter.done.is_closed());
            if running.waiters.is_empty() {
                dropped.push(*blob);
            }
        }
        for blob in dropped {
            self.end_without_source(blob).await;
        }
    }

    async fn end_without_source(&mut self, blob: BlobDigest) {
        self.end(blob, || FetchBlobError::NoHolder);
        self.files.remove(&blob);
        self.handle(Event::Forget { blob }).await;
    }

    /// Ends fetches without a holder, and removes files that are no longer needed.
    async fn sweep(&mut self) {
        let now = Instant::now();
        self.served.sweep(now);
        self.peers.reap();
        let mut without_source = Vec::new();
        for (blob, running) in &mut self.fetches {
            if self.machine.has_no_source(blob) {
                let since = *running.no_source_since.get_or_insert(now);
                without_source.extend((now.duration_since(since) >= NO_HOLDER_AFTER).then_some(*blob));
            } else {
                running.no_source_since = None;
            }
        }
        for blob in without_source {
            self.end_without_source(blob).await;
        }
        self.remove_unneeded(now).await;
    }

    /// Removes files of blobs that the store has or does not want, and of those that nothing has fetched for long.
    async fn remove_unneeded(&mut self, now: Instant) {
        let (dir, holder) = (self.parts.dir.clone(), self.parts.holder.clone());
        let listed = blocking(move || {
            let blobs = part_file::list(&dir)?;
            if blobs.is_empty() {
                return Ok(Vec::new());
            }
            let wanted = holder.wanted();
            let is_needed = |blob: &BlobDigest| {
                wanted.as_ref().is_none_or(|wanted| wanted.contains(blob))
                    && holder.size_bytes(blob).is_none()
            };
            Ok(blobs.into_iter().map(|blob| (blob, is_needed(&blob))).collect::<Vec<_>>())
        });
        let listed = match listed.await {
            Ok(listed) => listed,
            Err(error) => {
                return tracing::warn!(dir = %self.parts.dir.display(), %error, "unfinished artefacts cannot be listed");
            }
        };
        self.unused.retain(|blob, _| listed.iter().any(|(listed, _)| listed == blob));
        for (blob, is_needed) in listed {
            if self.fetches.contains_key(&blob) {
                continue;
            }
            let unused = now.duration_since(*self.unused.entry(blob).or_insert(now));
            if !is_needed || unused >= MAX_UNUSED {
                self.unused.remove(&blob);
                self.remove_file(blob).await;
            }
        }
    }

    async fn remove_file(&mut self, blob: BlobDigest) {
        self.files.remove(&blob);
        let path = part_file::path(&self.parts.dir, &blob);
        if let Err(error) = blocking(move || remove_if_there(&path)).await {
            tracing::warn!(%blob, %error, "the file of an artefact cannot be removed");
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs work on the disk on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
