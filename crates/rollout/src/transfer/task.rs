//! The task that owns the machine, the files and the streams.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::wire::{Chunk, Kind, Message};
use edgefaas_cluster::artefacts::{BlobDigest, Candidate, Event, Output, Settings, Transfers, Tree};
use edgefaas_cluster::replication::NodeId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::part_file::{self, PartFile};
use super::streams::{self, OUTBOX, PeerIo};
use super::{ArtefactsParts, Command, FetchBlobError, Waiter};

/// Messages of all members that wait for the task.
const RECEIVED: usize = 64;
/// Pause before a stream that broke is opened again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// Time without a member that has any of a blob after which its fetch fails.
const NO_HOLDER_AFTER: Duration = Duration::from_secs(15);
/// Pause between two looks at files that are no longer needed, and at fetches that nobody waits for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Age at which the file of a blob that nobody fetches is removed.
const MAX_FILE_AGE: Duration = Duration::from_secs(14 * 24 * 3600);
/// Time for which the bytes of the blob that was served last stay in memory.
const KEEP_SERVED: Duration = Duration::from_secs(10);

struct Task {
    parts: ArtefactsParts,
    machine: Transfers,
    started: Instant,
    fetches: BTreeMap<BlobDigest, Running>,
    files: BTreeMap<BlobDigest, PartFile>,
    peers: BTreeMap<u64, Peer>,
    tasks: JoinSet<()>,
    reports: mpsc::Sender<Report>,
    /// The blob of the store that was served last.
    served: Option<(BlobDigest, Arc<Tree>, Bytes, Instant)>,
}

struct Running {
    waiters: Vec<Waiter>,
    /// The time since which no member has any of it.
    no_source_since: Option<Instant>,
}

#[derive(Default)]
struct Peer {
    is_up: bool,
    outbox: Option<mpsc::Sender<Message>>,
    /// Cancels the reader.
    reader: Option<tokio_util::sync::DropGuard>,
    /// Counts streams, to know reports of earlier ones.
    generation: u64,
    reopen_at: Option<Instant>,
}

enum Report {
    Message { node_id: u64, generation: u64, message: Message },
    Broken { node_id: u64, generation: u64, error: io::Error },
}

pub(super) async fn run(
    parts: ArtefactsParts,
    mut commands: mpsc::Receiver<Command>,
    shutdown: CancellationToken,
) {
    let (reports, mut reported) = mpsc::channel(RECEIVED);
    let settings = Settings { seed: parts.seed, upload_bytes_per_second: parts.upload_bytes_per_second };
    let mut task = Task {
        machine: Transfers::new(NodeId(parts.node_id), settings),
        parts,
        started: Instant::now(),
        fetches: BTreeMap::new(),
        files: BTreeMap::new(),
        peers: BTreeMap::new(),
        tasks: JoinSet::new(),
        reports,
        served: None,
    };
    let dir = task.parts.dir.clone();
    if let Err(error) = blocking(move || std::fs::create_dir_all(dir)).await {
        tracing::error!(dir = %task.parts.dir.display(), %error, "the folder of unfinished artefacts cannot be created");
    }
    let mut sweep_at = Instant::now();
    loop {
        let tick = task.machine.next_deadline().map(|due| task.started + due);
        let tick = tick.map_or(sweep_at, |tick| tick.min(sweep_at));
        tokio::select! {
            () = shutdown.cancelled() => return,
            command = commands.recv() => match command {
                Some(command) => task.command(command).await,
                None => return,
            },
            Some(report) = reported.recv() => task.report(report).await,
            Some(_) = task.tasks.join_next() => {}
            () = tokio::time::sleep_until(tick) => {
                if Instant::now() >= sweep_at {
                    sweep_at = Instant::now() + SWEEP_EVERY;
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
            Command::Candidates { blob, candidates } => {
                if self.fetches.contains_key(&blob) {
                    self.handle(Event::Want { blob, candidates, resumed: None }).await;
                }
            }
            Command::Forget { blob } => {
                self.fail(blob, || FetchBlobError::NoHolder).await;
                self.remove_file(blob).await;
            }
            Command::LocalZone(zone) => self.handle(Event::LocalZone(zone)).await,
            Command::PeerUp(node_id) => {
                self.peers.entry(node_id).or_default().is_up = true;
                self.handle(Event::PeerUp { node: NodeId(node_id) }).await;
            }
            Command::PeerDown(node_id) => {
                self.peers.remove(&node_id);
                self.handle(Event::PeerDown { node: NodeId(node_id) }).await;
            }
            Command::Incoming { node_id, stream } => self.incoming(node_id, stream),
        }
    }

    async fn want(&mut self, blob: BlobDigest, candidates: Vec<Candidate>, waiter: Waiter) {
        if let Some(running) = self.fetches.get_mut(&blob) {
            running.waiters.push(waiter);
            return self.handle(Event::Want { blob, candidates, resumed: None }).await;
        }
        self.fetches.insert(blob, Running { waiters: vec![waiter], no_source_since: None });
        let dir = self.parts.dir.clone();
        let resumed = match blocking(move || PartFile::resume(&dir, &blob)).await {
            Ok(Some((file, resumed))) => {
                self.files.insert(blob, file);
                Some(resumed)
            }
            Ok(None) => None,
            Err(error) => {
                let path = part_file::path(&self.parts.dir, &blob);
                let kind = error.kind();
                let failed = || FetchBlobError::File { path: path.clone(), error: kind.into() };
                return self.fail(blob, failed).await;
            }
        };
        self.handle(Event::Want { blob, candidates, resumed }).await;
    }

    fn incoming(&mut self, node_id: u64, mut stream: Box<dyn PeerIo>) {
        let peer = self.peers.entry(node_id).or_default();
        let generation = peer.generation;
        let cancel = CancellationToken::new();
        peer.reader = Some(cancel.clone().drop_guard());
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            let read = async {
                loop {
                    let report = match streams::read(&mut stream).await {
                        Ok(Some(message)) => Report::Message { node_id, generation, message },
                        Ok(None) => return,
                        Err(error) => Report::Broken { node_id, generation, error },
                    };
                    let is_broken = matches!(report, Report::Broken { .. });
                    if reports.send(report).await.is_err() || is_broken {
                        return;
                    }
                }
            };
            cancel.run_until_cancelled(read).await;
        });
    }

    async fn report(&mut self, report: Report) {
        match report {
            Report::Message { node_id, generation, message } => {
                if self.peers.get(&node_id).is_some_and(|peer| peer.generation == generation) {
                    self.handle(Event::Received { node: NodeId(node_id), message }).await;
                }
            }
            Report::Broken { node_id, generation, error } => {
                if self.peers.get(&node_id).is_some_and(|peer| peer.generation == generation) {
                    tracing::debug!(node_id, %error, "a stream of artefacts broke");
                    self.reset(node_id).await;
                }
            }
        }
    }

    /// Ends the streams of a member and opens them again later.
    async fn reset(&mut self, node_id: u64) {
        if let Some(peer) = self.peers.get_mut(&node_id) {
            peer.generation += 1;
            peer.outbox = None;
            peer.reader = None;
            peer.reopen_at = Some(Instant::now() + REOPEN_AFTER);
        }
        Box::pin(self.handle(Event::PeerDown { node: NodeId(node_id) })).await;
    }

    async fn handle(&mut self, event: Event) {
        let mut events = vec![event];
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
                match self.read_chunk(blob, index).await {
                    Some(bytes) => {
                        let chunk = Chunk { id: request, index: index as u32, bytes };
                        self.send(node.0, Message::new(blob, Kind::Chunk(chunk)), events);
                    }
                    // It was deleted meanwhile.
                    None if !self.fetches.contains_key(&blob) => events.push(Event::Forget { blob }),
                    None => {}
                }
            }
            Output::Lookup { blob } => {
                let tree = self.load(blob).await.map(|(tree, _)| tree);
                events.push(Event::Found { blob, tree });
            }
            Output::Begin { blob, tree } => {
                if self.files.contains_key(&blob) {
                    return;
                }
                let needed_bytes = tree.size_bytes();
                let (dir, holder) = (self.parts.dir.clone(), self.parts.holder.clone());
                let room_bytes = blocking(move || Ok(holder.room_bytes())).await.unwrap_or(0);
                if room_bytes < needed_bytes {
                    self.end(blob, || FetchBlobError::DiskFull { room_bytes, needed_bytes });
                    return events.push(Event::Forget { blob });
                }
                match blocking(move || PartFile::create(&dir, &blob, tree)).await {
                    Ok(file) => {
                        self.files.insert(blob, file);
                    }
                    Err(error) => self.file_failed(blob, error, events),
                }
            }
            Output::Store { blob, offset, bytes } => {
                let Some(file) = self.files.get(&blob).cloned() else { return };
                let (holder, needed_bytes) = (self.parts.holder.clone(), bytes.len() as u64);
                let room_bytes = blocking(move || Ok(holder.room_bytes())).await.unwrap_or(0);
                if room_bytes < needed_bytes {
                    // The room is for the store: what has arrived goes.
                    self.end(blob, || FetchBlobError::DiskFull { room_bytes, needed_bytes });
                    self.remove_file(blob).await;
                    return events.push(Event::Forget { blob });
                }
                if let Err(error) = blocking(move || file.write(offset, &bytes)).await {
                    self.file_failed(blob, error, events);
                }
            }
            Output::Complete { blob } => self.complete(blob, events).await,
            Output::Blame { node, blob } => {
                tracing::warn!(node_id = node.0, %blob, "a member has sent bytes that do not match the digest");
            }
        }
    }

    async fn complete(&mut self, blob: BlobDigest, events: &mut Vec<Event>) {
        let finished = match self.files.get(&blob).cloned() {
            Some(file) => {
                let path = file.path().to_owned();
                let checked = blocking(move || {
                    let bytes = file.finish()?;
                    let is_right = Tree::of(&bytes).is_ok_and(|(digest, _)| digest == blob);
                    Ok(is_right.then_some(bytes))
                });
                checked.await.map(|bytes| (bytes, path))
            }
            // It was served from the store.
            None => {
                let holder = self.parts.holder.clone();
                let read = blocking(move || Ok(holder.read(&blob))).await;
                read.map(|bytes| (bytes, part_file::path(&self.parts.dir, &blob)))
            }
        };
        match finished {
            Ok((Some(bytes), _)) => {
                for waiter in self.fetches.remove(&blob).map(|running| running.waiters).unwrap_or_default()
                {
                    waiter.progress.send_replace(1000);
                    let _ = waiter.done.send(Ok(bytes.clone()));
                }
            }
            Ok((None, path)) => {
                self.end(blob, || FetchBlobError::Damaged { path: path.clone() });
                self.remove_file(blob).await;
                events.push(Event::Forget { blob });
            }
            Err(error) => self.file_failed(blob, error, events),
        }
    }

    fn file_failed(&mut self, blob: BlobDigest, error: io::Error, events: &mut Vec<Event>) {
        let path = part_file::path(&self.parts.dir, &blob);
        let kind = error.kind();
        tracing::warn!(path = %path.display(), %error, "the file of an artefact failed");
        self.end(blob, || FetchBlobError::File { path: path.clone(), error: kind.into() });
        self.files.remove(&blob);
        events.push(Event::Forget { blob });
    }

    /// Ends a fetch with an error.
    fn end(&mut self, blob: BlobDigest, error: impl Fn() -> FetchBlobError) {
        for waiter in self.fetches.remove(&blob).map(|running| running.waiters).unwrap_or_default() {
            let _ = waiter.done.send(Err(error()));
        }
    }

    async fn fail(&mut self, blob: BlobDigest, error: impl Fn() -> FetchBlobError) {
        self.end(blob, error);
        self.handle(Event::Forget { blob }).await;
    }

    fn send(&mut self, node_id: u64, message: Message, events: &mut Vec<Event>) {
        let peer = self.peers.entry(node_id).or_default();
        if peer.reopen_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        if peer.outbox.as_ref().is_none_or(mpsc::Sender::is_closed) {
            let (outbox, waiting) = mpsc::channel(OUTBOX);
            peer.outbox = Some(outbox);
            let (open, reports, generation) =
                (self.parts.open.clone(), self.reports.clone(), peer.generation);
            self.tasks.spawn(async move {
                if let Err(error) = streams::write(node_id, open, waiting).await {
                    let _ = reports.send(Report::Broken { node_id, generation, error }).await;
                }
            });
        }
        let sent = peer.outbox.as_ref().map(|outbox| outbox.try_send(message));
        if !matches!(sent, Some(Ok(()))) {
            // The member does not read: its streams begin anew.
            peer.generation += 1;
            peer.outbox = None;
            peer.reader = None;
            peer.reopen_at = Some(Instant::now() + REOPEN_AFTER);
            events.push(Event::PeerDown { node: NodeId(node_id) });
        }
    }

    async fn read_chunk(&mut self, blob: BlobDigest, index: usize) -> Option<Bytes> {
        if let Some(file) = self.files.get(&blob).cloned() {
            return blocking(move || file.read_chunk(index)).await.ok();
        }
        let (tree, bytes) = self.load(blob).await?;
        let range = tree.range(index);
        (range.end <= bytes.len()).then(|| bytes.slice(range))
    }

    /// A blob of the store. The last one stays in memory for [`KEEP_SERVED`].
    async fn load(&mut self, blob: BlobDigest) -> Option<(Arc<Tree>, Bytes)> {
        if let Some((digest, tree, bytes, used_at)) = &mut self.served
            && *digest == blob
        {
            *used_at = Instant::now();
            return Some((tree.clone(), bytes.clone()));
        }
        let holder = self.parts.holder.clone();
        let read = blocking(move || {
            let bytes = holder.read(&blob);
            Ok(bytes.and_then(|bytes| Tree::of(&bytes).ok().map(|(digest, tree)| (digest, tree, bytes))))
        });
        let (digest, tree, bytes) = read.await.ok().flatten()?;
        if digest != blob {
            tracing::warn!(%blob, "the store has other bytes under this digest");
            return None;
        }
        let tree = Arc::new(tree);
        self.served = Some((blob, tree.clone(), bytes.clone(), Instant::now()));
        Some((tree, bytes))
    }

    /// Ends fetches without a waiter or a holder, opens streams again, and removes files that are no longer needed.
    async fn sweep(&mut self) {
        let now = Instant::now();
        self.served.take_if(|(.., used_at)| now.duration_since(*used_at) >= KEEP_SERVED);
        let reopened: Vec<u64> = self
            .peers
            .iter_mut()
            .filter_map(|(node_id, peer)| {
                let is_due = peer.reopen_at.take_if(|at| *at <= now).is_some();
                (is_due && peer.is_up).then_some(*node_id)
            })
            .collect();
        for node_id in reopened {
            self.handle(Event::PeerUp { node: NodeId(node_id) }).await;
        }
        let (mut abandoned, mut without_source) = (Vec::new(), Vec::new());
        for (blob, running) in &mut self.fetches {
            running.waiters.retain(|waiter| !waiter.done.is_closed());
            if running.waiters.is_empty() {
                abandoned.push(*blob);
            } else if self.machine.has_no_source(blob) {
                let since = *running.no_source_since.get_or_insert(now);
                without_source.extend((now.duration_since(since) >= NO_HOLDER_AFTER).then_some(*blob));
            } else {
                running.no_source_since = None;
            }
        }
        for blob in abandoned.into_iter().chain(without_source) {
            self.fail(blob, || FetchBlobError::NoHolder).await;
            self.files.remove(&blob);
        }
        let (dir, holder) = (self.parts.dir.clone(), self.parts.holder.clone());
        let running: BTreeSet<BlobDigest> = self.fetches.keys().copied().collect();
        match blocking(move || remove_unneeded(&dir, &*holder, &running)).await {
            Ok(removed) => removed.iter().for_each(|blob| {
                self.files.remove(blob);
            }),
            Err(error) => {
                tracing::warn!(dir = %self.parts.dir.display(), %error, "unfinished artefacts cannot be listed");
            }
        }
    }

    async fn remove_file(&mut self, blob: BlobDigest) {
        self.files.remove(&blob);
        let path = part_file::path(&self.parts.dir, &blob);
        let removed = blocking(move || std::fs::remove_file(&path)).await;
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%blob, %error, "the file of an artefact cannot be removed");
        }
    }
}

/// Removes files of blobs that the store has, and of those that nobody has fetched for long.
fn remove_unneeded(
    dir: &std::path::Path,
    holder: &dyn super::Holder,
    running: &BTreeSet<BlobDigest>,
) -> io::Result<Vec<BlobDigest>> {
    let mut removed = Vec::new();
    for blob in part_file::list(dir)?.into_iter().filter(|blob| !running.contains(blob)) {
        let path = part_file::path(dir, &blob);
        let age = std::fs::metadata(&path)?.modified()?.elapsed().unwrap_or_default();
        if holder.has(&blob) || age >= MAX_FILE_AGE {
            std::fs::remove_file(&path)?;
            removed.push(blob);
        }
    }
    Ok(removed)
}

/// Runs work on the disk on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
